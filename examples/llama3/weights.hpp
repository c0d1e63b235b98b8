// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The weights of a Llama, Qwen2 or Mistral model under the names that Hugging Face publishes.
//! Read before this: llama3/checkpoint.hpp, llama3/linear.hpp.  Read next: llama3/model.hpp.
#include "llama3/checkpoint.hpp"
#include "llama3/linear.hpp"
#include "llama3/model_config.hpp"

#include <vector>

namespace llama3 {

//! y = weight * x + bias. Projections of the same input stand below each other in one matrix.
struct projection {
  weight_matrix weight;
  std::vector<float> bias;  //!< [weight.rows()], or empty: none

  //! @param[in]  x  [num_tokens, weight.columns()]
  //! @param[out] y  [num_tokens, weight.rows()]
  void apply(float const* x, std::int64_t num_tokens, float* y, thread_pool& threads) const;
};

struct layer_weights {
  std::vector<float> input_norm;           //!< [hidden_size]
  projection query_key_value;              //!< rows: q_heads, then heads of k, then heads of v
  projection attention_output;             //!< [hidden_size, num_q_heads * head_dim]
  std::vector<float> post_attention_norm;  //!< [hidden_size]
  projection gate_up;                      //!< [2 * intermediate_size, hidden_size], gate first
  projection down;                         //!< [hidden_size, intermediate_size]
};

struct model_weights {
  weight_matrix embedding;  //!< [vocab_size, hidden_size]
  std::vector<layer_weights> layers;
  std::vector<float> norm;  //!< [hidden_size]
  weight_matrix head;       //!< [vocab_size, hidden_size]; empty: the embedding, as config says
};

//! Takes every tensor of the model out of the checkpoint, copied in its published type.
//! @throws file_error naming the tensor, before any is copied: one is missing, of another shape or
//!         not f32, f16 or bf16, or the checkpoint has one that this model does not use (which
//!         means another architecture; stored `rotary_emb.inv_freq` and the unused lm_head of
//!         tied embeddings are passed over)
[[nodiscard]] model_weights load_weights(model_config const& config, checkpoint const& files);

}  // namespace llama3
