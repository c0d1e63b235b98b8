// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Mode `throughput`: tokens per second of generations of a fixed length, by the largest batch that fits
//! a given memory for keys and values (DiffKV, arXiv:2412.03131, section 7).
//! Read before this: llama3/throughput/measured_cache.hpp.  Read next: llama3/throughput.cpp.
#include "llama3/throughput/model_shapes.hpp"
#include "llama3/throughput/results.hpp"
#include "llama3/throughput/throughput_options.hpp"

#include <cuda_runtime_api.h>

#include <vector>

namespace llama3 {

//! Bytes for keys and values: what was asked for; else 0.9 of the card less the weights of the shape and 2 GB.
//! @throws std::invalid_argument if that leaves nothing
[[nodiscard]] std::uint64_t kv_budget(throughput_options const& options,
                                      model_config const& config);

[[nodiscard]] std::vector<measured_result> measure_throughput(throughput_options const& options,
                                                              cudaStream_t stream);

}  // namespace llama3
