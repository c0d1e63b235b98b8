// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The seam between the model and whatever keeps its K and V: an exact f32 cache, or diffkv pages.
//! Read next: llama3/exact_backend.hpp, llama3/model.hpp.

namespace llama3 {

//! What the model asks of a KV cache. Tokens come in order: one prompt, then one token at a time.
//! q and k are rotated (RoPE applied); all arrays are f32, row-major, without gaps. q_head h belongs
//! to head h / (num_q_heads / num_heads); the softmax scale is 1 / sqrt(head_dim).
struct attention_backend {
  virtual ~attention_backend() = default;

  //! Attention of a whole prompt in one layer; layers come in order, each once per prompt.
  //! @param[in]  q     [num_tokens, num_q_heads, head_dim]
  //! @param[in]  k, v  [num_tokens, num_heads, head_dim]
  //! @param[out] out   [num_tokens, num_q_heads, head_dim]
  virtual void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
                      float* out) = 0;

  //! Called once before the layers of one generated token.
  virtual void begin_token() = 0;

  //! Attention of one generated token in one layer.
  //! @param[in]  q     [num_q_heads, head_dim]
  //! @param[in]  k, v  [num_heads, head_dim]
  //! @param[out] out   [num_q_heads, head_dim]
  virtual void decode(int layer, float const* q, float const* k, float const* v, float* out) = 0;
};

}  // namespace llama3
