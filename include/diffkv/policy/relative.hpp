// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! `relative`: as `paper`, measured against even attention instead of 1/i and 1/N.
//! Read before this: policy/device_harmonic.hpp.  Read next: policy/selection.hpp.
#include <diffkv/policy/harmonic.hpp>
#include <diffkv/policy/threshold_step.hpp>

namespace diffkv {

//! a_h = 2 says at any length: twice what even attention would have given this token.
struct relative_policy {
  using row_parameters = no_parameters;
  using leaving_first  = relative_policy;
  harmonic_ref harmonic{};  //!< must outlive the policy's use and reach the longest sequence

  //! @throws invalid_argument if the table does not reach the longest sequence
  void validate(std::int32_t max_tokens) const
  {
    DIFFKV_EXPECTS(harmonic.sums != nullptr && harmonic.max_tokens >= max_tokens,
                   "policy: relative has a harmonic table for " +
                     std::to_string(harmonic.sums == nullptr ? 0 : harmonic.max_tokens) +
                     " tokens, needs at least max_tokens = " + std::to_string(max_tokens));
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return num_tokens;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const&) const noexcept
  {
    return {};
  }

  //! High above a_h * u(i, N), pruned below a_l * u(i, N).
  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t number,
                                                 std::int32_t num_tokens, thresholds limits,
                                                 row_parameters const&) const noexcept
  {
    float const even = harmonic.even_importance(number, num_tokens);
    return between(importance, detail::mul_rn(limits.high, even), detail::mul_rn(limits.low, even));
  }

  //! importance / u(i, N): tokens of different age become comparable.
  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t number,
                                                  std::int32_t num_tokens) const noexcept
  {
    return detail::div_rn(importance, harmonic.even_importance(number, num_tokens));
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    relative_policy const self = *this;
    return detail::threshold_step(row, [=](token_view const& token) {
      return self.classify(token.importance, token.number, row.num_tokens, row.limits, {});
    });
  }
};
static_assert(is_policy_v<relative_policy>);

}  // namespace diffkv
