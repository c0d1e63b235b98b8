// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of one row as data: which slot the new token gets, which token moves where,
//! which pages are needed. Pure: nothing is changed, so that demand can be summed first.
//! Read before this: table/static_config.hpp.  Read next: compaction/step_record.hpp.
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

//! The tokens that a step may move.
enum class step_role : std::uint8_t { leaving, least_high, least_low };

//! One of them, as a slot and as the policy sees it.
struct step_token {
  slot_index slot = no_slot;
  token_view view{};
};

namespace detail {

//! The candidates of one tier, from the one that goes first on.
class candidate_queue {
 public:
  //! No candidates.
  candidate_queue() = default;
  DIFFKV_HOST_DEVICE candidate_queue(candidate const* from, std::uint32_t count) noexcept
  {
    struct alignas(16) all_places {
      candidate at[most];
    };
    all_places all{};
    if (count == most && reinterpret_cast<std::uintptr_t>(from) % alignof(all_places) == 0) {
      all = *reinterpret_cast<all_places const*>(from);  // three loads in place of twelve
    } else {
      for (std::uint32_t i = 0; i < most; ++i) {
        if (i < count) { all.at[i] = from[i]; }
      }
    }
    auto const& waiting = all.at;
    for (std::uint32_t i = 0; i < most; ++i) {
      if (waiting[i].present()) { keys_[i] = key_of(waiting[i]); }
      slots_[i] = waiting[i].slot;
    }
  }
  //! The first of those that wait, which then waits no more; none if nobody is left. The priority is
  //! not given.
  [[nodiscard]] DIFFKV_HOST_DEVICE candidate next() noexcept
  {
    std::uint64_t first = nobody;
    for (std::uint32_t i = 0; i < most; ++i) { first = min_of(first, keys_[i]); }
    candidate found{};
    if (first == nobody) { return found; }
    found.position = static_cast<std::int32_t>(first & 0xFFFF'FFFFu);
    for (std::uint32_t i = most; i > 0; --i) {
      if (keys_[i - 1] == first) { found.slot = slots_[i - 1]; }
    }
    for (std::uint32_t i = 0; i < most; ++i) {
      if (keys_[i] == first && slots_[i] == found.slot) { keys_[i] = nobody; }
    }
    return found;
  }

 private:
  static constexpr std::uint32_t most   = max_score_every;
  static constexpr std::uint64_t nobody = ~std::uint64_t{0};

  //! Ordered as candidate::before orders: by priority, then by position.
  [[nodiscard]] static DIFFKV_HOST_DEVICE std::uint64_t key_of(candidate const& c) noexcept
  {
    std::uint32_t const bits     = float_bits(add_rn(c.priority, 0.0f));  // -0 equals +0
    std::uint32_t const priority = (bits & 0x8000'0000u) != 0 ? ~bits : bits | 0x8000'0000u;
    return std::uint64_t{priority} << 32 | static_cast<std::uint32_t>(c.position);
  }

  std::uint64_t keys_[most]{nobody, nobody, nobody, nobody};
  slot_index slots_[most]{};
};
static_assert(max_score_every == 4);

}  // namespace detail

//! Who may be the token of a role: the leaving token, or the candidates of a tier.
class step_search {
 public:
  //! Nobody.
  step_search() = default;
  //! @param num_tokens  N of the row's layer, the token being reserved included
  DIFFKV_HOST_DEVICE step_search(step_role role, row_view const& row,
                                 std::int32_t num_tokens) noexcept
    : role_{role}
  {
    cache_ref const& cache = *row.cache;
    if (role == step_role::leaving) {
      std::int32_t const position = num_tokens - cache.shape.window - 1;
      if (position >= 0) { next_ = {position, cache.state.window_slot(row.row, position), 0.0f}; }
    } else {
      waiting_ = {cache.state.candidates_of(row.row, tier_of_role()),
                  cache.state.candidates_per_tier};
      next_    = waiting_.next();
    }
  }
  //! Looks at the pages; the slot is none if there is no such token.
  //! @param tokens   of the row
  //! @param queries  of its layer
  [[nodiscard]] DIFFKV_HOST_DEVICE step_token find(row_view const& row, tier_counts tokens,
                                                   query_span const& queries) noexcept
  {
    cache_ref const& cache = *row.cache;
    tier const t           = tier_of_role();
    // A copy, not a reference to one of the two: device code then keeps all of it in registers.
    page_geometry geometry = cache.tiers.low;
    if (t == tier::high) { geometry = cache.tiers.high; }
    auto const tokens_per_page = static_cast<std::uint32_t>(geometry.tokens_per_page);
    while (next_.present()) {
      std::int32_t position = -1;
      float score           = 0.0f;
      if (next_.slot < tokens.of(t)) {
        page_id const id = cache.table.entry(row.row, t, next_.slot / tokens_per_page);
        page_view const page{cache.pool.page(id), &geometry};
        auto const token = static_cast<int>(next_.slot % tokens_per_page);
        score            = page.score(token);
        if (role_ != step_role::leaving) { position = page.position(token); }
      }
      // A candidate that is no longer where it was makes room for the next one.
      if (role_ == step_role::leaving || position == next_.position) {
        std::int32_t const number = next_.position + 1;
        std::int32_t const count  = queries.count(number);
        step_token found{next_.slot, {}};
        // A token whose importance is no number, or that no query has seen, is not moved.
        if (count > 0) {
          float const importance = importance_of(score, count);
          found.view             = {!detail::is_nan(importance), importance, number};
        }
        return found;
      }
      next_ = waiting_.next();
    }
    return {};
  }

 private:
  [[nodiscard]] DIFFKV_HOST_DEVICE tier tier_of_role() const noexcept
  {
    return role_ == step_role::least_low ? tier::low : tier::high;
  }

  step_role role_ = step_role::leaving;
  candidate next_{};
  detail::candidate_queue waiting_{};
};

//! Finds one of the tokens that a step may move; its slot is none if there is no such token.
//! @param tokens  of the row
//! @param queries, num_tokens  of its layer; num_tokens: N, the token being reserved included
[[nodiscard]] DIFFKV_HOST_DEVICE inline step_token find_step_token(step_role role,
                                                                   row_view const& row,
                                                                   tier_counts tokens,
                                                                   query_span const& queries,
                                                                   std::int32_t num_tokens) noexcept
{
  return step_search{role, row, num_tokens}.find(row, tokens, queries);
}

//! Which token a policy that decides about the leaving token first looks at then; leaving: none.
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE step_role role_after_leaving(Policy const& policy,
                                                              step_view view) noexcept
{
  static_assert(decides_leaving_first_v<Policy>);
  view.least_high = view.least_low = {};
  switch (policy.step(view).action) {
    case step_action::prune_leaving:
      return step_role::leaving;
    case step_action::demote_leaving:
      return step_role::least_low;
    default:
      return step_role::least_high;
  }
}

//! What a policy sees before the least tokens are known.
[[nodiscard]] DIFFKV_HOST_DEVICE inline step_view view_of_leaving(
  step_token const& leaving, row_state const& row, tier_pages const& tiers, std::int32_t window,
  std::int32_t num_tokens, thresholds limits) noexcept
{
  step_view view{};
  view.num_tokens = num_tokens;
  view.window     = window;
  view.counts     = row.tokens;
  view.limits     = limits;
  view.has_low    = tiers.has_low;
  view.leaving    = leaving.view;
  return view;
}

//! Asks the policy, knowing the tokens that may move.
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE row_step
plan_found_tokens(Policy const& policy, step_token const& leaving, step_token const& least_high,
                  step_token const& least_low, row_state const& row, tier_pages const& tiers,
                  std::int32_t window, std::int32_t num_tokens, thresholds limits) noexcept
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  step_view view  = view_of_leaving(leaving, row, tiers, window, num_tokens, limits);
  view.least_high = least_high.view;
  view.least_low  = least_low.view;
  return plan_moves(policy.step(view), {leaving.slot, least_high.slot, least_low.slot}, row, tiers);
}

//! Asks the policy about one row and plans the moves.
//! @param num_tokens  N: the token being reserved included
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE row_step plan_row_step(Policy const& policy, row_view const& row,
                                                        query_span const& queries,
                                                        std::int32_t num_tokens,
                                                        thresholds limits) noexcept
{
  row_state const state = row.state();
  auto const find       = [&](step_role role) {
    return find_step_token(role, row, state.tokens, queries, num_tokens);
  };
  return plan_found_tokens(policy, find(step_role::leaving), find(step_role::least_high),
                           find(step_role::least_low), state, row.cache->tiers,
                           row.cache->shape.window, num_tokens, limits);
}

}  // namespace diffkv
