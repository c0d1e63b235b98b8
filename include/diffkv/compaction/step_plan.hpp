// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of one row as data: which slot the new token gets, which token moves where,
//! which pages are needed. Pure: nothing is changed, so that demand can be summed first.
//! Read before this: table/static_config.hpp.  Read next: attention/softmax_state.hpp.
#include <diffkv/policy/contract.hpp>
#include <diffkv/table/row_view.hpp>

namespace diffkv {

//! Where a tier's next page comes from.
enum class page_source : std::uint8_t {
  none,        //!< no new page is needed
  other_tier,  //!< the row's own empty page of the other tier: any page can hold any format
  ring         //!< a free page must be claimed
};

struct row_step {
  slot_index append_slot = no_slot;  //!< high slot of the new token
  slot_index demote_from = no_slot;  //!< high slot whose token goes low, or no_slot
  slot_index demote_to   = no_slot;  //!< its low slot
  slot_index fill_from   = no_slot;  //!< low slot whose token fills the hole at fill_to, or no_slot
  slot_index fill_to     = no_slot;
  tier_counts tokens_after{};
  page_source high_page = page_source::none;
  page_source low_page  = page_source::none;

  //! Pages to claim from the ring: at most one per tier.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t demand() const noexcept
  {
    return (high_page == page_source::ring ? 1u : 0u) + (low_page == page_source::ring ? 1u : 0u);
  }
};

//! The tokens that a step may move, as slots.
struct step_slots {
  slot_index leaving    = no_slot;
  slot_index least_high = no_slot;
  slot_index least_low  = no_slot;
};

//! Turns a decision into slots and pages. Freed slots are filled by incoming tokens, so that no part
//! has a hole; a low token dropped without an entry is replaced by the part's last one.
//! @pre  the decision names only tokens that are present
[[nodiscard]] DIFFKV_HOST_DEVICE inline row_step plan_moves(step_decision decision,
                                                            step_slots const& slots,
                                                            row_state const& row,
                                                            tier_pages const& tiers) noexcept
{
  row_step plan{};
  plan.tokens_after = row.tokens;
  switch (decision.action) {
    case step_action::grow:
      plan.append_slot = plan.tokens_after.high++;
      break;
    case step_action::prune_leaving:
      plan.append_slot = slots.leaving;
      break;
    case step_action::demote_leaving:
      plan.append_slot = plan.demote_from = slots.leaving;
      break;
    case step_action::prune_high:
      plan.append_slot = slots.least_high;
      break;
    case step_action::demote_high:
      plan.append_slot = plan.demote_from = slots.least_high;
      break;
  }
  if (plan.demote_from != no_slot) {
    plan.demote_to = decision.prune_low ? slots.least_low : plan.tokens_after.low++;
  } else if (decision.prune_low) {
    slot_index const last = --plan.tokens_after.low;
    if (last != slots.least_low) {
      plan.fill_from = last;
      plan.fill_to   = slots.least_low;
    }
  }
  auto const source = [&](tier t, tier other) {
    if (tiers.pages_for(t, plan.tokens_after.of(t)) <= row.pages.of(t)) {
      return page_source::none;
    }
    bool const spare = tiers.pages_for(other, plan.tokens_after.of(other)) < row.pages.of(other);
    return spare ? page_source::other_tier : page_source::ring;
  };
  plan.high_page = source(tier::high, tier::low);
  plan.low_page  = tiers.has_low ? source(tier::low, tier::high) : page_source::none;
  return plan;
}

//! Asks the policy about one row and plans the moves.
//! @param num_tokens  N: the token being reserved included
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE row_step plan_row_step(Policy const& policy, row_view const& row,
                                                        query_span const& queries,
                                                        std::int32_t num_tokens,
                                                        thresholds limits) noexcept
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  cache_ref const& cache = *row.cache;
  step_slots slots{};
  step_view view{};
  view.num_tokens = num_tokens;
  view.window     = cache.shape.window;
  view.counts     = row.state().tokens;
  view.limits     = limits;
  view.has_low    = cache.tiers.has_low;

  // A token whose importance is no number, or that no query has seen, is not moved.
  auto const token = [&](tier t, slot_index slot, std::int32_t number) {
    std::int32_t const count = queries.count(number);
    if (count <= 0) { return token_view{}; }
    float const importance = importance_of(row.score(t, slot), count);
    return token_view{!detail::is_nan(importance), importance, number};
  };
  std::int32_t const leaving = num_tokens - cache.shape.window;
  if (leaving >= 1) {
    slots.leaving = cache.state.window_slot(row.row, leaving - 1);
    view.leaving  = token(tier::high, slots.leaving, leaving);
  }
  candidate const high = row.least(tier::high);
  if (high.present()) {
    slots.least_high = high.slot;
    view.least_high  = token(tier::high, high.slot, high.position + 1);
  }
  candidate const low = row.least(tier::low);
  if (low.present()) {
    slots.least_low = low.slot;
    view.least_low  = token(tier::low, low.slot, low.position + 1);
  }
  return plan_moves(policy.step(view), slots, row.state(), cache.tiers);
}

}  // namespace diffkv
