// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention where others went wrong: empty rows, bad numbers, huge logits, order, strides.
#include <algorithm>
#include <cstring>

#include "support/catch.hpp"
#include "support/decode_rows.hpp"

namespace {
using diffkv::attention_options;
using diffkv::tier;
using diffkv::tier_counts;
using diffkv::test::decode_rows;
using diffkv::test::difference;
using diffkv::test::errors_of;
using diffkv::test::host_cache;

constexpr double tolerance   = 1e-4;
constexpr float infinity     = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

struct extents {
  int head_dim             = 64;
  std::uint32_t num_slots  = 1;
  std::uint32_t num_heads  = 1;
  std::uint32_t group_size = 1;
  diffkv::format_spec high = diffkv::k8v4::spec;
  diffkv::format_spec low  = diffkv::k4v2::spec;
};

//! Pages of 5 and 7 tokens, a few of them to a row.
diffkv::test::host_cache_parts parts_of(extents const& e, int max_tokens = 100)
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.num_slots  = e.num_slots;
  parts.shape.num_heads  = e.num_heads;
  parts.shape.group_size = e.group_size;
  parts.shape.head_dim   = e.head_dim;
  parts.shape.max_tokens = max_tokens;
  parts.tiers            = diffkv::test::short_tiers(e.high, 5, e.low, 7, e.head_dim);
  parts.num_pages =
    parts.tiers.most_pages(static_cast<std::uint32_t>(max_tokens)) * e.num_slots * e.num_heads;
  return parts;
}

void put(host_cache const& cache, std::size_t row, tier t, std::uint32_t slot,
         std::vector<float> const& key, std::vector<float> const& value, int position)
{
  diffkv::test::write_token(cache.context(), row, t, slot, key.data(), value.data(), 0.0f,
                            position);
}

std::vector<float> alternating(float even, float odd, int head_dim)
{
  std::vector<float> x(static_cast<std::size_t>(head_dim), even);
  for (std::size_t d = 1; d < x.size(); d += 2) { x[d] = odd; }
  return x;
}

bool same_bytes(std::vector<float> const& a, std::vector<float> const& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

//! The part of one q_head.
std::vector<float> part_of(std::vector<float> const& out, std::size_t index, int head_dim)
{
  auto const first = out.begin() + static_cast<std::ptrdiff_t>(index) * head_dim;
  return {first, first + head_dim};
}
}  // namespace

TEST_CASE("decode_attention: an empty row in a batch gives 0 and -inf and disturbs none", "[host]")
{
  diffkv::test::random random{21};
  host_cache cache{parts_of({64, 3, 2, 2})};
  for (std::uint32_t head = 0; head < 2; ++head) {
    fill_row(cache.context(), 1, 0, head, {3, 2}, random);
  }
  auto const query = random.floats(3 * 4 * 64, -1.0f, 1.0f);
  for (int const splits : {1, 4}) {
    CAPTURE(splits);
    attention_options options = diffkv::test::default_options(64);
    options.splits            = splits;
    auto const d              = decode_rows(cache.context(), {0, 1, 2}, 0, options, query);
    for (std::size_t q = 0; q < 12; ++q) {
      if (q >= 4 && q < 8) { continue; }
      CHECK(part_of(d.out, q, 64) == std::vector<float>(64, 0.0f));
      CHECK(d.lse[q] == -infinity);
    }
    CHECK(errors_of(d, cache.context(), {0, 1, 2}, 0, options, query).out <= tolerance);
  }
}

TEST_CASE("decode_attention: a batch of nobody reads and writes nothing", "[host]")
{
  host_cache cache{parts_of({})};
  diffkv::vectors<float const> const query{};
  diffkv::vectors<float> const out{};
  diffkv::host::decode_attention(cache.context(), nullptr, 0, 0, diffkv::paper_policy{}, {}, query,
                                 out, nullptr, true);
  CHECK(diffkv::test::page_trouble(cache.ref()).empty());
}

TEST_CASE("decode_attention: a single token is its value exactly", "[host]")
{
  diffkv::test::random random{22};
  for (int const head_dim : {64, 96, 256}) {
    host_cache cache{parts_of({head_dim, 2})};
    std::vector<float> key(static_cast<std::size_t>(head_dim));
    std::vector<float> value(key.size());
    for (std::size_t d = 0; d < key.size(); ++d) {
      key[d]   = static_cast<float>(d == 0 ? 2 : d == 1 ? 257 : 2 + 7 * d % 256);
      value[d] = static_cast<float>(d == 0 ? 5 : d == 1 ? 20 : 5 + 7 * d % 16);
    }
    diffkv::test::reserve_row(cache.context(), 0, {1, 0});
    cache.ref().layer(0, 0).num_tokens = 1;
    put(cache, 0, tier::high, 0, key, value, 0);
    auto const query = random.floats(key.size(), -1.0f, 1.0f);
    for (int const splits : {1, 8}) {
      attention_options options = diffkv::test::default_options(head_dim);
      options.splits            = splits;
      auto const d              = decode_rows(cache.context(), {0}, 0, options, query);
      CHECK(d.out == value);
      double dot = 0.0;
      for (std::size_t i = 0; i < key.size(); ++i) {
        dot += static_cast<double>(query[i]) * static_cast<double>(key[i]);
      }
      CHECK(difference(d.lse[0], dot * static_cast<double>(options.scale)) <=
            1e-3 * std::fabs(dot));
    }
  }
}

TEST_CASE("decode_attention: every format gives back a single exact value", "[host]")
{
  // A vector of whole numbers from the lowest to the highest level has scale 1 and is stored
  // exactly.
  for (int const key_bits : {8, 4, 2}) {
    for (int const value_bits : {8, 4, 2, 1}) {
      for (int const head_dim : {64, 128}) {
        CAPTURE(key_bits, value_bits, head_dim);
        host_cache cache{parts_of({head_dim, 1, 1, 1, {{key_bits}, {value_bits}}})};
        std::vector<float> value(static_cast<std::size_t>(head_dim));
        for (std::size_t d = 0; d < value.size(); ++d) {
          value[d] = static_cast<float>(5 + 7 * d % (1u << value_bits));
        }
        value[1] = static_cast<float>(4 + (1 << value_bits));
        diffkv::test::reserve_row(cache.context(), 0, {1, 0});
        cache.ref().layer(0, 0).num_tokens = 1;
        put(cache, 0, tier::high, 0, value, value, 0);
        CHECK(decode_rows(cache.context(), {0}, 0, diffkv::test::default_options(head_dim), value)
                .out == value);
      }
    }
  }
}

TEST_CASE("decode_attention: logits far beyond f16 are told apart", "[host]")
{
  host_cache cache{parts_of({128})};
  diffkv::test::reserve_row(cache.context(), 0, {2, 0});
  cache.ref().layer(0, 0).num_tokens = 2;
  auto const q                       = alternating(255.0f, 0.0f, 128);
  std::vector<float> const v0        = alternating(1.0f, 16.0f, 128);
  std::vector<float> const v1        = alternating(9.0f, 24.0f, 128);
  for (bool const swapped : {false, true}) {
    put(cache, 0, tier::high, swapped ? 1 : 0, q, v0, 0);
    put(cache, 0, tier::high, swapped ? 0 : 1, alternating(254.0f, 0.0f, 128), v1, 1);
    for (int const splits : {1, 2}) {
      attention_options options = diffkv::test::default_options(128);
      options.splits            = splits;
      auto const d              = decode_rows(cache.context(), {0}, 0, options, q);
      CHECK(d.out == v0);
      CHECK(difference(d.lse[0], 367'837.0) <= 368.0);
    }
  }
}

TEST_CASE("decode_attention: lse is the natural logarithm, and the scale given is the one used",
          "[host]")
{
  diffkv::test::random random{23};
  host_cache cache{parts_of({64, 2})};
  diffkv::test::reserve_row(cache.context(), 0, {3, 1});
  cache.ref().layer(0, 0).num_tokens = 4;
  std::vector<float> const zero(64, 0.0f);
  for (std::uint32_t s = 0; s < 3; ++s) {
    put(cache, 0, tier::high, s, zero, std::vector<float>(64, static_cast<float>(s)), 1);
  }
  put(cache, 0, tier::low, 0, zero, std::vector<float>(64, 9.0f), 0);
  auto const query          = random.floats(64, -3.0f, 3.0f);
  attention_options options = diffkv::test::default_options(64);
  CHECK(difference(decode_rows(cache.context(), {0}, 0, options, query).lse[0], std::log(4.0)) <=
        1e-6);

  fill_row(cache.context(), 1, 0, 0, {20, 30}, random);
  for (float const scale : {0.5f, 1.0f, -0.25f}) {
    options.scale = scale;
    auto const d  = decode_rows(cache.context(), {1}, 0, options, query);
    auto const e  = errors_of(d, cache.context(), {1}, 0, options, query);
    CHECK(e.out <= tolerance);
    CHECK(e.lse <= tolerance);
  }
  options.scale   = 0.0f;
  auto const mean = decode_rows(cache.context(), {0}, 0, options, query);
  CHECK(difference(mean.out, std::vector<float>(64, 3.0f)) <= 1e-6);
  CHECK(difference(decode_rows(cache.context(), {1}, 0, options, query).lse[0], std::log(50.0)) <=
        1e-6);
}

TEST_CASE("decode_attention: q_head j reads head j / group", "[host]")
{
  std::vector<std::pair<std::uint32_t, std::uint32_t>> const heads{
    {28, 4}, {12, 12}, {32, 8}, {8, 1}, {9, 3}};
  for (auto const& [num_q_heads, num_heads] : heads) {
    CAPTURE(num_q_heads, num_heads);
    host_cache cache{parts_of({64, 1, num_heads, num_q_heads / num_heads}, 4)};
    cache.ref().layer(0, 0).num_tokens = 1;
    for (std::uint32_t h = 0; h < num_heads; ++h) {
      diffkv::test::reserve_row(cache.context(), h, {1, 0});
      put(cache, h, tier::high, 0, std::vector<float>(64, 0.0f),
          alternating(0.0f, 15.0f * static_cast<float>(h + 1), 64), 0);
    }
    auto const d = decode_rows(cache.context(), {0}, 0, diffkv::test::default_options(64),
                               std::vector<float>(num_q_heads * std::size_t{64}, 1.0f));
    for (std::uint32_t j = 0; j < num_q_heads; ++j) {
      float const expected = 15.0f * static_cast<float>(j / (num_q_heads / num_heads) + 1);
      CHECK(part_of(d.out, j, 64) == alternating(0.0f, expected, 64));
    }
  }
}

TEST_CASE("decode_attention: a vector that held NaN or Inf shows in its row and in no other",
          "[host]")
{
  for (diffkv::format_spec const format : {diffkv::k8v4::spec, diffkv::k16v16::spec}) {
    for (int const head_dim : {64, 96}) {
      auto const run = [&](float bad, std::size_t lane, bool in_key, int splits) {
        diffkv::test::random random{24};
        host_cache cache{parts_of({head_dim, 2, 2, 2, format, format})};
        for (std::uint32_t slot = 0; slot < 2; ++slot) {
          for (std::uint32_t head = 0; head < 2; ++head) {
            fill_row(cache.context(), slot, 0, head, {8, 3}, random);
          }
        }
        std::vector<float> x(static_cast<std::size_t>(head_dim), 1.0f);
        std::vector<float> const good = x;
        x[lane]                       = bad;
        put(cache, 1, tier::high, 6, in_key ? x : good, in_key ? good : x, 9);
        attention_options options = diffkv::test::default_options(head_dim);
        options.splits            = splits;
        return decode_rows(cache.context(), {0, 1}, 0, options,
                           random.floats(8 * static_cast<std::size_t>(head_dim), -1.0f, 1.0f));
      };
      for (int const splits : {1, 3}) {
        auto const clean = run(1.0f, 0, false, splits);
        for (float const bad : {not_a_number, infinity, -infinity}) {
          for (std::size_t const lane :
               {std::size_t{0}, std::size_t{3}, static_cast<std::size_t>(head_dim - 1)}) {
            for (bool const in_key : {false, true}) {
              // A logit of -inf from a 16-bit key weighs nothing, which is right.
              if (in_key && format.key.bits == 16 && std::isinf(bad)) { continue; }
              CAPTURE(name(format), head_dim, splits, bad, lane, in_key);
              auto const d = run(bad, lane, in_key, splits);
              for (std::size_t q = 0; q < 8; ++q) {
                auto const part = part_of(d.out, q, head_dim);
                bool const hit  = q == 2 || q == 3;  // slot 0, head 1
                bool const finite =
                  std::all_of(part.begin(), part.end(), [](float v) { return std::isfinite(v); });
                CHECK(finite == !hit);
                if (!hit) { CHECK(same_bytes(part, part_of(clean.out, q, head_dim))); }
              }
            }
          }
        }
      }
    }
  }
}
