// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! `static`: keep a fixed number of tokens per row by importance, and the window.
//! Read before this: policy/selection.hpp.  Read next: policy/any_policy.hpp.
#include <diffkv/policy/contract.hpp>
#include <diffkv/policy/selection.hpp>

namespace diffkv {

//! The `budget` most important tokens outside the window stay high, all others are pruned; thresholds
//! are not used. Of equally important tokens the earlier goes first, as for every victim.
struct static_policy {
  std::int32_t budget = 0;  //!< tokens per row outside the window, >= 0

  //! What just fits the budget.
  struct row_parameters {
    std::uint32_t key = 0;  //!< of the least important token kept
    std::int32_t first_tie =
      0;  //!< of the tokens with that key, those from this number on are kept
    bool keep_all = true;
  };

  //! @throws invalid_argument for a budget below 0
  void validate(std::int32_t) const
  {
    DIFFKV_EXPECTS(budget >= 0, "budget: " + std::to_string(budget) + " must be at least 0");
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return num_tokens;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const& row) const noexcept
  {
    std::int32_t const outside = row.num_tokens - row.window;
    if (outside <= budget) { return {}; }
    if (budget <= 0) { return {0xFFFF'FFFFu, outside + 1, false}; }
    std::uint32_t const key = kth_largest_key(row.importances, outside, budget);
    std::int32_t places     = budget;
    for (std::int32_t i = 0; i < outside; ++i) {
      places -= ordered_key(row.importances[i]) > key ? 1 : 0;
    }
    std::int32_t number = outside + 1;
    while (places > 0) {
      --number;
      places -= ordered_key(row.importances[number - 1]) == key ? 1 : 0;
    }
    return {key, number, false};
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t number,
                                                 std::int32_t, thresholds,
                                                 row_parameters const& row) const noexcept
  {
    std::uint32_t const key = ordered_key(importance);
    bool const kept = row.keep_all || key > row.key || (key == row.key && number >= row.first_tie);
    return kept ? tier::high : tier::pruned;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t,
                                                  std::int32_t) const noexcept
  {
    return importance;
  }

  //! Over budget, the less important of the leaving token and the least high one is dropped.
  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    // The window holds W of the high tokens, the leaving one included.
    std::int32_t const outside = static_cast<std::int32_t>(row.counts.high) - (row.window - 1);
    if (outside <= budget) { return {}; }
    bool const leaving_goes =
      row.leaving.present &&
      (!row.least_high.present || row.leaving.importance < row.least_high.importance);
    if (leaving_goes) { return {step_action::prune_leaving, false}; }
    return row.least_high.present ? step_decision{step_action::prune_high, false} : step_decision{};
  }
};
static_assert(is_policy_v<static_policy>);

}  // namespace diffkv
