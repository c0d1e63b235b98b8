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

namespace detail {

//! The candidates of one tier, from the one that goes first on.
class candidate_queue {
 public:
  DIFFKV_HOST_DEVICE candidate_queue(candidate const* from, std::uint32_t count) noexcept
  {
    for (std::uint32_t i = 0; i < most; ++i) {  // all loads before the first comparison
      if (i < count) { waiting_[i] = from[i]; }
    }
  }
  //! The first of those that wait, which then waits no more; none if nobody is left.
  [[nodiscard]] DIFFKV_HOST_DEVICE candidate next() noexcept
  {
    candidate first{};
    for (std::uint32_t i = 0; i < most; ++i) {
      if (waiting_[i].before(first)) { first = waiting_[i]; }
    }
    for (std::uint32_t i = 0; i < most; ++i) {
      if (waiting_[i].slot == first.slot && waiting_[i].position == first.position) {
        waiting_[i].position = -1;
      }
    }
    return first;
  }

 private:
  static constexpr std::uint32_t most = max_score_every;
  candidate waiting_[most]{};
};

//! What a page says of a token.
struct token_label {
  std::int32_t position = -1;
  float score           = 0.0f;
};

}  // namespace detail

//! The tokens of a row that a step may move, as slots and as the policy sees them.
struct step_tokens {
  step_slots slots{};
  token_view leaving{};
  token_view least_high{};
  token_view least_low{};
};

//! Finds them. What does not depend on each other is read together: device code waits for memory about
//! as often as there are lines of comment below.
[[nodiscard]] DIFFKV_HOST_DEVICE inline step_tokens find_step_tokens(
  row_view const& row, tier_counts tokens, query_span const& queries,
  std::int32_t num_tokens) noexcept
{
  cache_ref const& cache     = *row.cache;
  std::int32_t const leaving = num_tokens - cache.shape.window;
  std::uint32_t const places = cache.state.candidates_per_tier;
  // Which slots.
  slot_index const leaving_slot =
    leaving >= 1 ? cache.state.window_slot(row.row, leaving - 1) : no_slot;
  detail::candidate_queue all_high{cache.state.candidates_of(row.row, tier::high), places};
  detail::candidate_queue all_low{cache.state.candidates_of(row.row, tier::low), places};
  candidate high = all_high.next();
  candidate low  = all_low.next();

  auto const page_of = [&](tier t, bool wanted, slot_index slot) {
    return wanted ? cache.table.entry(row.row, t, slot / cache.tiers.tokens_per_page(t)) : no_page;
  };
  auto const label_of = [&](tier t, page_id id, slot_index slot) {
    if (id == no_page) { return detail::token_label{}; }
    page_view const page{cache.pool.page(id), &cache.tiers.of(t)};
    int const token = static_cast<int>(slot % cache.tiers.tokens_per_page(t));
    return detail::token_label{page.position(token), page.score(token)};
  };
  // A token whose importance is no number, or that no query has seen, is not moved.
  auto const view_of = [&](bool present, float score, std::int32_t number) {
    std::int32_t const count = present ? queries.count(number) : 0;
    if (count <= 0) { return token_view{}; }
    float const importance = importance_of(score, count);
    return token_view{!detail::is_nan(importance), importance, number};
  };

  step_tokens found{};
  // Which pages.
  page_id const leaving_page = page_of(tier::high, leaving >= 1, leaving_slot);
  for (bool first = true;; first = false) {
    page_id const high_page =
      page_of(tier::high, high.present() && high.slot < tokens.high, high.slot);
    page_id const low_page = page_of(tier::low, low.present() && low.slot < tokens.low, low.slot);
    // What they hold.
    detail::token_label const high_label = label_of(tier::high, high_page, high.slot);
    detail::token_label const low_label  = label_of(tier::low, low_page, low.slot);
    if (first && leaving >= 1) {
      found.slots.leaving = leaving_slot;
      found.leaving =
        view_of(true, label_of(tier::high, leaving_page, leaving_slot).score, leaving);
    }
    // A token that is no longer where it was makes room for the next candidate.
    bool const high_gone = high.present() && high_label.position != high.position;
    bool const low_gone  = low.present() && low_label.position != low.position;
    if (!high_gone && high.present()) {
      found.slots.least_high = high.slot;
      found.least_high       = view_of(true, high_label.score, high.position + 1);
    }
    if (!low_gone && low.present()) {
      found.slots.least_low = low.slot;
      found.least_low       = view_of(true, low_label.score, low.position + 1);
    }
    if (!high_gone && !low_gone) { return found; }
    high = high_gone ? all_high.next() : candidate{};
    low  = low_gone ? all_low.next() : candidate{};
  }
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
  cache_ref const& cache  = *row.cache;
  row_state const state   = row.state();
  step_tokens const found = find_step_tokens(row, state.tokens, queries, num_tokens);
  step_view view{};
  view.num_tokens = num_tokens;
  view.window     = cache.shape.window;
  view.counts     = state.tokens;
  view.limits     = limits;
  view.has_low    = cache.tiers.has_low;
  view.leaving    = found.leaving;
  view.least_high = found.least_high;
  view.least_low  = found.least_low;
  return plan_moves(policy.step(view), found.slots, state, cache.tiers);
}

}  // namespace diffkv
