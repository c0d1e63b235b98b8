// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The paper's generation step, for any pair of limits: shared by `paper` and `relative`.
//! Read before this: policy/contract.hpp.  Read next: policy/paper.hpp.
#include <diffkv/policy/contract.hpp>

namespace diffkv::detail {

//! `classify(token) -> tier` compares one token with the limits of this step.
//! At most one token enters and one leaves each part.
//! @source DiffKV, arXiv:2412.03131, generation-phase compaction
template <class Classify>
[[nodiscard]] DIFFKV_HOST_DEVICE step_decision threshold_step(step_view const& row,
                                                              Classify const& classify) noexcept
{
  tier const leaving =
    row.leaving.present ? without_low(classify(row.leaving), row.has_low) : tier::high;
  if (leaving == tier::pruned) { return {step_action::prune_leaving, false}; }
  if (leaving == tier::low) {
    bool const prune_low = row.least_low.present && classify(row.least_low) == tier::pruned;
    return {step_action::demote_leaving, prune_low};
  }
  if (!row.least_high.present) { return {}; }
  tier const victim = without_low(classify(row.least_high), row.has_low);
  if (victim == tier::pruned) { return {step_action::prune_high, false}; }
  if (victim == tier::low) { return {step_action::demote_high, false}; }
  return {};
}

}  // namespace diffkv::detail
