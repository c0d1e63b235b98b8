// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/exact_backend.hpp"

#include "llama3/linear.hpp"  // multiply, multiply_transposed

#include <algorithm>  // fill, max, min
#include <cmath>      // exp, sqrt
#include <cstddef>    // size_t
#include <cstdint>    // int64_t

namespace llama3 {
namespace {

//! [0, seen) become probabilities, [seen, size) zero.
void softmax(float* logits, int seen, int size, float scale) noexcept
{
  float largest = logits[0];
  for (int i = 1; i < seen; ++i) { largest = std::max(largest, logits[i]); }
  double sum = 0.0;
  for (int i = 0; i < seen; ++i) {
    logits[i] = std::exp((logits[i] - largest) * scale);
    sum += logits[i];
  }
  auto const factor = static_cast<float>(1.0 / sum);
  for (int i = 0; i < seen; ++i) { logits[i] *= factor; }
  std::fill(logits + seen, logits + size, 0.0f);
}

}  // namespace

exact_backend::exact_backend(model_config const& config, thread_pool& threads)
  : num_q_heads_{config.num_q_heads},
    num_heads_{config.num_heads},
    head_dim_{config.head_dim},
    threads_{&threads},
    layers_(static_cast<std::size_t>(config.num_layers))
{}

int exact_backend::num_tokens(int layer) const
{
  return static_cast<int>(at(layer).keys.size() / static_cast<std::size_t>(num_heads_ * head_dim_));
}

void exact_backend::attend(layer_cache const& cache, int head, int first, int last, int first_token,
                           float const* q, float* out) const
{
  int const group              = num_q_heads_ / num_heads_;
  int const num_queries        = last - first;
  int const num_keys           = first_token + last;
  std::int64_t const kv_stride = std::int64_t{num_heads_} * head_dim_;
  std::int64_t const q_stride  = std::int64_t{num_q_heads_} * head_dim_;
  float const scale            = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  std::int64_t const kv_offset = std::int64_t{head} * head_dim_;
  matrix_view const keys{cache.keys.data() + kv_offset, num_keys, head_dim_, kv_stride};
  matrix_view const values{cache.values.data() + kv_offset, num_keys, head_dim_, kv_stride};
  thread_local std::vector<float> weights;  // [num_queries, num_keys]
  weights.resize(static_cast<std::size_t>(num_queries) * static_cast<std::size_t>(num_keys));
  for (int q_head = head * group; q_head < (head + 1) * group; ++q_head) {
    std::int64_t const at = first * q_stride + std::int64_t{q_head} * head_dim_;
    multiply_transposed({q + at, num_queries, head_dim_, q_stride}, keys, weights.data(), num_keys);
    for (int i = 0; i < num_queries; ++i) {
      softmax(weights.data() + std::int64_t{i} * num_keys, first_token + first + i + 1, num_keys,
              scale);
    }
    multiply({weights.data(), num_queries, num_keys, num_keys}, values, out + at, q_stride);
  }
}

void exact_backend::prompt(int layer, int num_tokens, float const* q, float const* k,
                           float const* v, float* out)
{
  auto& cache            = layers_.at(static_cast<std::size_t>(layer));
  std::int64_t const all = std::int64_t{num_tokens} * num_heads_ * head_dim_;
  cache.keys.assign(k, k + all);
  cache.values.assign(v, v + all);
  constexpr int block  = 64;  // queries that share one pass over the keys
  int const num_blocks = (num_tokens + block - 1) / block;
  threads_->parallel_for(std::int64_t{num_heads_} * num_blocks, [&](std::int64_t task) {
    int const head  = static_cast<int>(task % num_heads_);
    int const first = static_cast<int>(task / num_heads_) * block;
    attend(cache, head, first, std::min(first + block, num_tokens), 0, q, out);
  });
}

void exact_backend::decode(int layer, float const* q, float const* k, float const* v, float* out)
{
  auto& cache          = layers_.at(static_cast<std::size_t>(layer));
  int const token      = num_tokens(layer);
  std::int64_t const n = std::int64_t{num_heads_} * head_dim_;
  cache.keys.insert(cache.keys.end(), k, k + n);
  cache.values.insert(cache.values.end(), v, v + n);
  threads_->parallel_for(num_heads_, [&](std::int64_t head) {
    attend(cache, static_cast<int>(head), 0, 1, token, q, out);
  });
}

}  // namespace llama3
