// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/compaction/step_plan.hpp>
#include <diffkv/policy/paper.hpp>

#include <algorithm>  // sort
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::no_slot;
using diffkv::page_source;
using diffkv::row_step;
using diffkv::slot_index;
using diffkv::step_action;
using diffkv::tier;
using diffkv::tier_counts;

diffkv::tier_pages pages_of(int high, int low)
{
  return diffkv::test::short_tiers(diffkv::k8v4::spec, high, diffkv::k4v2::spec, low, 32);
}

//! A row as lists of names, and what a plan does to them: the meaning of the fields of row_step.
struct named_row {
  std::vector<int> high;
  std::vector<int> low;

  void apply(row_step const& plan, int new_token)
  {
    if (plan.fill_from != no_slot) { low[plan.fill_to] = low[plan.fill_from]; }
    low.resize(plan.tokens_after.low, -1);
    high.resize(plan.tokens_after.high, -1);
    if (plan.demote_from != no_slot) { low[plan.demote_to] = high[plan.demote_from]; }
    high[plan.append_slot] = new_token;
  }
};

std::vector<step_action> const all_actions{step_action::grow, step_action::prune_leaving,
                                           step_action::demote_leaving, step_action::prune_high,
                                           step_action::demote_high};
}  // namespace

TEST_CASE("plan_moves: every action leaves exactly the right tokens and no hole", "[compaction]")
{
  for (step_action const action : all_actions) {
    for (bool const prune_low : {false, true}) {
      for (slot_index leaving = 0; leaving < 4; ++leaving) {
        for (slot_index victim = 0; victim < 4; ++victim) {
          for (slot_index low_victim = 0; low_victim < 3; ++low_victim) {
            if (leaving == victim) { continue; }
            CAPTURE(static_cast<int>(action), prune_low, leaving, victim, low_victim);
            named_row row{{10, 11, 12, 13}, {20, 21, 22}};
            diffkv::row_state const state{{4, 3}, {2, 2}, no_slot};
            row_step const plan = diffkv::plan_moves(
              {action, prune_low}, {leaving, victim, low_victim}, state, pages_of(2, 2));
            std::vector<int> high = row.high;
            std::vector<int> low  = row.low;
            row.apply(plan, 99);

            bool const leaves =
              action == step_action::prune_leaving || action == step_action::demote_leaving;
            bool const demotes =
              action == step_action::demote_leaving || action == step_action::demote_high;
            if (prune_low) { low.erase(low.begin() + static_cast<int>(low_victim)); }
            if (action == step_action::grow) {
              high.push_back(99);
            } else {
              int& gone = high[leaves ? leaving : victim];
              if (demotes) { low.push_back(gone); }
              gone = 99;
            }
            std::sort(low.begin(), low.end());
            std::sort(row.low.begin(), row.low.end());
            REQUIRE(row.high == high);  // nobody else in the high part moves
            REQUIRE(row.low == low);
            REQUIRE(plan.demand() <= 2);
          }
        }
      }
    }
  }
}

TEST_CASE("plan_moves: a demoted token takes the slot of the low token it replaces", "[compaction]")
{
  diffkv::row_state const state{{4, 3}, {2, 1}, no_slot};
  row_step const plan =
    diffkv::plan_moves({step_action::demote_high, true}, {0, 2, 1}, state, pages_of(2, 3));
  CHECK(plan.demote_from == 2);
  CHECK(plan.demote_to == 1);
  CHECK(plan.append_slot == 2);
  CHECK(plan.fill_from == no_slot);
  CHECK(plan.tokens_after == tier_counts{4, 3});
  CHECK(plan.demand() == 0);
}

TEST_CASE("plan_moves: dropping the last low token moves nothing", "[compaction]")
{
  diffkv::row_state const state{{1, 3}, {1, 1}, no_slot};
  row_step const plan =
    diffkv::plan_moves({step_action::grow, true}, {no_slot, no_slot, 2}, state, pages_of(2, 3));
  CHECK(plan.fill_from == no_slot);
  CHECK(plan.tokens_after == tier_counts{2, 2});
  row_step const first =
    diffkv::plan_moves({step_action::grow, true}, {no_slot, no_slot, 0}, state, pages_of(2, 3));
  CHECK(first.fill_from == 2);
  CHECK(first.fill_to == 0);
}

TEST_CASE("plan_moves: a page is taken only if a token really needs it", "[compaction]")
{
  // high pages of 2 tokens, low pages of 3; every count around the boundaries.
  diffkv::tier_pages const tiers = pages_of(2, 3);
  for (std::uint32_t high = 1; high <= 5; ++high) {
    for (std::uint32_t low = 1; low <= 7; ++low) {
      for (step_action const action : all_actions) {
        for (bool const prune_low : {false, true}) {
          CAPTURE(high, low, static_cast<int>(action), prune_low);
          diffkv::row_state const state{{high, low}, {(high + 1) / 2, (low + 2) / 3}, no_slot};
          row_step const plan =
            diffkv::plan_moves({action, prune_low}, {0, 0, low - 1}, state, tiers);
          bool const demotes =
            action == step_action::demote_leaving || action == step_action::demote_high;
          std::uint32_t const high_after = high + (action == step_action::grow ? 1u : 0u);
          std::uint32_t const low_after  = low + (demotes ? 1u : 0u) - (prune_low ? 1u : 0u);
          REQUIRE(plan.tokens_after == tier_counts{high_after, low_after});
          bool const high_needs = (high_after + 1) / 2 > (high + 1) / 2;
          bool const low_needs  = (low_after + 2) / 3 > (low + 2) / 3;
          bool const low_spare  = (low_after + 2) / 3 < (low + 2) / 3;
          REQUIRE(plan.high_page == (!high_needs ? page_source::none
                                     : low_spare ? page_source::other_tier
                                                 : page_source::ring));
          REQUIRE(plan.low_page == (low_needs ? page_source::ring : page_source::none));
        }
      }
    }
  }
}

TEST_CASE("plan_moves: a tier's spare page serves the other before the ring is asked",
          "[compaction]")
{
  diffkv::tier_pages const tiers = pages_of(2, 3);
  // Low holds a page more than its tokens need; high is full.
  diffkv::row_state const low_spare{{4, 3}, {2, 2}, no_slot};
  row_step const grow = diffkv::plan_moves({step_action::grow, false}, {0, 0, 0}, low_spare, tiers);
  CHECK(grow.high_page == page_source::other_tier);
  CHECK(grow.demand() == 0);
  // High holds a spare page; low is full.
  diffkv::row_state const high_spare{{2, 3}, {2, 1}, no_slot};
  row_step const demote =
    diffkv::plan_moves({step_action::demote_leaving, false}, {0, 0, 0}, high_spare, tiers);
  CHECK(demote.low_page == page_source::other_tier);
  CHECK(demote.high_page == page_source::none);
  // A spare page that its own tier needs in this very step is not given away.
  diffkv::row_state const own{{4, 3}, {2, 2}, no_slot};
  row_step const both =
    diffkv::plan_moves({step_action::demote_high, false}, {0, 0, 0}, own, tiers);
  CHECK(both.low_page == page_source::none);
  CHECK(both.demand() == 0);
}

TEST_CASE("plan_moves: an empty row gets its first page from the ring", "[compaction]")
{
  row_step const first = diffkv::plan_moves({}, {}, {}, pages_of(16, 16));
  CHECK(first.append_slot == 0);
  CHECK(first.tokens_after == tier_counts{1, 0});
  CHECK(first.demand() == 1);
  diffkv::tier_pages const one_tier =
    diffkv::make_tier_pages(diffkv::test::short_pages(diffkv::k8v8::spec, 32, 2));
  CHECK(diffkv::plan_moves({}, {}, {}, one_tier).demand() == 1);
  CHECK(diffkv::plan_moves({}, {}, {{2, 0}, {1, 0}, no_slot}, one_tier).demand() == 1);
  CHECK(diffkv::plan_moves({}, {}, {{1, 0}, {1, 0}, no_slot}, one_tier).demand() == 0);
}

namespace {
//! Remembers what plan_row_step showed it; never moves anything.
struct watching_policy {
  using row_parameters    = diffkv::no_parameters;
  diffkv::step_view* seen = nullptr;

  std::int32_t prompt_queries(std::int32_t n) const noexcept { return n; }
  row_parameters prepare(diffkv::prompt_view const&) const noexcept { return {}; }
  tier classify(float, std::int32_t, std::int32_t, diffkv::thresholds,
                row_parameters const&) const noexcept
  {
    return tier::high;
  }
  float priority(float importance, std::int32_t, std::int32_t) const noexcept { return importance; }
  diffkv::step_decision step(diffkv::step_view const& view) const noexcept
  {
    *seen = view;
    return {};
  }
};

struct watched_row {
  diffkv::test::host_cache cache;

  static diffkv::test::host_cache_parts parts()
  {
    diffkv::test::host_cache_parts p{};
    p.shape.head_dim    = 32;
    p.shape.max_tokens  = 50;
    p.shape.window      = 3;
    p.shape.score_every = 2;
    p.tiers             = pages_of(4, 4);
    p.num_pages         = 30;
    return p;
  }

  //! High: positions 0 .. 5 (window 3 .. 5) with score 1 each; low: positions 20, 21 with score 2.
  watched_row() : cache{parts()}
  {
    diffkv::test::reserve_row(cache.context(), 0, {6, 2});
    std::vector<float> const x(32, 1.0f);
    for (std::uint32_t s = 0; s < 6; ++s) {
      diffkv::test::write_token(cache.context(), 0, tier::high, s, x.data(), x.data(), 1.0f,
                                static_cast<std::int32_t>(s));
      cache.ref().state.window_slot(0, static_cast<std::int32_t>(s)) = s;
    }
    for (std::uint32_t s = 0; s < 2; ++s) {
      diffkv::test::write_token(cache.context(), 0, tier::low, s, x.data(), x.data(), 2.0f,
                                static_cast<std::int32_t>(20 + s));
    }
  }

  diffkv::step_view look(diffkv::query_span queries, std::int32_t num_tokens)
  {
    diffkv::step_view view{};
    static_cast<void>(diffkv::plan_row_step(watching_policy{&view}, cache.context().row(0), queries,
                                            num_tokens, {0.5f, 0.25f}));
    return view;
  }
};
}  // namespace

TEST_CASE("plan_row_step: the policy sees N, counts, limits and the current importances",
          "[compaction]")
{
  watched_row row;
  row.cache.ref().state.candidates_of(0, tier::high)[1] = {1, 1, 7.0f};  // an old priority
  row.cache.ref().state.candidates_of(0, tier::low)[0]  = {21, 1, 0.0f};
  diffkv::query_span const queries{30, 30, 34};
  diffkv::step_view const view = row.look(queries, 7);
  CHECK(view.num_tokens == 7);
  CHECK(view.window == 3);
  CHECK(view.counts == tier_counts{6, 2});
  CHECK(view.limits.high == 0.5f);
  CHECK(view.limits.low == 0.25f);
  CHECK(view.has_low);
  CHECK(view.leaving.present);
  CHECK(view.leaving.number == 4);  // N - W, at position 3
  CHECK(view.leaving.importance == 1.0f / static_cast<float>(queries.count(4)));
  CHECK(view.least_high.present);
  CHECK(view.least_high.number == 2);
  CHECK(view.least_high.importance == 1.0f / static_cast<float>(queries.count(2)));
  CHECK(view.least_low.number == 22);
  CHECK(view.least_low.importance == 2.0f / static_cast<float>(queries.count(22)));
}

TEST_CASE("plan_row_step: no token leaves a window that is not full", "[compaction]")
{
  for (std::int32_t num_tokens = 1; num_tokens <= 4; ++num_tokens) {
    watched_row row;
    CHECK(row.look({30, 30, 34}, num_tokens).leaving.present == (num_tokens > 3));
  }
}

TEST_CASE("plan_row_step: a token that no query has seen, or whose score is NaN, is not shown",
          "[compaction]")
{
  watched_row row;
  row.cache.ref().state.candidates_of(0, tier::high)[0] = {2, 2, 0.0f};
  CHECK(row.look({6, 6, 6}, 7).leaving.present);
  CHECK_FALSE(row.look({0, 0, 4}, 7).leaving.present);  // number 4 has been seen by none
  CHECK(row.look({0, 0, 5}, 7).leaving.present);
  CHECK(row.look({6, 6, 6}, 7).least_high.present);
  CHECK_FALSE(row.look({0, 0, 3}, 7).least_high.present);

  diffkv::row_view const view = row.cache.context().row(0);
  float const not_a_number    = std::numeric_limits<float>::quiet_NaN();
  view.page_of(tier::high, 3).set_score(3, not_a_number);
  CHECK_FALSE(row.look({6, 6, 6}, 7).leaving.present);
  CHECK(row.look({6, 6, 6}, 7).least_high.present);
  view.page_of(tier::high, 2).set_score(2, not_a_number);
  CHECK_FALSE(row.look({6, 6, 6}, 7).least_high.present);
}

TEST_CASE("plan_row_step: candidates that moved since are passed over", "[compaction]")
{
  watched_row row;
  diffkv::candidate* const high = row.cache.ref().state.candidates_of(0, tier::high);
  high[0]                       = {9, 0, 0.1f};  // slot 0 holds position 0
  high[1]                       = {2, 2, 0.2f};
  CHECK(row.look({6, 6, 6}, 7).least_high.number == 3);
  high[1].slot = 6;  // beyond the part's end
  CHECK_FALSE(row.look({6, 6, 6}, 7).least_high.present);
}
