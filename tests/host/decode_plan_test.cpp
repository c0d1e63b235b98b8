// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Laws of the work plan, and one plan by hand.
#include <diffkv/host/decode_plan.hpp>

#include <algorithm>  // sort
#include <numeric>    // iota
#include <utility>    // pair

#include "support/catch.hpp"
#include "support/plan_case.hpp"

namespace {

using namespace diffkv;

std::vector<std::uint32_t> all_slots(std::uint32_t count)
{
  std::vector<std::uint32_t> slots(count);
  std::iota(slots.begin(), slots.end(), 0u);
  return slots;
}

tier_pages small_tiers() { return test::short_tiers(k8v4::spec, 16, k4v2::spec, 32, 64); }

//! The plan of a cache that is one row.
class plan_of_row {
 public:
  plan_of_row(row_state const& row, layer_state const& layer, std::int32_t score_every,
              decode_grid const& grid)
    : cache_{test::plan_parts({1, 1, 1, layer.num_tokens, score_every}, small_tiers())},
      work_{cache_.shape(), 1, {0, 1}, grid}
  {
    cache_.ref().state.rows[0] = row;
    cache_.ref().layer(0, 0)   = layer;
    std::uint32_t const slot   = 0;
    host::plan_decode(cache_.ref(), {&slot, nullptr, 1}, {0, 1}, work_.ref());
  }
  [[nodiscard]] decode_workspace_ref const* operator->() const { return &work_.ref(); }

 private:
  test::host_cache cache_;
  test::host_workspace work_;
};

}  // namespace

TEST_CASE("decode_plan: three rows over four warps are cut as by hand", "[host]")
{
  test::host_cache cache{test::plan_parts({1, 2, 3, 400, 2}, small_tiers())};
  // Layer 1: 33 high and 1 low tokens are 3 + 1 pages, then none, then 0 + 2 pages.
  row_state* const rows   = cache.ref().state.rows + 3;
  rows[0]                 = {{33, 1}, {3, 1}, 23};
  rows[2]                 = {{0, 33}, {1, 2}, no_slot};
  cache.ref().layer(0, 1) = {60, {50, 40, 57}};
  test::host_workspace const work{cache.shape(), 1, {1, 1}, {2, 2, 1}};
  std::uint32_t const slot = 0;
  host::plan_decode(cache.ref(), {&slot, nullptr, 1}, {1, 1}, work.ref());

  CHECK(work.ref().totals[0].empty_rows == 1);
  CHECK(work.ref().totals[0].num_rows == 3);
  // The first row catches up: its high pages cost 24, its low ones, of twice as many tokens, 36;
  // the last row's two low ones cost 24 each.
  CHECK(work.ref().totals[0].cost == 3 * 24 + 36 + 2 * 24);
  CHECK(work.ref().totals[0].catch_up == rows_catch_up::some);
  // Pages begin at 0, 24, 48, 72, 108, 132, shares at 0, 39, 78, 117: 0 | 1 2 | 3 | 4 5.
  warp_range const* const ranges     = work.ref().ranges;
  std::uint32_t const expected[4][5] = {
    {0, 0, 1, 3, 0}, {0, 1, 2, 3, 15}, {0, 3, 1, 3, 6}, {2, 0, 2, 5, 9}};
  for (int w = 0; w < 4; ++w) {
    CAPTURE(w);
    CHECK(ranges[w].index == expected[w][0]);
    CHECK(ranges[w].first_page == expected[w][1]);
    CHECK(ranges[w].num_pages == expected[w][2]);
    CHECK(ranges[w].of.row == expected[w][3]);
    CHECK(ranges[w].early == expected[w][4]);
  }
  CHECK(ranges[0].appends_after == 1);
  CHECK(ranges[1].appends_after == 0);
  CHECK(ranges[2].appends_after == warp_range::no_append);
  CHECK(ranges[3].appends_after == warp_range::no_append);
  CHECK_FALSE(ranges[0].appends_within(1));
  CHECK(ranges[0].appends_within(2));
  CHECK(ranges[1].appends_within(1));
  CHECK_FALSE(ranges[2].appends_within(8));
  CHECK_FALSE(ranges[3].appends_within(8));
  // t = 59 and layer 1: 60 mod 2 = 0. The last row was refused a slot and records nothing.
  planned_row const* const plan = work.ref().rows;
  CHECK(plan[0].high == 33);
  CHECK(plan[0].low == 1);
  CHECK((plan[0].stored == 1 + 59 % 3 && plan[0].catches_up == 1));
  CHECK((plan[1].row == 4 && plan[1].high == 0 && plan[1].low == 0));
  CHECK((plan[2].stored == 0 && plan[2].catches_up == 0));
  planned_sequence const& sequence = work.ref().sequences[0];
  CHECK((sequence.slot == 0 && sequence.num_tokens == 60 && sequence.queries.last_query == 57));
  CHECK((sequence.first_query == 57 && sequence.last_query == 59));
  CHECK((work.ref().arrivals[0] == 0 && work.ref().arrivals[1] == 0));
}

TEST_CASE("decode_plan: a row read twice is two launch rows beside each other", "[host]")
{
  plan_of_row const plan{{{40, 70}, {3, 3}, 39}, {110, {100, 64, 100}}, 0, {1, 2, 2}};
  CHECK(plan->totals[0].cost == 2 * (3 * 16 + 3 * 24));
  CHECK(plan->totals[0].catch_up == rows_catch_up::none);
  for (std::uint32_t w = 0; w < 2; ++w) {
    CHECK(plan->ranges[w].index == w);
    CHECK(plan->ranges[w].first_page == 0);
    CHECK(plan->ranges[w].num_pages == 6);
    CHECK(plan->rows[w].catches_up == 0);  // a cache without scores
  }
}

TEST_CASE("decode_plan: few pages are shared by some warps of a CTA only", "[host]")
{
  // Four pages each for two CTAs of twelve warps are 96: one less is few.
  auto const warps_with_pages = [](std::uint32_t pages) {
    std::uint32_t const tokens = 16 * pages;
    plan_of_row const plan{{{tokens, 0}, {pages, 0}, tokens - 1},
                           {static_cast<std::int32_t>(tokens), {100, 64, 100}},
                           0,
                           {2, 12, 1}};
    std::vector<std::uint32_t> found;
    for (std::uint32_t w = 0; w < 24; ++w) {
      if (plan->ranges[w].num_pages > 0) { found.push_back(w); }
    }
    return found;
  };
  CHECK(warps_with_pages(95) ==
        std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19});
  CHECK(warps_with_pages(96).size() == 24);
}

TEST_CASE("decode_plan: rows of equal cost begin and end with a CTA, and some CTAs have no share",
          "[host]")
{
  struct equal_rows {
    std::uint32_t slots, heads, high, ctas;
  };
  for (equal_rows const& rows :
       {equal_rows{1, 8, 300, 128}, equal_rows{8, 8, 300, 128}, equal_rows{32, 8, 300, 128},
        equal_rows{128, 8, 33, 128}, equal_rows{131, 1, 300, 131}, equal_rows{1, 120, 300, 132},
        equal_rows{5, 8, 300, 132}, equal_rows{1, 133, 300, 132},
        // 144 pages for each of 1,584 warps, one page less, and one more.
        equal_rows{1, 8, 16 * 28'511, 128}, equal_rows{1, 8, 16 * 28'513, 128}}) {
    for (auto const& [passes, score_every] :
         {std::pair{1u, 0}, std::pair{3u, 0}, std::pair{1u, 1}, std::pair{3u, 1}}) {
      CAPTURE(rows.slots, rows.heads, rows.high, passes, score_every);
      decode_grid const grid{132, 12, passes};
      auto const longest = static_cast<std::int32_t>(rows.high);
      test::host_cache cache{
        test::plan_parts({rows.slots, 1, rows.heads, longest, score_every}, small_tiers())};
      test::random r{5};
      test::fill_rows(cache.ref(), r, 4);
      test::make_rows_equal(cache.ref(), {rows.high, 0});
      std::vector<std::uint32_t> const slots = all_slots(rows.slots);
      batch_ref const batch{slots.data(), nullptr, rows.slots};
      test::host_workspace const memory{cache.shape(), rows.slots, {0, 1}, grid};
      decode_workspace_ref const& work = memory.ref();
      host::plan_decode(cache.ref(), batch, {0, 1}, work);
      CHECK(work.totals[0].catch_up == (score_every == 0 ? rows_catch_up::none
                                        : passes == 1    ? rows_catch_up::all
                                                         : rows_catch_up::some));
      // With much to read all CTAs do.
      sharing_grid const& sharing = work.totals[0].sharing;
      bool const is_much = work.totals[0].cost >= decode_grid::much_cost * grid.num_warps();
      CHECK(sharing.ctas == (is_much ? 132u : rows.ctas));
      CHECK(is_much ==
            (rows.high > 300 && (rows.high == 16 * 28'513 || passes > 1 || score_every > 0)));

      // Each CTA has whole rows, or a row whole CTAs.
      std::uint32_t const num_rows = rows.slots * rows.heads;
      std::uint32_t const pages    = (rows.high + 15) / 16 * passes;
      std::uint32_t read           = 0;
      for (std::uint32_t c = 0; c < grid.ctas; ++c) {
        std::uint32_t const before = read;
        for (std::uint32_t w = 0; w < grid.warps; ++w) {
          read += work.ranges[c * grid.warps + w].num_pages;
        }
        if (sharing.ctas == grid.ctas) { continue; }
        CHECK((read > before) == (c < sharing.ctas));
        if (c >= sharing.ctas) { continue; }
        if (num_rows >= sharing.ctas) {
          CHECK(read - before == num_rows / sharing.ctas * pages);
        } else if ((c + 1) % (sharing.ctas / num_rows) == 0) {
          CHECK(read % pages == 0);
        }
      }
      CHECK(read == num_rows * pages);

      // One that is longer, and all read.
      cache.ref().state.rows[num_rows / 2].tokens.low = 1;
      host::plan_decode(cache.ref(), batch, {0, 1}, work);
      CHECK(work.totals[0].sharing.ctas == 132);
    }
  }
}

TEST_CASE("decode_plan: sequences at any positions catch up at the turn of the batch's first one",
          "[host]")
{
  // Positions 40, 41, 42, 43 in layer 2 of a cache with k = 4: at 42 its turn comes.
  for (std::uint32_t first = 0; first < 4; ++first) {
    for (auto const schedule : {catch_up_schedule::by_batch, catch_up_schedule::by_position}) {
      CAPTURE(first, static_cast<int>(schedule));
      test::host_cache cache{test::plan_parts({4, 3, 1, 100, 4, schedule}, small_tiers())};
      for (std::uint32_t slot = 0; slot < 4; ++slot) {
        auto const n               = static_cast<std::int32_t>(41 + slot);
        cache.ref().layer(slot, 2) = {n, {30, 30, n - 3}};  // two queries wait
        cache.ref().state.rows[cache.shape().row(slot, 2, 0)] = {{17, 0}, {2, 0}, 16};
      }
      test::host_workspace const work{cache.shape(), 4, {2, 1}, {2, 2, 1}};
      auto const plan = [&] {
        std::vector<std::uint32_t> const slots{first, (first + 1) % 4, (first + 2) % 4,
                                               (first + 3) % 4};
        host::plan_decode(cache.ref(), {slots.data(), nullptr, 4}, {2, 1}, work.ref());
        std::vector<std::uint32_t> caught_up;
        for (std::uint32_t s = 0; s < 4; ++s) {
          if (work.ref().rows[s].catches_up != 0) { caught_up.push_back(slots[s]); }
        }
        std::sort(caught_up.begin(), caught_up.end());
        return caught_up;
      };
      using found              = std::vector<std::uint32_t>;
      bool const by_batch      = schedule == catch_up_schedule::by_batch;
      rows_catch_up const kind = !by_batch    ? rows_catch_up::some
                                 : first == 2 ? rows_catch_up::all
                                              : rows_catch_up::none;
      CHECK(plan() == (!by_batch ? found{2} : first == 2 ? found{0, 1, 2, 3} : found{}));
      CHECK(work.ref().totals[0].catch_up == kind);
      // Of sequence 0 as many queries wait as the lag ring holds.
      cache.ref().layer(0, 2).queries.last_query = 36;
      CHECK(plan() == (!by_batch ? found{0, 2} : first == 2 ? found{0, 1, 2, 3} : found{0}));
      CHECK(work.ref().sequences[(4 - first) % 4].first_query == 36);
      CHECK(work.ref().sequences[(4 - first) % 4].last_query == 40);
      // A first sequence without tokens: each goes by its own position.
      cache.ref().layer(0, 2).queries.last_query             = 39;
      cache.ref().layer(first, 2)                            = {};
      cache.ref().state.rows[cache.shape().row(first, 2, 0)] = {};
      CHECK(plan() == (first == 2 ? found{} : found{2}));
    }
  }
}

TEST_CASE("decode_plan: of a row that is read twice the first pass catches up", "[host]")
{
  plan_of_row const plan{{{40, 70}, {3, 3}, 39}, {110, {100, 64, 108}}, 1, {1, 2, 2}};
  CHECK(plan->totals[0].cost == (3 * 24 + 3 * 36) + (3 * 16 + 3 * 24));
  CHECK(plan->totals[0].catch_up == rows_catch_up::some);
  // The shares of 150 each: pages of the first pass begin at 0, 24, 48, 72, 108, 144.
  CHECK((plan->ranges[0].num_pages == 5 && plan->ranges[1].num_pages == 7));
  CHECK((plan->ranges[1].index == 0 && plan->ranges[1].first_page == 5));
  CHECK(plan->ranges[1].early == 6);
}

TEST_CASE("decode_plan: every page is read once, by shares of equal cost, in the order of the rows",
          "[host]")
{
  for (std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    test::random r{seed};
    decode_grid const grid{r.below(40) + 1, r.below(12) + 1, r.below(3) + 1};
    CAPTURE(seed, grid.ctas, grid.warps, grid.passes);
    test::host_cache cache{test::plan_parts({9, 3, 4, 300, 4}, small_tiers())};
    test::fill_rows(cache.ref(), r, 4);
    test::host_workspace const workspace{cache.shape(), 9, {0, 3}, grid};
    decode_workspace_ref const& work       = workspace.ref();
    std::vector<std::uint32_t> const slots = all_slots(9);
    host::plan_decode(cache.ref(), {slots.data(), nullptr, 9}, {0, 3}, work);

    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      warp_range const* const ranges = work.ranges + layer * grid.num_warps();
      planned_row const* const rows  = work.rows + layer * work.num_rows;
      std::uint32_t index = 0, page = 0, cost = 0;
      bool in_order = true, is_fair = true;
      auto const pages_of = [&](std::uint32_t i) {
        return cache.ref().tiers.pages_for(tier::high, rows[i].high) +
               cache.ref().tiers.pages_for(tier::low, rows[i].low);
      };
      auto const skip_read_rows = [&] {
        while (index < work.num_rows && page == pages_of(index)) {
          ++index;
          page = 0;
        }
      };
      for (std::uint32_t w = 0; w < grid.num_warps(); ++w) {
        if (ranges[w].num_pages == 0) { continue; }
        // It begins with the page that its part of the cost begins in.
        std::uint32_t const total   = work.totals[layer].cost;
        sharing_grid const& sharing = work.totals[layer].sharing;
        std::uint32_t const begin   = share_begin(
            total, sharing.share_at(w / grid.warps, w % grid.warps), sharing.num_shares());
        is_fair = is_fair && w / grid.warps < sharing.ctas && w % grid.warps < sharing.warps;
        is_fair = is_fair && cost + ranges[w].early == begin;
        skip_read_rows();
        in_order = in_order && ranges[w].index == index && ranges[w].first_page == page &&
                   ranges[w].of.row == rows[index].row;
        for (std::uint32_t i = 0; i < ranges[w].num_pages; ++i) {
          skip_read_rows();
          bool const scored    = rows[index].catches_up != 0 && index % grid.passes == 0;
          bool const high      = page < cache.ref().tiers.pages_for(tier::high, rows[index].high);
          page_cost const each = page_cost::of(16, 32, scored);
          std::uint32_t const own = high ? each.high : each.low;
          is_fair                 = is_fair && (i > 0 || ranges[w].early < own);
          cost += own;
          ++page;
        }
      }
      skip_read_rows();
      CHECK(in_order);
      CHECK(index == work.num_rows);
      CHECK(is_fair);
      CHECK(cost == work.totals[layer].cost);
    }
  }
}

TEST_CASE("decode_plan: a workspace that does not fit the call is refused by name", "[host]")
{
  using test::contains;
  test::host_cache cache{test::plan_parts({3, 4, 2, 100, 4}, small_tiers())};
  test::host_workspace const work{cache.shape(), 2, {1, 2}, {2, 2, 1}};
  std::vector<std::uint32_t> const slots = all_slots(3);
  auto const plan = [&](cache_ref const& c, batch_ref const& batch, layer_range layers) {
    host::plan_decode(c, batch, layers, work.ref());
  };
  CHECK_NOTHROW(plan(cache.ref(), {slots.data(), nullptr, 2}, {2, 1}));
  CHECK_THROWS_WITH(plan(cache.ref(), {slots.data(), nullptr, 3}, {1, 2}), contains("batch"));
  CHECK_THROWS_WITH(plan(cache.ref(), {nullptr, nullptr, 2}, {1, 2}), contains("slots"));
  for (layer_range const layers : {layer_range{0, 1}, {1, 3}, {3, 1}}) {
    CHECK_THROWS_WITH(plan(cache.ref(), {slots.data(), nullptr, 2}, layers), contains("layers"));
  }
  cache_ref other       = cache.ref();
  other.shape.num_heads = 3;
  CHECK_THROWS_WITH(plan(other, {slots.data(), nullptr, 2}, {1, 2}), contains("workspace"));
  other                 = cache.ref();
  other.shape.num_slots = 0xFFFF'FFFFu;
  CHECK_THROWS_WITH(plan(other, {slots.data(), nullptr, 2}, {1, 2}), contains("32 bits"));
}
