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

//! Runs a request up to its last token or first refusal; does not release it.
template <class Cache, class Executor = host::sequential>
life run(Cache& cache, request const& r, Executor const& executor = {})
{
  cache_shape const& shape = cache.shape();
  auto const dim           = static_cast<std::size_t>(shape.head_dim);
  std::uint32_t const nq   = shape.num_q_heads();
  random numbers{r.seed};
  life result{};
  result.admitted = cache.admit(r.slot, r.prompt_tokens);
  if (!result.admitted) { return result; }
  auto const keep = [&](std::vector<float> const& x) {
    result.outputs.insert(result.outputs.end(), x.begin(), x.end());
  };
  auto const n = static_cast<std::size_t>(r.prompt_tokens);
  for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
    auto const q = numbers.floats(n * nq * dim, -2.0f, 2.0f);
    auto const k = numbers.floats(n * shape.num_heads * dim, -1.0f, 1.0f);
    auto const v = numbers.floats(n * shape.num_heads * dim, -1.0f, 1.0f);
    std::vector<float> out(q.size());
    std::vector<float> lse(n * nq);
    std::vector<float> importances(n * shape.num_heads);
    auto const keys   = packed(k.data(), shape.num_heads, shape.head_dim);
    auto const values = packed(v.data(), shape.num_heads, shape.head_dim);
    cache.prefill_attention(r.slot, r.options, packed(q.data(), nq, shape.head_dim), keys, values,
                            packed(out.data(), nq, shape.head_dim), lse.data(), importances.data(),
                            executor);
    cache.store_prompt(r.slot, l, keys, values, importances.data(), executor);
    keep(out);
    keep(lse);
    keep(importances);
  }
  for (; result.new_tokens < r.new_tokens; ++result.new_tokens) {
    if (cache.step(&r.slot, 1) != 0) { break; }
    for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
      auto const q = numbers.floats(nq * dim, -2.0f, 2.0f);
      auto const k = numbers.floats(shape.num_heads * dim, -1.0f, 1.0f);
      auto const v = numbers.floats(shape.num_heads * dim, -1.0f, 1.0f);
      std::vector<float> out(q.size());
      std::vector<float> lse(nq);
      auto const queries = packed(q.data(), nq, shape.head_dim);
      cache.append(&r.slot, 1, l, packed(k.data(), shape.num_heads, shape.head_dim),
                   packed(v.data(), shape.num_heads, shape.head_dim), queries);
      cache.decode(&r.slot, 1, l, r.options, queries, packed(out.data(), nq, shape.head_dim),
                   lse.data(), executor);
      keep(out);
      keep(lse);
    }
  }
  return result;
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
