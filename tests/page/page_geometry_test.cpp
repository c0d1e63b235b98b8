// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "page/formats.hpp"
#include "support/catch.hpp"

#include <diffkv/page/page_layout.hpp>
#include <diffkv/page/tier_pages.hpp>

#include <algorithm>

namespace {

using diffkv::format_spec;
using diffkv::page_geometry;
using diffkv::test::contains;
using diffkv::test::describe;

// Marks the bits of one thing; counts bits that were taken already or lie outside its segment.
struct bit_count {
  std::vector<std::uint8_t> taken;  // one byte of bits per byte of the page
  int clashes = 0;

  explicit bit_count(std::uint32_t bytes) : taken(bytes, 0) {}
  void take(std::uint32_t byte, std::uint32_t shift, int bits, std::uint32_t first,
            std::uint32_t end)
  {
    for (int b = 0; b < bits; ++b) {
      std::uint32_t const bit = 8 * byte + shift + std::uint32_t(b);
      auto& cell              = taken[bit / 8];
      auto const mask         = std::uint8_t(1u << (bit % 8));
      bool const inside       = bit / 8 >= first && bit / 8 < end;
      clashes += inside && (cell & mask) == 0 ? 0 : 1;
      cell = std::uint8_t(cell | mask);
    }
  }
};

}  // namespace

TEST_CASE("page_geometry: every code, scale, score and position has a place of its own", "[page]")
{
  int const head_dim =
    GENERATE(from_range(std::begin(diffkv::test::head_dims), std::end(diffkv::test::head_dims)));
  for (format_spec const& format : diffkv::test::formats(head_dim)) {
    std::uint32_t const bytes = diffkv::best_page_bytes(head_dim, format);
    page_geometry const page  = diffkv::make_page_geometry(format, head_dim, bytes);
    bit_count bits{bytes};
    for (int token = 0; token < page.tokens_per_page; ++token) {
      for (int dim = 0; dim < head_dim; ++dim) {
        auto const key   = page.key_code(token, dim);
        auto const value = page.value_code(token, dim);
        bits.take(key.byte, key.shift, format.key.bits, page.key_codes, page.key_metadata);
        bits.take(value.byte, value.shift, format.value.bits, page.value_codes,
                  page.value_metadata);
      }
      for (int g = 0; g < format.key.groups && format.key.is_quantised(); ++g) {
        bits.take(page.key_affine(token, g), 0, 32, page.key_metadata, page.value_codes);
      }
      for (int g = 0; g < format.value.groups && format.value.is_quantised(); ++g) {
        bits.take(page.value_affine(token, g), 0, 32, page.value_metadata, page.scores);
      }
      bits.take(page.score(token), 0, 32, page.scores, page.positions);
      bits.take(page.position(token), 0, 32, page.positions, page.end);
    }
    if (bits.clashes != 0) {
      FAIL_CHECK(describe(format, head_dim) << ": " << bits.clashes << " bits clash");
    }
  }
  SUCCEED();
}

TEST_CASE("page_geometry: segments follow each other, aligned, inside the page", "[page]")
{
  for (int const head_dim : {32, 48, 64, 80, 96, 112, 128, 160, 192, 240, 256}) {
    for (format_spec const& format : diffkv::test::formats(head_dim)) {
      std::uint32_t const best = diffkv::best_page_bytes(head_dim, format);
      for (std::uint32_t const bytes : {best, best + 128, 2 * best}) {
        page_geometry const page     = diffkv::checked_page_geometry(format, head_dim, bytes);
        auto const tokens            = std::uint32_t(page.tokens_per_page);
        std::uint32_t const starts[] = {
          page.key_codes, page.key_metadata, page.value_codes, page.value_metadata,
          page.scores,    page.positions,    page.end};
        CAPTURE(describe(format, head_dim), bytes);
        REQUIRE(page.key_codes == 0);
        REQUIRE(std::is_sorted(std::begin(starts), std::end(starts)));
        for (std::uint32_t const start : starts) { REQUIRE(start % 16 == 0); }
        REQUIRE(tokens >= 16);
        REQUIRE(tokens % 16 == 0);
        REQUIRE(page.end <= bytes);
        // The whole blocks that fit are used: 16 tokens more would not.
        REQUIRE(page.end + page.end / tokens * 16 > bytes);
        REQUIRE(page.value_codes - page.key_metadata ==
                tokens * std::uint32_t(format.key.metadata_bytes()));
        REQUIRE(page.scores - page.value_metadata ==
                tokens * std::uint32_t(format.value.metadata_bytes()));
        REQUIRE(page.positions - page.scores == 4 * tokens);
        REQUIRE(page.end - page.positions == 4 * tokens);
      }
    }
  }
}

TEST_CASE("page_geometry: a lane finds scale and zero of tokens g and g + 8 in 8 aligned bytes",
          "[page]")
{
  for (format_spec const& format : diffkv::test::formats(128)) {
    page_geometry const page =
      diffkv::make_page_geometry(format, 128, diffkv::best_page_bytes(128, format));
    for (int token = 0; token + 8 < page.tokens_per_page; ++token) {
      if (token % 16 >= 8) { continue; }
      CHECK(page.score(token + 8) == page.score(token) + 4);
      CHECK(page.position(token + 8) == page.position(token) + 4);
      for (int g = 0; g < format.key.groups && format.key.is_quantised(); ++g) {
        CHECK(page.key_affine(token, g) % 8 == 0);
        CHECK(page.key_affine(token + 8, g) == page.key_affine(token, g) + 4);
      }
      for (int g = 0; g < format.value.groups && format.value.is_quantised(); ++g) {
        CHECK(page.value_affine(token, g) % 8 == 0);
        CHECK(page.value_affine(token + 8, g) == page.value_affine(token, g) + 4);
      }
    }
  }
}

TEST_CASE("page_geometry: nominal bytes count codes alone, real bytes the whole page", "[page]")
{
  auto const bytes = [](format_spec const& format, int head_dim, std::uint32_t page_bytes) {
    auto const page = diffkv::make_page_geometry(format, head_dim, page_bytes);
    return std::pair{page.nominal_bytes_per_token(), page.real_bytes_per_token()};
  };
  CHECK(bytes(diffkv::k8v4::spec, 128, 7168) == std::pair{192.0, 224.0});
  CHECK(bytes(diffkv::k4v2::spec, 128, 7168) == std::pair{96.0, 112.0});
  CHECK(bytes(diffkv::k16v16::spec, 128, 16640) == std::pair{512.0, 520.0});
  CHECK(bytes(diffkv::k8v4::spec, 64, 7168) == std::pair{96.0, 112.0});
  CHECK(bytes(diffkv::k4v2::spec, 64, 7168) == std::pair{48.0, 64.0});
  // Padding shows in real bytes alone: 80 dims are stored as 96.
  CHECK(bytes(diffkv::k8v8::spec, 80, 6656) == std::pair{160.0, 208.0});
}

TEST_CASE("page_geometry: unsupported sizes are refused by name", "[page]")
{
  using diffkv::checked_page_geometry;
  auto const k8v4 = diffkv::k8v4::spec;
  for (int const head_dim : {-16, 0, 16, 31, 72, 100, 272, 512}) {
    CHECK_THROWS_WITH(checked_page_geometry(k8v4, head_dim, 7168), contains("head_dim"));
  }
  for (std::uint32_t const bytes : {0u, 128u, 3200u, 7169u, 7200u, (1u << 20) + 128u}) {
    CHECK_THROWS_WITH(checked_page_geometry(k8v4, 128, bytes), contains("page_bytes"));
  }
  CHECK(checked_page_geometry(k8v4, 128, 3584).tokens_per_page == 16);
  CHECK_THROWS_WITH(checked_page_geometry({{8, 4}, {4}}, 64, 7168), contains("format: k8v4"));
  CHECK_THROWS_WITH(checked_page_geometry({{8, 3}, {4}}, 96, 7168), contains("format: k8v4"));
  CHECK_THROWS_WITH(checked_page_geometry({{1}, {4}}, 64, 7168), contains("format: k1v4"));
  CHECK_THROWS_WITH(checked_page_geometry({{8}, {5}}, 64, 7168), contains("format: k8v5"));
  CHECK_THROWS_WITH(checked_page_geometry({{8}, {4, 1, 0.0f}}, 64, 7168), contains("clip"));
  CHECK_THROWS_AS(checked_page_geometry(k8v4, 72, 7168), diffkv::invalid_argument);
}

TEST_CASE("page_layout: the type has the numbers of the geometry", "[page]")
{
  using layout        = diffkv::page_layout<diffkv::format<4, 2, 2, 4>, 128>;
  constexpr auto page = diffkv::make_page_geometry(
    {{4, 2}, {2, 4}}, 128, diffkv::best_page_bytes(128, format_spec{{4, 2}, {2, 4}}));
  STATIC_REQUIRE(layout::page_bytes == page.page_bytes);
  STATIC_REQUIRE(layout::tokens_per_page == page.tokens_per_page);
  STATIC_REQUIRE(layout::head_dim == 128);
  CHECK(layout::key_codes == page.key_codes);
  CHECK(layout::key_metadata == page.key_metadata);
  CHECK(layout::value_codes == page.value_codes);
  CHECK(layout::value_metadata == page.value_metadata);
  CHECK(layout::scores == page.scores);
  CHECK(layout::positions == page.positions);
  CHECK(layout::attention_bytes == page.scores);
}

TEST_CASE("tier_pages: most_pages covers every split between tiers, and one less can be short",
          "[page]")
{
  struct pair_of {
    format_spec high, low;
    std::uint32_t page_bytes;
  };
  for (auto const& [high, low, bytes] : {pair_of{diffkv::k8v4::spec, diffkv::k4v2::spec, 7168},
                                         pair_of{diffkv::k8v8::spec, diffkv::k8v4::spec, 8704},
                                         pair_of{diffkv::k4v2::spec, diffkv::k8v4::spec, 7168}}) {
    for (bool const has_low : {true, false}) {
      auto const a     = diffkv::make_page_geometry(high, 128, bytes);
      auto const tiers = has_low ? make_tier_pages(a, diffkv::make_page_geometry(low, 128, bytes))
                                 : make_tier_pages(a);
      auto const high_tokens = std::uint32_t(tiers.high.tokens_per_page);
      auto const low_tokens  = std::uint32_t(tiers.low.tokens_per_page);
      bool one_less_is_short = false;
      for (std::uint32_t tokens = 0; tokens <= 4 * high_tokens + 3; ++tokens) {
        std::uint32_t needed = 0;
        for (std::uint32_t h = 0; h <= tokens; ++h) {
          if (!has_low && h < tokens) { continue; }
          std::uint32_t const l = tokens - h;
          std::uint32_t const pages =
            (h + high_tokens - 1) / high_tokens + (has_low ? (l + low_tokens - 1) / low_tokens : 0);
          needed = std::max(needed, pages);
        }
        CAPTURE(tokens, has_low);
        CHECK(tiers.most_pages(tokens) >= needed);
        one_less_is_short = one_less_is_short || tiers.most_pages(tokens) == needed;
      }
      CHECK(one_less_is_short);
    }
  }
}
