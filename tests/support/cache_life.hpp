// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A request's whole life through `kv_cache`, with random keys, values and queries.
#include <diffkv/cache/kv_cache.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <vector>

#include "support/random.hpp"

namespace diffkv::test {

struct request {
  std::uint32_t slot = 0;
  int prompt_tokens  = 0;
  int new_tokens     = 0;
  std::uint64_t seed = 1;  //!< all its numbers follow from it
  attention_options options{0.125f};
};

struct life {
  bool admitted  = false;
  int new_tokens = 0;          //!< less than asked: refused for want of pages
  std::vector<float> outputs;  //!< prompt attention, importances, outputs and lse of every step
};

//! A request that is moved on call by call, so that several can take turns.
template <class Cache, class Executor = host::sequential>
class turns {
 public:
  turns(Cache& cache, request const& r, Executor const& executor = {})
    : cache_{&cache}, request_{r}, executor_{executor}, numbers_{r.seed}
  {}

  [[nodiscard]] life const& so_far() const { return life_; }

  //! @return false if the prompt was refused
  bool start()
  {
    life_.admitted = cache_->admit(request_.slot, request_.prompt_tokens);
    if (!life_.admitted) { return false; }
    auto const n = static_cast<std::size_t>(request_.prompt_tokens);
    for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
      auto const q = vectors_of(n * shape().num_q_heads(), 2.0f);
      auto const k = vectors_of(n * shape().num_heads, 1.0f);
      auto const v = vectors_of(n * shape().num_heads, 1.0f);
      std::vector<float> out(q.size());
      std::vector<float> lse(n * shape().num_q_heads());
      std::vector<float> importances(n * shape().num_heads);
      cache_->prefill_attention(request_.slot, request_.options, of_q_heads(q.data()), of_heads(k),
                                of_heads(v), of_q_heads(out.data()), lse.data(), importances.data(),
                                executor_);
      cache_->store_prompt(request_.slot, l, of_heads(k), of_heads(v), importances.data(),
                           executor_);
      keep(out);
      keep(lse);
      keep(importances);
    }
    return true;
  }

  //! Decodes the next token, if its step was granted.
  bool step() { return cache_->step(&request_.slot, 1) == 0 && (decode(), true); }

  //! After a granted step.
  void decode()
  {
    for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
      auto const q = vectors_of(shape().num_q_heads(), 2.0f);
      auto const k = vectors_of(shape().num_heads, 1.0f);
      auto const v = vectors_of(shape().num_heads, 1.0f);
      std::vector<float> out(q.size());
      std::vector<float> lse(shape().num_q_heads());
      cache_->append(&request_.slot, 1, l, of_heads(k), of_heads(v), of_q_heads(q.data()));
      cache_->decode(&request_.slot, 1, l, request_.options, of_q_heads(q.data()),
                     of_q_heads(out.data()), lse.data(), executor_);
      keep(out);
      keep(lse);
    }
    ++life_.new_tokens;
  }

 private:
  [[nodiscard]] cache_shape const& shape() const { return cache_->shape(); }
  [[nodiscard]] std::vector<float> vectors_of(std::size_t count, float size)
  {
    return numbers_.floats(count * static_cast<std::size_t>(shape().head_dim), -size, size);
  }
  template <class T>
  [[nodiscard]] vectors<T> of_q_heads(T* x) const
  {
    return packed(x, shape().num_q_heads(), shape().head_dim);
  }
  [[nodiscard]] vectors<float const> of_heads(std::vector<float> const& x) const
  {
    return packed(x.data(), shape().num_heads, shape().head_dim);
  }
  void keep(std::vector<float> const& x)
  {
    life_.outputs.insert(life_.outputs.end(), x.begin(), x.end());
  }

  Cache* cache_;
  request request_;
  Executor executor_;
  random numbers_;
  life life_{};
};

//! Runs a request up to its last token or first refusal; does not release it.
template <class Cache, class Executor = host::sequential>
life run(Cache& cache, request const& r, Executor const& executor = {})
{
  turns<Cache, Executor> one{cache, r, executor};
  if (one.start()) {
    while (one.so_far().new_tokens < r.new_tokens && one.step()) {}
  }
  return one.so_far();
}

//! Options of a small cache: 2 slots, 2 layers, 2 heads of 3 q_heads; pages of 16 or a few more
//! tokens, and thresholds at which random requests use all tiers.
[[nodiscard]] inline cache_options small_options(policy_kind kind = policy_kind::paper)
{
  cache_options o{};
  o.shape.num_slots   = 2;
  o.shape.num_layers  = 2;
  o.shape.num_heads   = 2;
  o.shape.group_size  = 3;
  o.shape.head_dim    = 64;
  o.shape.max_tokens  = 120;
  o.shape.window      = 8;
  o.shape.score_every = 4;
  o.page_bytes        = 2560;
  o.limits            = kind == policy_kind::artifact   ? thresholds{4.0f, 2.0f}
                        : kind == policy_kind::relative ? thresholds{1.5f, 1.2f}
                                                        : thresholds{1.5f, 1.0f};
  o.num_pages         = 100;
  o.checked_ring      = true;
  return o;
}

//! A policy by kind; `harmonic` must outlive it.
[[nodiscard]] inline any_policy policy_of(policy_kind kind, harmonic_table const& harmonic)
{
  any_policy policy{};
  policy.kind                 = kind;
  policy.relative.harmonic    = harmonic.ref();
  policy.static_budget.budget = 20;
  return policy;
}

}  // namespace diffkv::test
