// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Key offsets of a model on the GPU, as llama3/calibration.hpp computes them on the CPU.
//! Read before this: llama3/cuda/device_model.hpp, llama3/cuda/device_cache_kind.hpp.
//! Read next: llama3/cuda/cuda_device.hpp.
#include "llama3/cuda/device_model.hpp"
#include "llama3/token_id.hpp"

#include <vector>

namespace llama3 {

//! Mean over the tokens of `ids`, as one prompt, of the rotated keys.
//! @return [num_layers, num_heads, head_dim]
[[nodiscard]] std::vector<float> calibrate_on_device(device_model& of,
                                                     std::vector<token_id> const& ids);

}  // namespace llama3
