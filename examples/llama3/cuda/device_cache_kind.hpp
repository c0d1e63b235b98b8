// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The caches that this program has code for: device code knows formats, heads and conditioning at compile
//! time, a command line does not.
//! Read before this: llama3/cuda/device_cache.hpp.  Read next: llama3/cuda/device_cache_of.cuh.
#include "llama3/cuda/device_cache.hpp"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace llama3 {

//! One layer of a prompt without a cache, for calibration. Arrays in device memory, as attend_prompt() has
//! them.
struct calibration_layer {
  int num_q_heads = 0, num_heads = 0, num_tokens = 0;
  std::int64_t const* first_tokens = nullptr;  //!< [2]: 0 and num_tokens
  __half const *q = nullptr, *k = nullptr, *v = nullptr;
  __half* out    = nullptr;  //!< attention of the layer
  float* offsets = nullptr;  //!< [num_heads, head_dim] mean of the keys
};
using calibrate_function = void (*)(calibration_layer const& layer, cudaStream_t stream);

//! A cache that there is code for, and how to make one.
struct device_cache_kind {
  diffkv::format_spec high{};
  std::optional<diffkv::format_spec> low{};
  int head_dim                      = 0;
  int group_size                    = 0;
  int score_every                   = 0;
  diffkv::conditioning conditioning = diffkv::conditioning::none;
  bool fixed_mix = false;  //!< llama3/cuda/fixed_mix_policy.hpp instead of a real one

  std::unique_ptr<device_cache> (*make)(diffkv::cache_options options,
                                        cache_settings const& settings,
                                        device_cache_setup const& setup,
                                        cudaStream_t stream) = nullptr;
  calibrate_function calibrate = nullptr;  //!< of any model with this head_dim

  //! As LLAMA3_CUDA_CACHES has it, e.g. "64x3/k8v4+k4v2/4/centred+rotated".
  [[nodiscard]] std::string name() const;
};

//! All of them; CMake writes the list (LLAMA3_CUDA_CACHES).
[[nodiscard]] std::vector<device_cache_kind> device_cache_kinds();

//! @throws std::invalid_argument naming the caches there is code for, if this one is not among them
[[nodiscard]] device_cache_kind find_device_cache(model_config const& config,
                                                  cache_settings const& settings, bool fixed_mix);

//! @throws std::invalid_argument if there is no code for the model's head_dim
[[nodiscard]] calibrate_function find_calibration(model_config const& config);

//! @throws std::invalid_argument as find_device_cache; diffkv::invalid_argument; diffkv::cuda_error
//! @stream waits
[[nodiscard]] std::unique_ptr<device_cache> make_device_cache(model_config const& config,
                                                              cache_settings const& settings,
                                                              device_cache_setup const& setup,
                                                              std::vector<float> key_offsets,
                                                              cudaStream_t stream);

}  // namespace llama3
