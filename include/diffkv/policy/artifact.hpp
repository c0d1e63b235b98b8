// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! `artifact`: what the paper's published code does, where it differs from the paper.
//! Read before this: policy/paper.hpp.  Read next: policy/harmonic.hpp.
#include <diffkv/policy/contract.hpp>

namespace diffkv {

//! Prompt importance from the last 64 queries only, thresholds over N for every token; at a step the
//! leaving token is not classified, the least important high token is.
//! @source reading of the artifact published with arXiv:2412.03131
struct artifact_policy {
  using row_parameters                           = no_parameters;
  static constexpr std::int32_t observed_queries = 64;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return num_tokens < observed_queries ? num_tokens : observed_queries;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const&) const noexcept
  {
    return {};
  }

  //! High above a_h / N, pruned below a_l / N.
  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t,
                                                 std::int32_t num_tokens, thresholds limits,
                                                 row_parameters const&) const noexcept
  {
    auto const n = static_cast<float>(num_tokens);
    return between(importance, detail::div_rn(limits.high, n), detail::div_rn(limits.low, n));
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t,
                                                  std::int32_t) const noexcept
  {
    return importance;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    if (!row.least_high.present) { return {}; }
    auto const n       = static_cast<float>(row.num_tokens);
    float const high   = detail::div_rn(row.limits.high, n);
    float const low    = detail::div_rn(row.limits.low, n);
    float const m_high = row.least_high.importance;
    float const m_low  = row.least_low.present ? row.least_low.importance : detail::infinity;
    if (m_high < low && m_high < m_low) { return {step_action::prune_high, false}; }
    if (row.has_low && m_high < high) { return {step_action::demote_high, m_low < low}; }
    return {};
  }
};
static_assert(is_policy_v<artifact_policy>);

}  // namespace diffkv
