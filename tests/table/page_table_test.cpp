// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/page/page_size.hpp>
#include <diffkv/table/page_table.hpp>

#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::format_spec;
using diffkv::page_id;
using diffkv::tier;
using diffkv::tier_pages;

//! Pages that the worst split of `tokens` tokens over the tiers takes, by trying every one, also those
//! that prune.
std::uint32_t worst_pages(tier_pages const& tiers, std::uint32_t tokens)
{
  std::uint32_t worst      = 0;
  std::uint32_t const last = tiers.has_low ? tokens : 0;
  for (std::uint32_t low = 0; low <= last; ++low) {
    for (std::uint32_t high = 0; high + low <= tokens; ++high) {
      std::uint32_t const low_pages = tiers.has_low ? tiers.pages_for(tier::low, low) : 0;
      worst = std::max(worst, tiers.pages_for(tier::high, high) + low_pages);
    }
  }
  return worst;
}

tier_pages best_tiers(format_spec high, format_spec low, int head_dim)
{
  std::uint32_t const bytes = diffkv::best_page_bytes(head_dim, high, low);
  return diffkv::make_tier_pages(diffkv::make_page_geometry(high, head_dim, bytes),
                                 diffkv::make_page_geometry(low, head_dim, bytes));
}
}  // namespace

TEST_CASE("page_table: the two ends never meet, and one entry less is sometimes short", "[table]")
{
  std::vector<tier_pages> all;
  for (int const high : {1, 2, 3, 4, 7, 16}) {
    for (int const low : {1, 2, 4, 5, 16, 17}) {
      all.push_back(
        diffkv::test::short_tiers(diffkv::k8v4::spec, high, diffkv::k4v2::spec, low, 64));
    }
  }
  for (int const head_dim : {64, 80, 128}) {
    all.push_back(best_tiers(diffkv::k8v4::spec, diffkv::k4v2::spec, head_dim));
    all.push_back(best_tiers(diffkv::k8v8::spec, diffkv::k4v4::spec, head_dim));
    all.push_back(best_tiers(diffkv::k4v4::spec, diffkv::k4v1::spec, head_dim));
  }
  for (tier_pages const& tiers : all) {
    std::uint32_t const high  = tiers.tokens_per_page(tier::high);
    std::uint32_t const low   = tiers.tokens_per_page(tier::low);
    std::uint32_t const least = std::min(high, low);
    CAPTURE(high, low);
    CHECK(tiers.most_pages(0) == 0);
    bool enough  = true;
    bool tight   = false;
    bool growing = true;
    for (std::uint32_t tokens = 1; tokens <= 4 * std::max(high, low) + 3; ++tokens) {
      std::uint32_t const most  = tiers.most_pages(tokens);
      std::uint32_t const worst = worst_pages(tiers, tokens);
      enough                    = enough && worst <= most;
      tight                     = tight || worst == most;
      growing                   = growing && most >= tiers.most_pages(tokens - 1);
    }
    CHECK(enough);
    CHECK(growing);
    // With one token to a page no split leaves a page part full, and there is one entry to spare.
    CHECK(tight == (least > 1));
  }
}

TEST_CASE("page_table: without low tier a row is as long as its tokens need", "[table]")
{
  for (int const tokens_per_page : {1, 2, 5, 16, 48}) {
    CAPTURE(tokens_per_page);
    auto const page        = diffkv::test::short_pages(diffkv::k8v4::spec, 64, tokens_per_page);
    tier_pages const tiers = diffkv::make_tier_pages(page);
    for (std::uint32_t tokens = 0; tokens <= 100; ++tokens) {
      REQUIRE(tiers.most_pages(tokens) == worst_pages(tiers, tokens));
    }
  }
}

TEST_CASE("page_table: the paper's own row length is one short where both ends are part full",
          "[table]")
{
  auto const tiers = diffkv::test::short_tiers(diffkv::k8v4::spec, 2, diffkv::k4v2::spec, 4, 64);
  CHECK(tiers.pages_for(tier::high, 7) + tiers.pages_for(tier::low, 1) == 5);
  CHECK(tiers.most_pages(8) == 5);  // 8 / 2 = 4 entries would let the ends overlap
}

TEST_CASE("page_table: high pages lie at the left end, low pages at the right", "[table]")
{
  std::vector<page_id> cells(3 * 4, diffkv::no_page);
  diffkv::page_table_ref const table{cells.data(), 4};
  for (std::uint32_t row = 0; row < 3; ++row) {
    for (std::uint32_t p = 0; p < 2; ++p) {
      table.entry(row, tier::high, p) = page_id{100 * row + p};
      table.entry(row, tier::low, p)  = page_id{100 * row + 10 + p};
    }
  }
  for (std::uint32_t row = 0; row < 3; ++row) {
    std::vector<page_id> const expected{page_id{100 * row}, page_id{100 * row + 1},
                                        page_id{100 * row + 11}, page_id{100 * row + 10}};
    CHECK(std::equal(expected.begin(), expected.end(), cells.begin() + row * 4));
  }
}

TEST_CASE("page_table: byte counts and cells of large tables do not wrap at 32 bits", "[table]")
{
  // Only addresses: row 2^20 of 8192 entries lies 32 GiB behind the first.
  std::uint32_t const entries = 8192;
  std::size_t const row       = std::size_t{1} << 20;
  std::vector<page_id> cells(entries);
  diffkv::page_table_ref const table{cells.data(), entries};
  CHECK(&table.entry(0, tier::low, 0) == cells.data() + entries - 1);
  diffkv::cache_shape shape{};
  shape.num_slots  = 1u << 16;
  shape.num_layers = 1u << 8;
  shape.num_heads  = 1u << 8;
  CHECK(shape.num_rows() == std::size_t{1} << 32);
  CHECK(shape.row((1u << 16) - 1, (1u << 8) - 1, (1u << 8) - 1) == (std::size_t{1} << 32) - 1);
  CHECK(row * entries * sizeof(page_id) == std::size_t{1} << 35);
}
