// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A policy that gives every token a tier by its number alone, whatever attention says: for speed runs
//! with random weights, where importance means nothing and the mix of tiers is wanted as given. It also
//! shows what a policy of one's own looks like.
//! Read before this: diffkv/policy/contract.hpp.  Read next: llama3/cuda/device_cache_of.cuh.
#include <diffkv/policy/contract.hpp>

namespace llama3 {

//! Of five tokens two are high, two low, one is pruned.
struct fixed_mix_policy {
  using row_parameters = diffkv::no_parameters;
  using leaving_first  = fixed_mix_policy;

  [[nodiscard]] DIFFKV_HOST_DEVICE static constexpr diffkv::tier tier_of(
    std::int32_t number) noexcept
  {
    std::int32_t const place = number % 5;
    return place < 2 ? diffkv::tier::high : place < 4 ? diffkv::tier::low : diffkv::tier::pruned;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return num_tokens;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr row_parameters prepare(
    diffkv::prompt_view const&) const noexcept
  {
    return {};
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr diffkv::tier classify(
    float, std::int32_t number, std::int32_t, diffkv::thresholds,
    row_parameters const&) const noexcept
  {
    return tier_of(number);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr float priority(float importance, std::int32_t,
                                                            std::int32_t) const noexcept
  {
    return importance;
  }
  //! The token that leaves the window gets the tier of its number.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr diffkv::step_decision step(
    diffkv::step_view const& row) const noexcept
  {
    if (!row.leaving.present) { return {}; }
    switch (tier_of(row.leaving.number)) {
      case diffkv::tier::pruned:
        return {diffkv::step_action::prune_leaving, false};
      case diffkv::tier::low:
        return row.has_low ? diffkv::step_decision{diffkv::step_action::demote_leaving, false}
                           : diffkv::step_decision{};
      default:
        return {};
    }
  }
};
static_assert(diffkv::is_policy_v<fixed_mix_policy>);

}  // namespace llama3
