// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention on the device where others went wrong: few tokens, bad numbers, huge logits, strides.
#include "attention/edges_case.cuh"

namespace {

using namespace diffkv;
using mixed  = test::paper_config<k8v4, k4v2, 128>;
using halves = test::paper_config<k16v16, void, 64>;

constexpr float infinity     = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class Config>
using plain_case = test::decode_case<Config, decode_variant<4>, __half, __half>;

std::vector<float> alternating(float even, float odd, int head_dim)
{
  std::vector<float> x(static_cast<std::size_t>(head_dim), even);
  for (std::size_t d = 1; d < x.size(); d += 2) { x[d] = odd; }
  return x;
}

//! 4 q_heads with the same elements.
std::vector<float> for_group(std::vector<float> const& q)
{
  std::vector<float> all;
  for (int g = 0; g < 4; ++g) { all.insert(all.end(), q.begin(), q.end()); }
  return all;
}

template <class Config>
void put(plain_case<Config>& c, std::size_t row, tier t, slot_index slot,
         std::vector<float> const& key, std::vector<float> const& value, std::int32_t position)
{
  test::write_token(c.host().context(), row, t, slot, key.data(), value.data(), 0.0f, position);
}

std::vector<float> as_floats(std::vector<__half> const& x, std::size_t index, std::size_t dim)
{
  std::vector<float> all;
  for (std::size_t d = 0; d < dim; ++d) { all.push_back(to_f32(x[index * dim + d])); }
  return all;
}

}  // namespace

TEST_CASE("decode_attention: sequences without tokens give 0 and -inf and disturb none",
          "[attention][small]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(4, 2, 4, 100)};
  test::fill_rows(c.host().context(), 1, 0, {{3, 2}, {0, 0}}, c.numbers());
  auto const query = c.queries(3, -1.0f, 1.0f);
  for (decode_grid const grid : {decode_grid{1, 1}, decode_grid{4, 1}, decode_grid{}}) {
    test::decode_call call;
    call.capacity     = 4;
    call.grid         = grid;
    auto attention    = c.attention(call);
    auto const answer = attention.run({0, 1, 2}, query);
    for (std::size_t q = 0; q < 24; ++q) {
      if (q >= 8 && q < 12) { continue; }  // the row with tokens
      CHECK(as_floats(answer.out, q, 128) == std::vector<float>(128, 0.0f));
      CHECK(answer.lse[q] == -infinity);
    }
    CHECK(c.errors(answer, {0, 1, 2}, query).out <= test::bounds_of_codes.out);
    CHECK_FALSE(answer.wrote_astray);
    auto const nobody = attention.run({0, 2, 3}, query);
    CHECK(nobody.lse == std::vector<float>(24, -infinity));
    CHECK(as_floats(nobody.out, 0, 24 * 128) == std::vector<float>(24 * 128, 0.0f));
  }
}

TEST_CASE("decode_attention: a batch of nobody writes nothing", "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(2, 1, 4, 100)};
  test::fill_rows(c.host().context(), 0, 0, {{40, 30}}, c.numbers());
  for (bool const counted : {false, true}) {
    test::decode_call call;
    call.capacity   = 2;
    call.is_counted = counted;
    auto attention  = c.attention(call);
    CHECK_FALSE(attention.run({}, {}).wrote_astray);
    auto const query = c.queries(1, -1.0f, 1.0f);
    CHECK(c.errors(attention.run({0}, query), {0}, query).out <= test::bounds_of_codes.out);
  }
}

TEST_CASE("decode_attention: a single token is its value exactly", "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(1, 1, 4, 10)};
  std::vector<float> key(128);
  std::vector<float> value(128);
  for (std::size_t d = 0; d < 128; ++d) {
    key[d]   = static_cast<float>(d == 0 ? 2 : d == 1 ? 257 : 2 + 7 * d % 256);
    value[d] = static_cast<float>(d == 0 ? 5 : d == 1 ? 20 : 5 + 7 * d % 16);
  }
  test::reserve_row(c.host().context(), 0, {1, 0});
  c.host().ref().layer(0, 0).num_tokens = 1;
  put(c, 0, tier::high, 0, key, value, 0);
  auto const query = c.queries(1, -1.0f, 1.0f);
  for (decode_grid const grid : {decode_grid{1, 1}, decode_grid{8, 1}, decode_grid{}}) {
    test::decode_call call;
    call.grid         = grid;
    auto attention    = c.attention(call);
    auto const answer = attention.run({0}, query);
    for (std::size_t g = 0; g < 4; ++g) { CHECK(as_floats(answer.out, g, 128) == value); }
    CHECK(c.errors(answer, {0}, query).lse <= test::bounds_of_codes.lse);
  }
}

TEST_CASE("decode_attention: logits far beyond f16 are told apart", "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(1, 1, 4, 10)};
  test::reserve_row(c.host().context(), 0, {2, 0});
  c.host().ref().layer(0, 0).num_tokens = 2;
  auto const q                          = alternating(255.0f, 0.0f, 128);
  auto const v0                         = alternating(1.0f, 16.0f, 128);
  auto const v1                         = alternating(9.0f, 24.0f, 128);
  for (bool const swapped : {false, true}) {
    put(c, 0, tier::high, swapped ? 1 : 0, q, v0, 0);
    put(c, 0, tier::high, swapped ? 0 : 1, alternating(254.0f, 0.0f, 128), v1, 1);
    c.upload();
    auto attention    = c.attention({});
    auto const answer = attention.run({0}, for_group(q));
    for (std::size_t g = 0; g < 4; ++g) {
      CHECK(as_floats(answer.out, g, 128) == v0);
      CHECK(test::difference(answer.lse[g], 367'837.0) <= 368.0);
    }
  }
}

TEST_CASE("decode_attention: lse is the natural logarithm; scale 0 gives the mean", "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(1, 1, 4, 10)};
  test::reserve_row(c.host().context(), 0, {3, 1});
  c.host().ref().layer(0, 0).num_tokens = 4;
  std::vector<float> const zero(128, 0.0f);
  for (slot_index s = 0; s < 3; ++s) {
    put(c, 0, tier::high, s, zero, std::vector<float>(128, static_cast<float>(s)), 1);
  }
  put(c, 0, tier::low, 0, zero, std::vector<float>(128, 9.0f), 0);
  auto const query = c.queries(1, -3.0f, 3.0f);
  for (float const scale : {0.0f, 0.5f}) {
    c.options().scale = scale;
    auto attention    = c.attention({});
    auto const answer = attention.run({0}, query);
    for (std::size_t g = 0; g < 4; ++g) {
      CHECK(test::difference(answer.lse[g], std::log(4.0)) <= 1e-6);
      CHECK(as_floats(answer.out, g, 128) == std::vector<float>(128, 3.0f));
    }
  }
}

TEST_CASE("decode_attention: q_head j reads head j / group", "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(1, 7, 4, 4)};
  c.host().ref().layer(0, 0).num_tokens = 1;
  for (std::uint32_t h = 0; h < 7; ++h) {
    test::reserve_row(c.host().context(), h, {1, 0});
    put(c, h, tier::high, 0, std::vector<float>(128, 0.0f),
        alternating(0.0f, 15.0f * static_cast<float>(h + 1), 128), 0);
  }
  auto attention    = c.attention({});
  auto const answer = attention.run({0}, c.queries(1, 1.0f, 1.0f));
  for (std::size_t j = 0; j < 28; ++j) {
    CHECK(as_floats(answer.out, j, 128) ==
          alternating(0.0f, 15.0f * static_cast<float>(j / 4 + 1), 128));
  }
}

TEST_CASE("decode_attention: which slots hold which tokens does not matter", "[attention]")
{
  std::vector<test::decode_answer<__half>> answers;
  test::random tokens{5};
  auto const keys   = tokens.floats(40 * 128, -1.0f, 1.0f);
  auto const values = tokens.floats(40 * 128, -1.0f, 1.0f);
  auto const query  = test::rounded<__half>(tokens.floats(4 * 128, -2.0f, 2.0f));
  for (bool const shuffled : {false, true}) {
    plain_case<mixed> c{test::decode_parts<mixed>(1, 1, 4, 60)};
    test::reserve_row(c.host().context(), 0, {20, 20});
    c.host().ref().layer(0, 0).num_tokens = 40;
    auto order                            = test::some_slots(20, c.numbers());
    for (std::uint32_t i = 0; i < 40; ++i) {
      slot_index const s = shuffled ? order[i % 20] : i % 20;
      std::vector<float> const key(keys.begin() + i * 128, keys.begin() + (i + 1) * 128);
      std::vector<float> const value(values.begin() + i * 128, values.begin() + (i + 1) * 128);
      put(c, 0, i < 20 ? tier::high : tier::low, s, key, value, static_cast<std::int32_t>(i));
    }
    auto attention = c.attention({});
    answers.push_back(attention.run({0}, query));
    CHECK(c.errors(answers.back(), {0}, query).out <= test::bounds_of_codes.out);
  }
  CHECK(test::difference(as_floats(answers[0].out, 0, 512), as_floats(answers[1].out, 0, 512)) <=
        1e-3);
  CHECK(test::difference(answers[0].lse, answers[1].lse) <= 2 * test::bounds_of_codes.lse);
}

TEMPLATE_TEST_CASE(
  "decode_attention: a vector that held NaN or Inf shows in its row and in no other", "[attention]",
  mixed, halves)
{
  constexpr int head_dim = TestType::layouts::head_dim;
  bool const is_f16      = !TestType::layouts::has_low;
  auto const run         = [&](float bad, std::size_t lane, bool in_key, decode_grid grid) {
    plain_case<TestType> c{test::decode_parts<TestType>(2, 2, 4, 200), 24};
    tier_counts const tokens{100, is_f16 ? 0u : 70u};
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      test::fill_rows(c.host().context(), slot, 0, {tokens, tokens}, c.numbers());
    }
    std::vector<float> const good(head_dim, 1.0f);
    std::vector<float> x = good;
    x[lane]              = bad;
    put(c, 1, tier::high, 45, in_key ? x : good, in_key ? good : x, 9);
    test::decode_call call;
    call.capacity  = 2;
    call.grid      = grid;
    auto attention = c.attention(call);
    return attention.run({0, 1}, c.queries(2, -1.0f, 1.0f));
  };
  for (decode_grid const grid : {decode_grid{1, 1}, decode_grid{3, 1}, decode_grid{}}) {
    auto const clean = run(1.0f, 0, false, grid);
    for (float const bad : {not_a_number, infinity, -infinity}) {
      for (bool const in_key : {false, true}) {
        // A logit of -inf from a 16-bit key weighs nothing, which is right.
        if (in_key && is_f16 && std::isinf(bad)) { continue; }
        std::size_t const lane = in_key ? 3 : head_dim - 1;
        CAPTURE(head_dim, bad, in_key, grid.ctas);
        auto const spoilt = run(bad, lane, in_key, grid);
        for (std::size_t q = 0; q < 16; ++q) {
          auto const out = as_floats(spoilt.out, q, head_dim);
          bool const hit = q / 4 == 1;  // sequence 0, head 1
          bool const finite =
            std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); });
          CHECK(finite == !hit);
          if (!hit) {
            CHECK(out == as_floats(clean.out, q, head_dim));
            CHECK(spoilt.lse[q] == clean.lse[q]);
          }
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("decode_attention: a bad query stays in its q_head", "[attention]", mixed,
                   halves)
{
  constexpr std::size_t head_dim = TestType::layouts::head_dim;
  plain_case<TestType> c{test::decode_parts<TestType>(3, 1, 4, 200)};
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    test::fill_rows(c.host().context(), slot, 0, {{100, TestType::layouts::has_low ? 70u : 0u}},
                    c.numbers());
  }
  auto query = c.queries(3, -1.0f, 1.0f);
  test::decode_call call;
  call.capacity                      = 3;
  auto attention                     = c.attention(call);
  auto const clean                   = attention.run({0, 1, 2}, query);
  query[(1 * 4 + 0) * head_dim + 9]  = not_a_number;
  query[(2 * 4 + 3) * head_dim + 40] = infinity;
  auto const spoilt                  = attention.run({0, 1, 2}, query);
  for (std::size_t q = 0; q < 12; ++q) {
    CAPTURE(q);
    auto const out = as_floats(spoilt.out, q, head_dim);
    if (q == 4) {
      CHECK(std::all_of(out.begin(), out.end(), [](float v) { return std::isnan(v); }));
    } else if (q != 11) {
      CHECK(out == as_floats(clean.out, q, head_dim));
      CHECK(spoilt.lse[q] == clean.lse[q]);
    }
  }
}

TEST_CASE("decode_attention: queries and outputs may lie anywhere, and what is between them stays",
          "[attention]")
{
  plain_case<mixed> c{test::decode_parts<mixed>(3, 2, 4, 300)};
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    test::fill_rows(c.host().context(), slot, 0, {{100, 90}, {5, 200}}, c.numbers());
  }
  auto const query = c.queries(3, -2.0f, 2.0f);
  test::decode_call call;
  call.capacity     = 3;
  auto attention    = c.attention(call);
  auto const packed = attention.run({2, 0, 1}, query);
  CHECK(c.errors(packed, {2, 0, 1}, query).out <= test::bounds_of_codes.out);
  for (std::ptrdiff_t const offset : {0, 1, 3, 8}) {
    for (std::ptrdiff_t const head_pad : {0, 1, 8}) {
      for (bool const wants_lse : {true, false}) {
        CAPTURE(offset, head_pad, wants_lse);
        call.offset       = offset;
        call.head_pad     = head_pad;
        call.token_pad    = offset == 8 ? 64 : offset;
        call.wants_lse    = wants_lse;
        auto strided      = c.attention(call);
        auto const answer = strided.run({2, 0, 1}, query);
        CHECK(as_floats(answer.out, 0, 24 * 128) == as_floats(packed.out, 0, 24 * 128));
        if (wants_lse) { CHECK(answer.lse == packed.lse); }
        CHECK_FALSE(answer.wrote_astray);
      }
    }
  }
}
