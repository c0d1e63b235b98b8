// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Attention over every token in plain f32: what a compressed cache is compared with, and where
//! calibration takes its keys from.
//! Read before this: llama3/attention_backend.hpp.  Read next: llama3/model.hpp.
#include "llama3/attention_backend.hpp"
#include "llama3/model_config.hpp"
#include "llama3/thread_pool.hpp"

#include <vector>

namespace llama3 {

//! Keeps K and V of one sequence as they come. A new prompt begins a new sequence.
class exact_backend final : public attention_backend {
 public:
  //! @param threads  must outlive this
  exact_backend(model_config const& config, thread_pool& threads);

  void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
              float* out) override;
  void begin_token() override {}
  void decode(int layer, float const* q, float const* k, float const* v, float* out) override;

  //! K (V) of one layer, [num_tokens(layer), num_heads, head_dim]
  [[nodiscard]] std::vector<float> const& keys(int layer) const { return at(layer).keys; }
  [[nodiscard]] std::vector<float> const& values(int layer) const { return at(layer).values; }
  [[nodiscard]] int num_tokens(int layer) const;

 private:
  struct layer_cache {
    std::vector<float> keys, values;
  };
  [[nodiscard]] layer_cache const& at(int layer) const
  {
    return layers_.at(static_cast<std::size_t>(layer));
  }

  //! The q_heads of one head, for queries `first` to `last` of those at `q`; query i is token
  //! `first_token + i` and sees the tokens up to itself.
  void attend(layer_cache const& cache, int head, int first, int last, int first_token,
              float const* q, float* out) const;

  int num_q_heads_, num_heads_, head_dim_;
  thread_pool* threads_;
  std::vector<layer_cache> layers_;
};

}  // namespace llama3
