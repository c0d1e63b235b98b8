// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The weights of a model in device memory, as f16: published ones, or random ones of the same shapes.
//! Read before this: llama3/weights.hpp, llama3/cuda/blas.hpp.  Read next: llama3/cuda/device_model.hpp.
#include "llama3/cuda/blas.hpp"
#include "llama3/weights.hpp"

#include <cstdint>
#include <vector>

namespace llama3 {

struct device_projection {
  device_matrix weight{};
  device_array<float> bias{};  //!< [weight.rows], or empty: none

  [[nodiscard]] float const* bias_or_null() const noexcept { return bias.data(); }
};

//! As layer_weights has them.
struct device_layer {
  device_array<float> input_norm{};
  device_projection query_key_value{};
  device_projection attention_output{};
  device_array<float> post_attention_norm{};
  device_projection gate_up{};
  device_projection down{};
};

struct device_weights {
  device_matrix embedding{};
  std::vector<device_layer> layers{};
  device_array<float> norm{};
  device_matrix head{};  //!< empty: the embedding

  [[nodiscard]] device_matrix const& output() const noexcept
  {
    return head.empty() ? embedding : head;
  }
};

//! Copies weights to the device. f16 holds three bits more of a weight than bf16, and every published
//! Llama, Mistral and Qwen2 weight is far inside its range; what is not is saturated.
//! @stream  waits
[[nodiscard]] device_weights upload(model_weights const& weights, cudaStream_t stream);

//! Random weights for a model of any shape: for its speed, not for what it says. Normal with a standard
//! deviation of 1 / sqrt(columns), so that hidden vectors keep their size; norms are 1, biases 0.
//! @stream  ordered in `stream`
[[nodiscard]] device_weights random_weights(model_config const& config, std::uint64_t seed,
                                            cudaStream_t stream);

}  // namespace llama3
