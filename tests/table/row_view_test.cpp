// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/table/row_view.hpp>

#include <algorithm>  // min
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::candidate;
using diffkv::tier;
using diffkv::test::host_cache;

diffkv::test::host_cache_parts small_parts()
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.num_slots   = 2;
  parts.shape.num_layers  = 3;
  parts.shape.num_heads   = 2;
  parts.shape.head_dim    = 32;
  parts.shape.max_tokens  = 40;
  parts.shape.window      = 5;
  parts.shape.score_every = 2;
  parts.tiers     = diffkv::test::short_tiers(diffkv::k8v4::spec, 2, diffkv::k4v2::spec, 3, 32);
  parts.num_pages = 100;
  return parts;
}

//! Row `row` with `tokens`, position 10 * slot in the high tier and 10 * slot + 5 in the low one.
void fill(host_cache& cache, std::size_t row, diffkv::tier_counts tokens)
{
  diffkv::test::reserve_row(cache.context(), row, tokens);
  for (tier t : {tier::high, tier::low}) {
    for (std::uint32_t s = 0; s < tokens.of(t); ++s) {
      std::vector<float> const x(32, static_cast<float>(s));
      diffkv::test::write_token(cache.context(), row, t, s, x.data(), x.data(),
                                static_cast<float>(s) + 0.25f,
                                static_cast<std::int32_t>(10 * s + (t == tier::low ? 5 : 0)));
    }
  }
}
}  // namespace

TEST_CASE("row_view: runs visit every slot once and end where a page does", "[table]")
{
  host_cache cache{small_parts()};
  fill(cache, 3, {7, 8});
  diffkv::row_view const row = cache.context().row(3);
  for (tier t : {tier::high, tier::low}) {
    for (std::uint32_t most : {1u, 2u, 64u}) {
      std::uint32_t slot = 0;
      while (slot < row.state().tokens.of(t)) {
        std::uint32_t const left   = row.state().tokens.of(t) - slot;
        diffkv::page_run const run = row.run(t, slot, std::min(most, left));
        REQUIRE(run.count >= 1);
        CHECK(run.count <= std::min(most, left));
        for (std::uint32_t i = 0; i < run.count; ++i, ++slot) {
          CAPTURE(slot, most);
          CHECK(run.page.bytes == row.page_of(t, slot).bytes);
          CHECK(run.token + static_cast<int>(i) == row.token_in_page(t, slot));
        }
      }
      CHECK(slot == row.state().tokens.of(t));
    }
  }
}

TEST_CASE("row_view: a slot names one token of one page, across page boundaries", "[table]")
{
  host_cache cache{small_parts()};
  fill(cache, 3, {7, 8});
  diffkv::row_view const row = cache.context().row(3);
  CHECK(row.state().pages == diffkv::tier_counts{4, 3});
  std::set<std::pair<std::byte*, int>> places;
  for (tier t : {tier::high, tier::low}) {
    for (std::uint32_t s = 0; s < row.state().tokens.of(t); ++s) {
      CHECK(row.position(t, s) == static_cast<int>(10 * s + (t == tier::low ? 5 : 0)));
      CHECK(row.score(t, s) == static_cast<float>(s) + 0.25f);
      places.insert({row.page_of(t, s).bytes, row.token_in_page(t, s)});
    }
  }
  CHECK(places.size() == 15);
  CHECK(row.page(tier::high, 3).bytes == row.page_of(tier::high, 6).bytes);
  CHECK(row.token_in_page(tier::high, 6) == 0);
  CHECK(row.token_in_page(tier::low, 5) == 2);
}

TEST_CASE("candidate: order is by priority, then position, and none goes last", "[table]")
{
  candidate const none{};
  candidate const low{7, 0, 0.1f};
  candidate const tie{9, 1, 0.1f};
  candidate const high{1, 2, 0.2f};
  CHECK(low.before(none));
  CHECK_FALSE(none.before(low));
  CHECK_FALSE(none.before(none));
  CHECK(low.before(tie));
  CHECK_FALSE(tie.before(low));
  CHECK(tie.before(high));
  CHECK_FALSE(low.before(low));
}

TEST_CASE("may_leave: only tokens outside the window that some query has seen", "[table]")
{
  for (int window : {1, 2, 64}) {
    int const now = 100;
    CHECK(diffkv::may_leave(tier::high, now - window, now, window, 1));
    CHECK_FALSE(diffkv::may_leave(tier::high, now - window + 1, now, window, 1));
    CHECK_FALSE(diffkv::may_leave(tier::high, 0, now, window, 0));
    CHECK_FALSE(diffkv::may_leave(tier::low, 0, now, window, 0));
    CHECK(diffkv::may_leave(tier::low, now, now, window, 1));  // a low token is outside by nature
  }
}

TEST_CASE("row_state: rows, windows, candidates and query rings do not overlap", "[table]")
{
  host_cache cache{small_parts()};
  diffkv::cache_shape const& shape = cache.shape();
  std::set<std::size_t> rows;
  std::set<void*> cells;
  std::size_t expected = 0;
  for (std::uint32_t slot = 0; slot < shape.num_slots; ++slot) {
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      cells.insert(&cache.ref().layer(slot, layer));
      ++expected;
      for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
        std::size_t const row = shape.row(slot, layer, head);
        rows.insert(row);
        for (int position = 20; position < 20 + shape.window; ++position) {
          cells.insert(&cache.ref().state.window_slot(row, position));
          ++expected;
        }
        for (tier t : {tier::high, tier::low}) {
          for (std::uint32_t i = 0; i < shape.candidates_per_tier(); ++i) {
            cells.insert(cache.ref().state.candidates_of(row, t) + i);
            ++expected;
          }
        }
      }
      // A launch writes the query of t while it reads those of t - k .. t - 1.
      for (int position = 7; position <= 7 + shape.score_every; ++position) {
        for (std::uint32_t q = 0; q < shape.num_q_heads(); ++q) {
          std::size_t const at               = shape.layer_of(slot, layer);
          diffkv::query_ring_ref const& ring = cache.ref().queries;
          std::size_t const i                = ring.index(at, position, q);
          cells.insert(ring.codes_of(i));
          cells.insert(ring.largest + i);
          cells.insert(ring.lse + i);
          expected += 3;
        }
      }
    }
  }
  CHECK(rows.size() == shape.num_rows());
  CHECK(*rows.rbegin() == shape.num_rows() - 1);
  CHECK(cells.size() == expected);
  CHECK(&cache.ref().state.window_slot(4, 3) == &cache.ref().state.window_slot(4, 3 + 5));
}

TEST_CASE("cache_shape: candidates and query places follow the score lag", "[table]")
{
  diffkv::cache_shape shape{};
  for (int const k : {0, 1, 2, 4}) {
    shape.score_every = k;
    CHECK(shape.candidates_per_tier() == static_cast<std::uint32_t>(k > 1 ? k : 1));
    CHECK(shape.ring_queries() == static_cast<std::uint32_t>(k > 0 ? k + 1 : 0));
  }
}

TEST_CASE("cache_shape: extents that cannot be are refused by name", "[table]")
{
  using diffkv::test::contains;
  diffkv::cache_shape good{};
  good.max_tokens = 10;
  CHECK_NOTHROW(diffkv::validate(good));
  auto const refused = [&](auto member, auto value) {
    diffkv::cache_shape bad = good;
    bad.*member             = static_cast<std::decay_t<decltype(bad.*member)>>(value);
    try {
      diffkv::validate(bad);
    } catch (diffkv::invalid_argument const& e) {
      return std::string{e.what()};
    }
    return std::string{"accepted"};
  };
  using shape = diffkv::cache_shape;
  CHECK_THAT(refused(&shape::num_slots, 0), contains("num_slots"));
  CHECK_THAT(refused(&shape::num_layers, 0), contains("num_layers"));
  CHECK_THAT(refused(&shape::num_heads, 0), contains("num_heads"));
  CHECK_THAT(refused(&shape::group_size, 0), contains("group_size"));
  for (int const n : {0, -1, (1 << 24) + 1}) {
    CHECK_THAT(refused(&shape::max_tokens, n), contains("16777216"));
  }
  for (int const w : {0, -64}) { CHECK_THAT(refused(&shape::window, w), contains("window")); }
  for (int const k : {-1, 3, 5, 8}) {
    CHECK_THAT(refused(&shape::score_every, k), contains("0, 1, 2 or 4"));
  }
  diffkv::cache_shape wide = good;  // products that would wrap to small numbers
  wide.num_layers          = 1u << 16;
  wide.num_heads           = 1u << 16;
  CHECK_THROWS_WITH(diffkv::validate(wide), contains("32 bits"));
  wide.num_layers = 1;
  wide.group_size = 1u << 16;
  CHECK_THROWS_WITH(diffkv::validate(wide), contains("32 bits"));
}
