// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Single generation steps of a row laid out by hand: who leaves, what travels with it.
#include <diffkv/policy/artifact.hpp>
#include <diffkv/policy/paper.hpp>

#include "support/catch.hpp"
#include "support/laid_out_row.hpp"

namespace {
using diffkv::paper_policy;
using diffkv::step_action;
using diffkv::step_decision;
using diffkv::thresholds;
using diffkv::tier;
using diffkv::test::host_cache;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

using laid_out  = diffkv::test::laid_out_row;
using parts_map = std::map<int, float>;
thresholds const usual{1.0f, 0.02f};  // at N = 100: 0.01 and 0.0002
laid_out::tokens const start_high{{10, 0.5f}, {11, 0.005f}, {12, 0.3f}};

//! Does what it is told; sees nothing.
struct scripted_policy {
  using row_parameters = diffkv::no_parameters;
  step_decision decision{};

  std::int32_t prompt_queries(std::int32_t n) const noexcept { return n; }
  row_parameters prepare(diffkv::prompt_view const&) const noexcept { return {}; }
  tier classify(float, std::int32_t, std::int32_t, thresholds, row_parameters const&) const noexcept
  {
    return tier::high;
  }
  float priority(float importance, std::int32_t, std::int32_t) const noexcept { return importance; }
  step_decision step(diffkv::step_view const&) const noexcept { return decision; }
};
}  // namespace

TEST_CASE("step: a leaving token that stays high sends the least important high one low", "[host]")
{
  laid_out row{start_high, {{5, 0.001f}}, 0.02f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {12, 0.3f}, {97, 0.02f}});
  CHECK(row.part(tier::low) == parts_map{{5, 0.001f}, {11, 0.005f}});
  CHECK(row.count(tier::high) == 5);
}

TEST_CASE("step: the least important high token is pruned if it is below the lower limit", "[host]")
{
  laid_out row{{{10, 0.5f}, {11, 0.0001f}, {12, 0.3f}}, {{5, 0.001f}}, 0.02f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {12, 0.3f}, {97, 0.02f}});
  CHECK(row.part(tier::low) == parts_map{{5, 0.001f}});
}

TEST_CASE("step: a leaving token that goes low pushes out a low one below the limit", "[host]")
{
  laid_out row{start_high, {{5, 0.001f}, {6, 0.0001f}}, 0.005f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {11, 0.005f}, {12, 0.3f}});
  CHECK(row.part(tier::low) == parts_map{{5, 0.001f}, {97, 0.005f}});
  // It sits in the very slot that was freed.
  CHECK(row.cache->context().row(0).position(tier::low, 1) == 97);
}

TEST_CASE("step: a leaving token that goes low beside important ones takes a new slot", "[host]")
{
  laid_out row{start_high, {{5, 0.001f}, {6, 0.0003f}}, 0.005f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::low) == parts_map{{5, 0.001f}, {6, 0.0003f}, {97, 0.005f}});
}

TEST_CASE("step: a leaving token below the lower limit is dropped and nobody else is touched",
          "[host]")
{
  laid_out row{start_high, {{5, 0.00001f}}, 0.00001f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {11, 0.005f}, {12, 0.3f}});
  CHECK(row.part(tier::low) == parts_map{{5, 0.00001f}});
  CHECK(row.count(tier::high) == 5);  // the new token took its slot
}

TEST_CASE("step: nobody leaves where the least important high token is above the limit", "[host]")
{
  laid_out row{{{10, 0.5f}, {11, 0.011f}}, {{5, 0.00001f}}, 0.02f, usual};
  row.step(paper_policy{});
  CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {11, 0.011f}, {97, 0.02f}});
  CHECK(row.part(tier::low) == parts_map{{5, 0.00001f}});
  CHECK(row.count(tier::high) == 5);
}

TEST_CASE("step: importances on a threshold are low, as at the prompt", "[host]")
{
  auto const where = [](float leaving) {
    laid_out row{{}, {}, leaving, {25.0f, 6.25f}};  // 0.25 and 0.0625 at N = 100
    row.step(paper_policy{});
    return row.part(tier::high).count(97) != 0  ? tier::high
           : row.part(tier::low).count(97) != 0 ? tier::low
                                                : tier::pruned;
  };
  CHECK(where(0.25f) == tier::low);
  CHECK(where(std::nextafter(0.25f, 1.0f)) == tier::high);
  CHECK(where(0.0625f) == tier::low);
  CHECK(where(std::nextafter(0.0625f, 0.0f)) == tier::pruned);
  CHECK(where(0.0f) == tier::pruned);
}

TEST_CASE("step: a token whose score is NaN is kept, and no victim before finite ones", "[host]")
{
  laid_out leaving{start_high, {}, not_a_number, usual};
  leaving.step(paper_policy{});
  CHECK(std::isnan(leaving.part(tier::high).at(97)));
  CHECK(leaving.part(tier::low) == parts_map{{11, 0.005f}});

  for (int run = 0; run < 3; ++run) {
    laid_out stored{{{10, not_a_number}, {11, 0.005f}, {12, not_a_number}}, {}, 0.02f, usual};
    stored.step(paper_policy{});
    CHECK(stored.part(tier::low) == parts_map{{11, 0.005f}});
    CHECK(stored.part(tier::high).count(10) + stored.part(tier::high).count(12) == 2);
  }
  laid_out low{start_high, {{5, not_a_number}, {6, 0.0001f}}, 0.005f, usual};
  low.step(paper_policy{});
  CHECK(low.part(tier::low).count(5) == 1);
  CHECK(low.part(tier::low).count(6) == 0);

  laid_out only{{{10, not_a_number}}, {{5, not_a_number}}, 0.02f, usual};
  only.step(diffkv::artifact_policy{});
  CHECK(only.part(tier::high).size() == 2);
  CHECK(only.part(tier::low).size() == 1);
}

TEST_CASE("step: of equally important tokens the one with the lowest position goes", "[host]")
{
  // 5 high tokens in any order of slots and pages, alone and as one of 64 sequences.
  diffkv::test::random random{41};
  laid_out::tokens high{{10, 0.25f}, {11, 0.25f}, {12, 0.25f}, {13, 0.25f}, {14, 0.25f}};
  for (int run = 0; run < 20; ++run) {
    diffkv::test::shuffle(high.data(), 5, random);
    for (std::uint32_t const batch : {1u, 64u}) {
      laid_out row{high, {}, 0.6f, {50.0f, 0.0f}, batch};  // 0.5: high tokens below it go low
      row.step(paper_policy{});
      for (std::size_t r = 0; r < batch; ++r) {
        REQUIRE(row.part(tier::low, r) == parts_map{{10, 0.25f}});
      }
    }
  }
}

TEST_CASE("step: the artifact's step prunes or demotes the least important high token", "[host]")
{
  diffkv::artifact_policy const policy{};
  SECTION("below the lower limit and below the least low one: pruned")
  {
    laid_out row{{{10, 0.5f}, {11, 0.0001f}}, {{5, 0.001f}}, 0.5f, usual};
    row.step(policy);
    CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {97, 0.5f}});
    CHECK(row.part(tier::low) == parts_map{{5, 0.001f}});
  }
  SECTION("below the lower limit, but the least low one is less: takes its slot")
  {
    laid_out row{{{10, 0.5f}, {11, 0.0001f}}, {{5, 0.00005f}, {6, 0.1f}}, 0.5f, usual};
    row.step(policy);
    CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {97, 0.5f}});
    CHECK(row.part(tier::low) == parts_map{{6, 0.1f}, {11, 0.0001f}});
  }
  SECTION("between the limits: goes low into a new slot")
  {
    laid_out row{start_high, {{5, 0.001f}}, 0.5f, usual};
    row.step(policy);
    CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {12, 0.3f}, {97, 0.5f}});
    CHECK(row.part(tier::low) == parts_map{{5, 0.001f}, {11, 0.005f}});
  }
  SECTION("above the upper limit: the high part grows, the leaving token is not classified")
  {
    laid_out row{{{10, 0.5f}, {11, 0.02f}}, {{5, 0.00001f}}, 0.0f, usual};
    row.step(policy);
    CHECK(row.part(tier::high) == parts_map{{10, 0.5f}, {11, 0.02f}, {97, 0.0f}});
    CHECK(row.part(tier::low) == parts_map{{5, 0.00001f}});
  }
}

TEST_CASE("step: a token removed from the middle is replaced by the part's last, whole", "[host]")
{
  laid_out::tokens const six{{10, 1.f}, {11, 2.f}, {12, 3.f}, {13, 4.f}, {14, 5.f}, {15, 6.f}};
  for (std::size_t victim = 0; victim < 6; ++victim) {
    CAPTURE(victim);
    auto low           = six;
    low[victim].second = 0.5f;  // the least
    laid_out row{{{9, 1.0f}}, low, 1.0f, usual};
    row.step(scripted_policy{{step_action::grow, true}});
    parts_map expected(low.begin(), low.end());
    expected.erase(10 + static_cast<int>(victim));
    CHECK(row.part(tier::low) == expected);
    CHECK(row.count(tier::low) == 5);
    // 6 tokens took two pages of 4; 5 still do.
    CHECK(row.cache->ref().state.rows[0].pages.low == 2);
  }
}

TEST_CASE("step: an emptied low page is kept and serves the high part next", "[host]")
{
  laid_out::tokens low{{1, 1.f}, {2, 2.f}, {3, 3.f}, {4, 4.f}, {5, 5.f}};
  laid_out row{{{9, 1.0f}}, low, 1.0f, usual};  // 3 high of 4 per page; low 5 = 2 pages
  std::uint64_t const free = row.cache->ref().ring.num_free();
  auto const pages         = [&] { return row.cache->ref().state.rows[0].pages; };
  row.step(scripted_policy{{step_action::grow, true}});  // high 4, low 4: a spare low page
  CHECK(pages() == diffkv::tier_counts{1, 2});
  row.step(scripted_policy{{step_action::grow, false}});  // high 5 needs a page
  CHECK(pages() == diffkv::tier_counts{2, 1});
  CHECK(row.cache->ref().ring.num_free() == free);
  CHECK(row.part(tier::low).size() == 4);
  row.step(scripted_policy{{step_action::demote_high, false}});  // low 5 needs one: from the ring
  CHECK(pages() == diffkv::tier_counts{2, 2});
  CHECK(row.cache->ref().ring.num_free() == free - 1);
}

TEST_CASE("demote_token: requantising stays within half a step of both formats", "[host]")
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.head_dim   = 128;
  parts.shape.max_tokens = 10;
  parts.tiers     = diffkv::test::short_tiers(diffkv::k8v4::spec, 16, diffkv::k4v2::spec, 16, 128);
  parts.num_pages = 4;
  host_cache cache{parts};
  diffkv::test::reserve_row(cache.context(), 0, {2, 2});
  std::vector<float> ramp(128);
  for (std::size_t d = 0; d < 128; ++d) { ramp[d] = static_cast<float>(d) / 127.0f; }
  std::vector<float> const fives(128, 5.0f);
  diffkv::test::write_token(cache.context(), 0, tier::high, 0, ramp.data(), ramp.data(), 0.75f, 6);
  diffkv::test::write_token(cache.context(), 0, tier::high, 1, fives.data(), fives.data(), 2.5f, 3);
  diffkv::host::demote_token(cache.context(), cache.context().row(0), 0, 1);
  diffkv::host::demote_token(cache.context(), cache.context().row(0), 1, 0);
  auto const keys   = diffkv::test::read_keys(cache.context(), 0, tier::low);
  auto const values = diffkv::test::read_values(cache.context(), 0, tier::low);
  for (std::size_t d = 0; d < 128; ++d) {
    CHECK(std::fabs(keys[128 + d] - ramp[d]) <= 0.037f);
    CHECK(std::fabs(values[128 + d] - ramp[d]) <= 0.201f);
    CHECK(keys[d] == 5.0f);
    CHECK(values[d] == 5.0f);
  }
  CHECK(cache.context().row(0).score(tier::low, 1) == 0.75f);
  CHECK(cache.context().row(0).position(tier::low, 1) == 6);
  CHECK(cache.context().row(0).score(tier::low, 0) == 2.5f);
}
