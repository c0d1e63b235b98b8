// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention against f64 over every format, head size, group, length, split and conditioning.
#include "support/decode_rows.hpp"

#include <algorithm>

#include "support/catch.hpp"

namespace {
using diffkv::attention_options;
using diffkv::conditioning;
using diffkv::format_spec;
using diffkv::tier_counts;
using diffkv::test::decode_rows;
using diffkv::test::difference;
using diffkv::test::errors_of;
using diffkv::test::host_cache;

// f32 sums of some hundred terms of size 1; docs/numerics.md, "Attention".
constexpr double tolerance = 1e-4;

//! Real pages of the two formats; room for `num_slots` sequences of `max_tokens`.
diffkv::test::host_cache_parts parts_of(format_spec high, format_spec low, int head_dim,
                                        std::uint32_t num_slots, std::uint32_t num_heads,
                                        std::uint32_t group_size, int max_tokens)
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.num_slots  = num_slots;
  parts.shape.num_heads  = num_heads;
  parts.shape.group_size = group_size;
  parts.shape.head_dim   = head_dim;
  parts.shape.max_tokens = max_tokens;
  auto const bytes       = static_cast<std::uint32_t>(
    std::max(diffkv::bytes_per_block(high, head_dim), diffkv::bytes_per_block(low, head_dim)));
  auto const page = diffkv::detail::round_up(bytes, std::uint32_t{diffkv::page_alignment});
  parts.tiers     = diffkv::make_tier_pages(diffkv::make_page_geometry(high, head_dim, page),
                                            diffkv::make_page_geometry(low, head_dim, page));
  parts.num_pages =
    parts.tiers.most_pages(static_cast<std::uint32_t>(max_tokens)) * num_slots * num_heads;
  return parts;
}

std::vector<format_spec> all_formats()
{
  std::vector<format_spec> all;
  for (int const key : {16, 8, 4, 2}) {
    for (int const value : {16, 8, 4, 2, 1}) { all.push_back({{key, 1}, {value, 1}}); }
  }
  return all;
}
}  // namespace

TEST_CASE("decode_attention: equals f64 for every format, head size, group and length", "[host]")
{
  std::uint64_t const seed = 11;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  auto const formats = all_formats();
  std::vector<std::uint32_t> const groups{1, 2, 3, 4, 5, 7, 8};
  int number = 0;
  for (format_spec const& high : formats) {
    for (int const head_dim : {64, 80, 96, 112, 128, 256}) {
      // Another low format and group for each, so that all pairs of axes are met.
      format_spec const low = formats[static_cast<std::size_t>(number * 7 + 3) % formats.size()];
      std::uint32_t const group = groups[static_cast<std::size_t>(number) % groups.size()];
      ++number;
      auto parts    = parts_of(high, low, head_dim, 6, 1, group, 200);
      auto const th = parts.tiers.tokens_per_page(diffkv::tier::high);
      auto const tl = parts.tiers.tokens_per_page(diffkv::tier::low);
      host_cache cache{parts};
      cache.shuffle_pages(random);
      std::vector<tier_counts> const lengths{{0, 0},       {1, 0},       {th - 1, 1},
                                             {th, tl - 1}, {th + 1, tl}, {0, tl + 1}};
      std::vector<std::uint32_t> slots;
      for (std::uint32_t s = 0; s < 6; ++s) {
        slots.push_back(s);
        fill_row(cache.context(), s, 0, 0, lengths[s], random);
      }
      auto const query = random.floats(6 * group * static_cast<std::size_t>(head_dim), -2.0f, 2.0f);
      attention_options const options = diffkv::test::default_options(head_dim);
      auto const d                    = decode_rows(cache.context(), slots, 0, options, query);
      auto const errors               = errors_of(d, cache.context(), slots, 0, options, query);
      CAPTURE(name(high), name(low), head_dim, group);
      CHECK(errors.out <= tolerance);
      CHECK(errors.lse <= tolerance);
    }
  }
}

TEST_CASE("decode_attention: groups of scales and clipped ranges are decoded as stored", "[host]")
{
  std::uint64_t const seed = 12;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  for (int const groups : {1, 2, 4}) {
    for (float const clip : {1.0f, 0.8f}) {
      CAPTURE(groups, clip);
      format_spec const high{{8, groups, clip}, {4, groups, clip}};
      format_spec const low{{4, groups, clip}, {2, groups, clip}};
      host_cache cache{parts_of(high, low, 128, 1, 2, 3, 120)};
      for (std::uint32_t head = 0; head < 2; ++head) {
        fill_row(cache.context(), 0, 0, head, {50, 60}, random);
      }
      auto const query   = random.floats(6 * 128, -2.0f, 2.0f);
      auto const options = diffkv::test::default_options(128);
      auto const errors  = errors_of(decode_rows(cache.context(), {0}, 0, options, query),
                                     cache.context(), {0}, 0, options, query);
      CHECK(errors.out <= tolerance);
      CHECK(errors.lse <= tolerance);
    }
  }
}

TEST_CASE("decode_attention: pages at every boundary, with whatever lies behind them", "[host]")
{
  std::uint64_t const seed = 13;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  for (int const head_dim : {64, 128}) {
    auto parts = parts_of(diffkv::k8v4::spec, diffkv::k4v2::spec, head_dim, 30, 1, 2, 100);
    parts.num_pages += 1;
    host_cache cache{parts};
    auto const th = parts.tiers.tokens_per_page(diffkv::tier::high);
    auto const tl = parts.tiers.tokens_per_page(diffkv::tier::low);
    // A page that nobody owns, full of 60000, stands behind the last one used of every row.
    diffkv::page_id const poison = *cache.ref().ring.ids;
    *cache.ref().ring.head += 1;
    std::vector<float> const large(static_cast<std::size_t>(head_dim), 60000.0f);
    for (int token = 0; token < static_cast<int>(th); ++token) {
      std::byte* const page = cache.ref().pool.page(poison);
      cache.context().high.write_key(page, token, large.data());
      cache.context().high.write_value(page, token, large.data());
    }
    std::vector<std::uint32_t> slots;
    for (std::uint32_t const high : {0u, 1u, th - 1, th, th + 1, 2 * th}) {
      for (std::uint32_t const low : {0u, 1u, tl - 1, tl, tl + 1}) {
        auto const slot = static_cast<std::uint32_t>(slots.size());
        slots.push_back(slot);
        fill_row(cache.context(), slot, 0, 0, {high, low}, random);
        tier_counts const pages = cache.ref().state.rows[slot].pages;
        CHECK(pages == tier_counts{(high + th - 1) / th, (low + tl - 1) / tl});
        for (std::uint32_t e = pages.high; e < cache.ref().table.row_entries - pages.low; ++e) {
          cache.ref().table.entry(slot, diffkv::tier::high, e) = poison;
        }
      }
    }
    auto const query   = random.floats(30 * 2 * static_cast<std::size_t>(head_dim), -1.0f, 1.0f);
    auto const options = diffkv::test::default_options(head_dim);
    auto const d       = decode_rows(cache.context(), slots, 0, options, query);
    auto const errors  = errors_of(d, cache.context(), slots, 0, options, query);
    CHECK(errors.out <= tolerance);
    CHECK(errors.lse <= tolerance);
    CHECK(std::all_of(d.out.begin(), d.out.begin() + head_dim, [](float x) { return x == 0.0f; }));
    CHECK(d.lse[0] == diffkv::minus_infinity);
  }
}

TEST_CASE("decode_attention: any number of splits gives the result of one pass", "[host]")
{
  std::uint64_t const seed = 14;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  host_cache cache{parts_of(diffkv::k8v4::spec, diffkv::k4v2::spec, 64, 9, 1, 4, 250)};
  std::vector<std::uint32_t> slots;
  for (tier_counts const tokens : {tier_counts{163, 49}, tier_counts{0, 0}, tier_counts{1, 0},
                                   tier_counts{0, 3}, tier_counts{7, 0}, tier_counts{16, 16},
                                   tier_counts{100, 1}, tier_counts{65, 64}, tier_counts{0, 64}}) {
    auto const slot = static_cast<std::uint32_t>(slots.size());
    fill_row(cache.context(), slot, 0, 0, tokens, random);
    slots.push_back(slot);
  }
  auto const query        = random.floats(9 * 4 * 64, -4.0f, 4.0f);
  attention_options whole = diffkv::test::default_options(64);
  auto const one          = decode_rows(cache.context(), slots, 0, whole, query);
  CHECK(errors_of(one, cache.context(), slots, 0, whole, query).out <= tolerance);
  for (int splits = 2; splits <= 8; ++splits) {
    CAPTURE(splits);
    attention_options parts = whole;
    parts.splits            = splits;
    auto const d            = decode_rows(cache.context(), slots, 0, parts, query);
    CHECK(difference(d.out, one.out) <= 1e-5);
    CHECK(difference(d.lse, one.lse) <= 1e-5);
  }
  attention_options many = whole;
  many.splits            = 1000;  // more than tokens
  CHECK(difference(decode_rows(cache.context(), slots, 0, many, query).out, one.out) <= 1e-5);
}

TEST_CASE("decode_attention: conditioning changes what is stored, not what is computed", "[host]")
{
  std::uint64_t const seed = 15;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  for (int const head_dim : {64, 80, 96, 112, 128, 256}) {
    auto const dim    = static_cast<std::size_t>(head_dim);
    auto const keys   = random.floats(40 * dim, -1.0f, 1.0f);
    auto const values = random.floats(40 * dim, -1.0f, 1.0f);
    auto const centre = random.floats(dim, -4.0f, 4.0f);
    auto const query  = random.floats(2 * dim, -1.0f, 1.0f);
    for (float const soft_cap : {0.0f, 5.0f}) {
      attention_options options = diffkv::test::default_options(head_dim);
      options.soft_cap          = soft_cap;
      std::vector<diffkv::test::decoded> results;
      for (conditioning const set :
           {conditioning::none, conditioning::centred, conditioning::rotated,
            conditioning::centred | conditioning::rotated}) {
        CAPTURE(head_dim, soft_cap, static_cast<int>(set));
        auto parts = parts_of(diffkv::k16v16::spec, diffkv::k16v16::spec, head_dim, 1, 1, 2, 40);
        parts.conditioned = set;
        if (has(set, conditioning::centred)) { parts.key_offsets = centre; }
        host_cache cache{parts};
        diffkv::test::reserve_row(cache.context(), 0, {25, 15});
        cache.ref().layer(0, 0).num_tokens = 40;
        for (std::uint32_t i = 0; i < 40; ++i) {
          std::vector<float> key(keys.begin() + static_cast<std::ptrdiff_t>(i * dim),
                                 keys.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
          std::vector<float> value(values.begin() + static_cast<std::ptrdiff_t>(i * dim),
                                   values.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
          for (std::size_t d = 0; d < dim; ++d) { key[d] += centre[d]; }
          diffkv::condition_key(key.data(), cache.ref().key_offset(0, 0), head_dim, set);
          diffkv::condition_rotation(value.data(), head_dim, set);
          bool const high = i < 25;
          diffkv::test::write_token(
            cache.context(), 0, high ? diffkv::tier::high : diffkv::tier::low, high ? i : i - 25,
            key.data(), value.data(), 0.0f, static_cast<int>(i));
        }
        results.push_back(decode_rows(cache.context(), {0}, 0, options, query));
        auto const errors = errors_of(results.back(), cache.context(), {0}, 0, options, query);
        CHECK(errors.out <= tolerance);  // exactly what the stored vectors mean
        CHECK(errors.lse <= 4 * tolerance);
        // f16 rounding of keys up to 5 moves a logit by up to 5 * 2^-11 * sqrt(head_dim) / 2.
        CHECK(difference(results.back().out, results[0].out) <= 0.02);
        CHECK(difference(results.back().lse, results[0].lse) <= 0.02);
      }
    }
  }
}
