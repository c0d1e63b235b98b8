// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompt attention over exact keys and values, with the importance of each token.
//! Read before this: host/decode_plan.hpp.  Read next: host/calibrate.hpp.
#include <diffkv/attention/softmax_state.hpp>
#include <diffkv/core/vectors.hpp>
#include <diffkv/host/context.hpp>
#include <diffkv/host/dot.hpp>
#include <diffkv/host/logit.hpp>
#include <diffkv/policy/importance.hpp>

#include <vector>

namespace diffkv::host {

//! Extents of a prompt.
struct prompt_shape {
  std::int32_t num_tokens  = 0;
  std::uint32_t num_heads  = 1;
  std::uint32_t group_size = 1;
  std::int32_t head_dim    = 64;
  std::int32_t prompt_queries =
    0;  //!< Q: importance counts the last Q queries (policy.prompt_queries)
  std::int32_t sample_every = 1;  //!< of those, every n-th, counted back from the last one
};

namespace detail {

//! Causal attention of one q_head. `sums[i]` gets the probabilities of later queries for token i.
template <class T, class Out>
void prefill_q_head(prompt_shape const& shape, attention_options const& options, vectors<T> query,
                    std::vector<float> const& keys, std::vector<float> const& values,
                    std::uint32_t q_head, vectors<Out> out, float* lse, float* sums)
{
  auto const dim = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> q(dim);
  std::vector<float> o(dim);
  std::vector<float> weights(static_cast<std::size_t>(shape.num_tokens));
  for (std::int32_t j = 0; j < shape.num_tokens; ++j) {
    T* const from = query.at(j, q_head);
    for (std::size_t d = 0; d < dim; ++d) {
      q[d] = to_f32(from[d]);
      o[d] = 0.0f;
    }
    std::int32_t const first =
      options.sliding_window > 0 ? diffkv::detail::max_of(0, j + 1 - options.sliding_window) : 0;
    softmax_state softmax{};
    for (std::int32_t i = first; i <= j; ++i) {
      auto const at       = static_cast<std::size_t>(i);
      float const product = options.scale * dot(q.data(), keys.data() + at * dim, shape.head_dim);
      weights[at]         = logit_of(product, 0.0f, options);
      softmax.raise(weights[at]);
    }
    for (std::int32_t i = first; i <= j; ++i) {
      auto const at = static_cast<std::size_t>(i);
      weights[at]   = softmax.add(weights[at]);
    }
    auto const begin = static_cast<std::size_t>(first);
    add_weighted(o.data(), weights.data() + begin, values.data() + begin * dim, j - first + 1,
                 shape.head_dim);
    Out* const to = out.at(j, q_head);
    for (std::size_t d = 0; d < dim; ++d) { from_f32(o[d] / softmax.sum, to[d]); }
    if (lse != nullptr) { lse[j] = softmax.log_sum_exp(); }
    if (j < shape.num_tokens - shape.prompt_queries ||
        (shape.num_tokens - 1 - j) % shape.sample_every != 0) {
      continue;
    }
    for (std::int32_t i = first; i < j; ++i) {
      float const p = weights[static_cast<std::size_t>(i)] / softmax.sum;
      if (diffkv::detail::is_finite(p)) { sums[i] += p; }
    }
  }
}

}  // namespace detail

//! Causal attention of one prompt and layer, and the importance of each token per head: the maximum
//! over the q_heads of (sum of probabilities of later queries / number of those queries).
//! @param query        [num_tokens, num_q_heads, head_dim] f16, bf16 or f32, any strides
//! @param key, value   [num_tokens, num_heads, head_dim]
//! @param out          [num_tokens, num_q_heads, head_dim]
//! @param lse          [num_q_heads, num_tokens] f32 or null
//! @param importances  [num_heads, num_tokens] f32; 0 for a token that no query counts for
//! @throws invalid_argument for extents out of range, before anything is written
//! @cost   O(num_tokens^2 * num_q_heads * head_dim) time, O(num_tokens * num_q_heads) memory
template <class T, class Out, class Executor = sequential>
void prefill_attention(prompt_shape const& shape, attention_options const& options,
                       vectors<T> query, vectors<T> key, vectors<T> value, vectors<Out> out,
                       float* lse, float* importances, Executor const& executor = {})
{
  DIFFKV_EXPECTS(shape.num_tokens >= 0 && shape.num_heads > 0 && shape.group_size > 0 &&
                   shape.head_dim > 0 && shape.prompt_queries >= 0 &&
                   shape.prompt_queries <= shape.num_tokens && shape.sample_every > 0,
                 "shape: need num_tokens >= 0, at least one head, q_head and dim, "
                 "prompt_queries within 0 .. num_tokens, and sample_every >= 1");
  auto const n                    = static_cast<std::size_t>(shape.num_tokens);
  auto const dim                  = static_cast<std::size_t>(shape.head_dim);
  std::uint32_t const num_q_heads = shape.num_heads * shape.group_size;
  std::vector<std::vector<float>> keys(shape.num_heads);
  std::vector<std::vector<float>> values(shape.num_heads);
  executor(shape.num_heads, [&](std::size_t head) {
    keys[head].resize(n * dim);
    values[head].resize(n * dim);
    for (std::size_t i = 0; i < n; ++i) {
      T* const k = key.at(static_cast<std::ptrdiff_t>(i), static_cast<std::ptrdiff_t>(head));
      T* const v = value.at(static_cast<std::ptrdiff_t>(i), static_cast<std::ptrdiff_t>(head));
      for (std::size_t d = 0; d < dim; ++d) {
        keys[head][i * dim + d]   = to_f32(k[d]);
        values[head][i * dim + d] = to_f32(v[d]);
      }
    }
  });
  std::vector<float> sums(n * num_q_heads);
  executor(num_q_heads, [&](std::size_t q_head) {
    std::size_t const head = q_head / shape.group_size;
    detail::prefill_q_head(shape, options, query, keys[head], values[head],
                           static_cast<std::uint32_t>(q_head), out,
                           lse == nullptr ? nullptr : lse + q_head * n, sums.data() + q_head * n);
  });
  query_span const span{shape.num_tokens, shape.prompt_queries, shape.num_tokens};
  for (std::size_t head = 0; head < shape.num_heads; ++head) {
    for (std::size_t i = 0; i < n; ++i) {
      float largest = 0.0f;
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        float const sum = sums[(head * shape.group_size + g) * n + i];
        largest         = sum > largest ? sum : largest;
      }
      std::int32_t const later  = span.count(static_cast<std::int32_t>(i) + 1);
      std::int32_t const count  = later > 0 ? (later - 1) / shape.sample_every + 1 : 0;
      importances[head * n + i] = count > 0 ? importance_of(largest, count) : 0.0f;
    }
  }
}

}  // namespace diffkv::host
