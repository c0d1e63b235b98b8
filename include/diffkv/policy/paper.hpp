// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! `paper`: thresholds over i at the prompt, over N at a generation step.
//! Read before this: policy/threshold_step.hpp.  Read next: policy/artifact.hpp.
#include <diffkv/policy/threshold_step.hpp>

namespace diffkv {

//! @source DiffKV, arXiv:2412.03131, section on compression policy
struct paper_policy {
  using row_parameters = no_parameters;
  using leaving_first  = paper_policy;

  //! Every later query of the prompt counts.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return num_tokens;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const&) const noexcept
  {
    return {};
  }

  //! High above a_h / i, pruned below a_l / i.
  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t number,
                                                 std::int32_t, thresholds limits,
                                                 row_parameters const&) const noexcept
  {
    auto const i = static_cast<float>(number);
    return between(importance, detail::div_rn(limits.high, i), detail::div_rn(limits.low, i));
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t,
                                                  std::int32_t) const noexcept
  {
    return importance;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    auto const n     = static_cast<float>(row.num_tokens);
    float const high = detail::div_rn(row.limits.high, n);
    float const low  = detail::div_rn(row.limits.low, n);
    return detail::threshold_step(
      row, [=](token_view const& token) { return between(token.importance, high, low); });
  }
};
static_assert(is_policy_v<paper_policy>);

}  // namespace diffkv
