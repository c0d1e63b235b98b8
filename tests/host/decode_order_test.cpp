// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! What decode attention must not depend on: slots, page ids, neighbours, strides, element types.
#include <algorithm>
#include <cstring>

#include "support/catch.hpp"
#include "support/decode_rows.hpp"

namespace {
using diffkv::attention_options;
using diffkv::tier;
using diffkv::tier_counts;
using diffkv::test::decode_rows;
using diffkv::test::decoded;
using diffkv::test::difference;
using diffkv::test::errors_of;
using diffkv::test::host_cache;

constexpr double tolerance = 1e-4;

diffkv::test::host_cache_parts parts_of(std::uint32_t num_slots, std::uint32_t num_heads,
                                        std::uint32_t group_size, int head_dim = 64)
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.num_slots  = num_slots;
  parts.shape.num_heads  = num_heads;
  parts.shape.group_size = group_size;
  parts.shape.head_dim   = head_dim;
  parts.shape.max_tokens = 120;
  parts.tiers = diffkv::test::short_tiers(diffkv::k8v4::spec, 5, diffkv::k4v2::spec, 7, head_dim);
  parts.num_pages = parts.tiers.most_pages(120) * num_slots * num_heads;
  return parts;
}

bool same_bytes(std::vector<float> const& a, std::vector<float> const& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

//! One row with the same 20 tokens in `tokens.high` high slots and the rest low; slot i holds the
//! token order[i].
decoded with_order(std::vector<std::uint32_t> const& order, tier_counts tokens)
{
  diffkv::test::random random{31};
  auto const keys   = random.floats(20 * 64, -1.0f, 1.0f);
  auto const values = random.floats(20 * 64, -1.0f, 1.0f);
  auto const query  = random.floats(64, -2.0f, 2.0f);
  host_cache cache{parts_of(1, 1, 1)};
  diffkv::test::reserve_row(cache.context(), 0, tokens);
  cache.ref().layer(0, 0).num_tokens = 20;
  for (std::uint32_t i = 0; i < 20; ++i) {
    bool const high = i < tokens.high;
    diffkv::test::write_token(cache.context(), 0, high ? tier::high : tier::low,
                              high ? i : i - tokens.high, keys.data() + order[i] * 64,
                              values.data() + order[i] * 64, 0.0f, static_cast<int>(order[i]));
  }
  auto const options = diffkv::test::default_options(64);
  auto d             = decode_rows(cache.context(), {0}, 0, options, query);
  CHECK(errors_of(d, cache.context(), {0}, 0, options, query).out <= tolerance);
  return d;
}

//! Three sequences of 2 heads, group 2, with pages in the order of `shuffles` shuffles.
struct batch {
  host_cache cache{parts_of(3, 2, 2)};
  std::vector<float> query;

  explicit batch(int shuffles, std::vector<tier_counts> const& lengths = {{20, 9}, {3, 0}, {1, 30}})
  {
    diffkv::test::random order{99};
    for (int i = 0; i < shuffles; ++i) { cache.shuffle_pages(order); }
    diffkv::test::random random{32};
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      for (std::uint32_t head = 0; head < 2; ++head) {
        fill_row(cache.context(), slot, 0, head, lengths[slot], random);
      }
    }
    query = random.floats(12 * 64, -1.0f, 1.0f);
  }
};
}  // namespace

TEST_CASE("decode_attention: the order of tokens in their slots matters only to rounding", "[host]")
{
  std::vector<std::uint32_t> order(20);
  for (std::uint32_t i = 0; i < 20; ++i) { order[i] = i; }
  diffkv::test::random random{33};
  for (tier_counts const tokens : {tier_counts{20, 0}, tier_counts{0, 20}, tier_counts{10, 10}}) {
    CAPTURE(tokens.high);
    decoded const plain                 = with_order(order, tokens);
    std::vector<std::uint32_t> permuted = order;
    diffkv::test::shuffle(permuted.data(), tokens.high, random);
    diffkv::test::shuffle(permuted.data() + tokens.high, tokens.low, random);
    decoded const other = with_order(permuted, tokens);
    CHECK(difference(plain.out, other.out) <= 1e-5);
    CHECK(difference(plain.lse, other.lse) <= 1e-5);
  }
}

TEST_CASE("decode_attention: the same bits whatever pages were handed out, run after run", "[host]")
{
  for (int const splits : {1, 3}) {
    attention_options options = diffkv::test::default_options(64);
    options.splits            = splits;
    batch plain{0};
    auto const first = decode_rows(plain.cache.context(), {0, 1, 2}, 0, options, plain.query);
    for (int run = 0; run < 5; ++run) {
      auto const again = decode_rows(plain.cache.context(), {0, 1, 2}, 0, options, plain.query);
      CHECK(same_bytes(first.out, again.out));
      CHECK(same_bytes(first.lse, again.lse));
      batch other{run + 1};
      auto const moved = decode_rows(other.cache.context(), {0, 1, 2}, 0, options, other.query);
      CHECK(same_bytes(first.out, moved.out));
      CHECK(same_bytes(first.lse, moved.lse));
    }
  }
}

TEST_CASE("decode_attention: a sequence in a batch gets what it gets alone, in any order", "[host]")
{
  batch b{1};
  auto const options = diffkv::test::default_options(64);
  auto const all     = decode_rows(b.cache.context(), {2, 0, 1}, 0, options, b.query);
  std::vector<std::uint32_t> const slots{2, 0, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    auto const from = b.query.begin() + static_cast<std::ptrdiff_t>(i) * 4 * 64;
    auto const solo = decode_rows(b.cache.context(), {slots[i]}, 0, options,
                                  std::vector<float>(from, from + 4 * 64));
    auto const out  = all.out.begin() + static_cast<std::ptrdiff_t>(i) * 4 * 64;
    CHECK(same_bytes(solo.out, std::vector<float>(out, out + 4 * 64)));
  }
}

TEST_CASE("decode_attention: a bad query spoils its own q_head alone", "[host]")
{
  batch b{0};
  auto const options         = diffkv::test::default_options(64);
  auto const clean           = decode_rows(b.cache.context(), {0, 1, 2}, 0, options, b.query);
  auto bad                   = b.query;
  std::size_t const nan_head = 1 * 4 + 0;
  std::size_t const inf_head = 2 * 4 + 3;
  bad[nan_head * 64 + 5]     = std::numeric_limits<float>::quiet_NaN();
  bad[inf_head * 64 + 7]     = std::numeric_limits<float>::infinity();
  auto const d               = decode_rows(b.cache.context(), {0, 1, 2}, 0, options, bad);
  for (std::size_t q = 0; q < 12; ++q) {
    CAPTURE(q);
    std::vector<float> const part(d.out.begin() + static_cast<std::ptrdiff_t>(q) * 64,
                                  d.out.begin() + static_cast<std::ptrdiff_t>(q + 1) * 64);
    std::vector<float> const expected(clean.out.begin() + static_cast<std::ptrdiff_t>(q) * 64,
                                      clean.out.begin() + static_cast<std::ptrdiff_t>(q + 1) * 64);
    if (q == nan_head) {
      CHECK(std::all_of(part.begin(), part.end(), [](float x) { return std::isnan(x); }));
      CHECK(std::isnan(d.lse[q]));
    } else if (q != inf_head) {
      CHECK(same_bytes(part, expected));
      CHECK(d.lse[q] == clean.lse[q]);
    }
  }
}

TEST_CASE("decode_attention: a sliding window ends at the query's position", "[host]")
{
  diffkv::test::random random{34};
  host_cache cache{parts_of(1, 1, 2)};
  fill_row(cache.context(), 0, 0, 0, {12, 17}, random);  // low: positions 0 .. 16, high: 17 .. 28
  auto const query          = random.floats(2 * 64, -1.0f, 1.0f);
  attention_options options = diffkv::test::default_options(64);
  auto const whole          = decode_rows(cache.context(), {0}, 0, options, query);
  for (int const window : {1, 2, 11, 12, 13, 28, 29, 30, 1000}) {
    CAPTURE(window);
    options.sliding_window = window;
    auto const d           = decode_rows(cache.context(), {0}, 0, options, query);
    auto const e           = errors_of(d, cache.context(), {0}, 0, options, query);
    CHECK(e.out <= tolerance);
    CHECK(e.lse <= tolerance);
    CHECK(same_bytes(d.out, whole.out) == (window >= 29));
    options.splits     = 5;
    auto const in_five = decode_rows(cache.context(), {0}, 0, options, query);
    CHECK(difference(in_five.out, d.out) <= 1e-5);
    options.splits = 1;
  }
  // What lies outside may be NaN.
  std::vector<float> const bad(64, std::numeric_limits<float>::quiet_NaN());
  diffkv::test::write_token(cache.context(), 0, tier::low, 0, bad.data(), bad.data(), 0.0f, 0);
  options.sliding_window = 28;
  CHECK(errors_of(decode_rows(cache.context(), {0}, 0, options, query), cache.context(), {0}, 0,
                  options, query)
          .out <= tolerance);
}

TEST_CASE("decode_attention: a soft-cap bends logits, also large ones", "[host]")
{
  diffkv::test::random random{35};
  host_cache cache{parts_of(1, 2, 2)};
  for (std::uint32_t head = 0; head < 2; ++head) {
    fill_row(cache.context(), 0, 0, head, {30, 20}, random, 10.0f);
  }
  auto const query = random.floats(4 * 64, -3.0f, 3.0f);
  for (float const cap : {0.5f, 30.0f, 50.0f, 1e6f}) {
    CAPTURE(cap);
    attention_options options = diffkv::test::default_options(64);
    options.soft_cap          = cap;
    auto const d              = decode_rows(cache.context(), {0}, 0, options, query);
    auto const e              = errors_of(d, cache.context(), {0}, 0, options, query);
    CHECK(e.out <= 10 * tolerance);
    CHECK(e.lse <= 10 * tolerance);
  }
}

namespace {
//! Runs the batch with queries and outputs of two element types inside wider rows.
template <class In, class Out>
void check_types(double bound)
{
  batch b{0};
  constexpr std::ptrdiff_t row = 512;  // a fused row: the query lies at column 128
  std::vector<In> fused(3 * row);
  for (In& x : fused) { diffkv::from_f32(std::numeric_limits<float>::quiet_NaN(), x); }
  std::vector<float> rounded(12 * 64);
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t i = 0; i < 256; ++i) {
      In& x = fused[s * row + 128 + i];
      diffkv::from_f32(b.query[s * 256 + i], x);
      rounded[s * 256 + i] = diffkv::to_f32(x);
    }
  }
  std::ptrdiff_t const out_row = 4 * 64 + 64;
  auto const options           = diffkv::test::default_options(64);
  auto const exact             = decode_rows(b.cache.context(), {0, 1, 2}, 0, options, rounded);
  for (int const splits : {1, 4}) {
    std::vector<Out> out(static_cast<std::size_t>(3 * out_row));
    for (Out& x : out) { diffkv::from_f32(123.0f, x); }
    std::vector<std::uint32_t> const slots{0, 1, 2};
    attention_options in_parts = options;
    in_parts.splits            = splits;
    diffkv::host::decode_attention(b.cache.context(), slots.data(), 3, 0, diffkv::paper_policy{},
                                   in_parts, diffkv::vectors<In const>{fused.data() + 128, row, 64},
                                   diffkv::vectors<Out>{out.data(), out_row, 64}, nullptr, false);
    double worst = 0.0;
    bool pads    = true;
    for (std::size_t s = 0; s < 3; ++s) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(out_row); ++i) {
        float const x = diffkv::to_f32(out[s * static_cast<std::size_t>(out_row) + i]);
        if (i < 256) {
          worst = std::fmax(worst, difference(x, exact.out[s * 256 + i]));
        } else {
          pads = pads && x == 123.0f;
        }
      }
    }
    CHECK(worst <= bound);
    CHECK(pads);
  }
}
}  // namespace

TEST_CASE("decode_attention: strided f16, bf16 and f32 go in and out; pads stay as they were",
          "[host]")
{
  check_types<float, float>(1e-5);
  check_types<__half, __half>(1e-3);
  check_types<__nv_bfloat16, __nv_bfloat16>(8e-3);
  check_types<__half, float>(1e-5);
  check_types<float, __nv_bfloat16>(8e-3);
  check_types<__nv_bfloat16, __half>(1e-3);
}

TEST_CASE("decode_attention: inputs of odd alignment are read", "[host]")
{
  batch b{0};
  std::vector<float> shifted(12 * 64 + 12 + 1);
  for (std::size_t q = 0; q < 12; ++q) {  // row stride 65, from element 1
    std::copy_n(b.query.begin() + static_cast<std::ptrdiff_t>(q) * 64, 64,
                shifted.begin() + 1 + static_cast<std::ptrdiff_t>(q) * 65);
  }
  auto const options = diffkv::test::default_options(64);
  auto const plain   = decode_rows(b.cache.context(), {0, 1, 2}, 0, options, b.query);
  std::vector<float> out(plain.out.size());
  std::vector<std::uint32_t> const slots{0, 1, 2};
  diffkv::host::decode_attention(b.cache.context(), slots.data(), 3, 0, diffkv::paper_policy{},
                                 options,
                                 diffkv::vectors<float const>{shifted.data() + 1, 4 * 65, 65},
                                 diffkv::packed(out.data(), 4, 64), nullptr, false);
  CHECK(same_bytes(out, plain.out));
}

TEST_CASE("decode_attention: a long context of wide heads equals f64", "[host]")
{
  diffkv::test::random random{36};
  auto parts             = parts_of(1, 1, 8, 256);
  parts.shape.max_tokens = 12'288;
  parts.num_pages        = parts.tiers.most_pages(12'288);
  host_cache cache{parts};
  fill_row(cache.context(), 0, 0, 0, {2'288, 10'000}, random);
  auto const query          = random.floats(8 * 256, -3.0f, 3.0f);
  attention_options options = diffkv::test::default_options(256);
  for (int const splits : {1, 7}) {
    options.splits    = splits;
    auto const errors = errors_of(decode_rows(cache.context(), {0}, 0, options, query),
                                  cache.context(), {0}, 0, options, query);
    CHECK(errors.out <= tolerance);
    CHECK(errors.lse <= tolerance);
  }
}

TEST_CASE("decode_attention: wrong slots, layers and splits are refused before anything is written",
          "[host]")
{
  using diffkv::test::contains;
  batch b{0};
  std::vector<float> out(4 * 64, 123.0f);
  auto const call = [&](std::vector<std::uint32_t> const& slots, std::uint32_t layer, int splits) {
    attention_options options = diffkv::test::default_options(64);
    options.splits            = splits;
    diffkv::host::decode_attention(
      b.cache.context(), slots.data(), static_cast<std::uint32_t>(slots.size()), layer,
      diffkv::paper_policy{}, options, diffkv::packed<float const>(b.query.data(), 4, 64),
      diffkv::packed(out.data(), 4, 64), nullptr, true);
  };
  CHECK_THROWS_WITH(call({0, 3}, 0, 1), contains("slot: 3 is not below 3"));
  CHECK_THROWS_WITH(call({0}, 1, 1), contains("layer: 1"));
  for (int const splits : {0, -1}) { CHECK_THROWS_WITH(call({0}, 0, splits), contains("splits")); }
  CHECK_THROWS_AS(call({0}, 7, 1), diffkv::invalid_argument);
  CHECK(out == std::vector<float>(4 * 64, 123.0f));
}
