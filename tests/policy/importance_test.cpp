// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/policy/harmonic.hpp>
#include <diffkv/policy/importance.hpp>
#include <diffkv/policy/thresholds.hpp>

#include <cmath>

namespace {

// By asking every query whether it is in the score: the last Q of the prompt, and those after the
// prompt up to the last summed; a token is seen by later queries alone.
std::int32_t count_queries(std::int32_t prompt_tokens, std::int32_t prompt_queries,
                           std::int32_t last_query, std::int32_t number)
{
  std::int32_t count = 0;
  for (std::int32_t query = 1; query <= last_query; ++query) {
    bool const of_prompt = query <= prompt_tokens;
    bool const summed    = !of_prompt || query > prompt_tokens - prompt_queries;
    count += summed && query > number ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("importance: the count is the number of later queries in the score", "[policy]")
{
  for (std::int32_t prompt = 0; prompt <= 12; ++prompt) {
    for (std::int32_t queries = 0; queries <= prompt; ++queries) {
      for (std::int32_t last = prompt; last <= prompt + 9; ++last) {
        diffkv::query_span const span{prompt, queries, last};
        for (std::int32_t number = 1; number <= prompt + 12; ++number) {
          CAPTURE(prompt, queries, last, number);
          CHECK(span.count(number) == count_queries(prompt, queries, last, number));
        }
      }
    }
  }
  CHECK(diffkv::query_span{100, 64, 103}.count(37) == 66);  // 63 of the prompt, 3 later
}

TEST_CASE("importance: a score of -0, and one too small for its count, give 0 without a sign",
          "[policy]")
{
  for (std::int32_t const count : {1, 3, 4, 4096}) {
    CHECK_FALSE(std::signbit(diffkv::importance_of(-0.0f, count)));
  }
  // The compiler sees the count, a power of two.
  float const least = diffkv::detail::opaque(-0x1p-149f);
  CHECK_FALSE(std::signbit(diffkv::importance_of(least, 4)));
}

TEST_CASE("importance: score and importance are each other's inverse up to rounding", "[policy]")
{
  for (std::int32_t count = 1; count <= 4096; count = count * 3 + 1) {
    for (float const x : {0.0f, 1e-6f, 0.25f, 0.9f, 1.0f}) {
      float const score = diffkv::score_of(x, count);
      CHECK(std::fabs(diffkv::importance_of(score, count) - x) <= x * std::ldexp(1.0f, -22));
    }
    CHECK(diffkv::importance_of(static_cast<float>(count), count) == 1.0f);
  }
}

TEST_CASE("harmonic: even importance is the mean of 1/n over the later queries", "[policy]")
{
  diffkv::harmonic_table const table{5000};
  auto const u = [&](std::int32_t i, std::int32_t n) { return table.ref().even_importance(i, n); };
  for (std::int32_t const n : {1, 2, 3, 4, 63, 64, 65, 1000, 5000}) {
    long double sum = 0.0L;
    for (std::int32_t i = n; i >= 1; --i) {
      long double const expected = i == n ? 1.0L / n : sum / static_cast<long double>(n - i);
      CAPTURE(i, n);
      // docs/numerics.md, "Importance thresholds": the f64 sums, then one rounding to f32.
      CHECK(std::fabs(static_cast<double>(u(i, n) - expected)) <=
            static_cast<double>(expected) * (std::ldexp(1.0, -24) + n * std::ldexp(1.0, -50)));
      sum += 1.0L / i;
    }
  }
  CHECK(u(1, 4) == static_cast<float>((1.0 / 2 + 1.0 / 3 + 1.0 / 4) / 3));
  CHECK(u(2, 4) == static_cast<float>((1.0 / 3 + 1.0 / 4) / 2));
  CHECK(u(3, 4) == 0.25f);
  CHECK(u(4, 4) == 0.25f);
  CHECK(u(1, 1) == 1.0f);
  CHECK(table.ref().max_tokens == 5000);
}

TEST_CASE("harmonic: even importance falls with the token's age and the row's length", "[policy]")
{
  diffkv::harmonic_table const table{2000};
  for (std::int32_t n = 2; n <= 2000; n += 37) {
    for (std::int32_t i = 1; i < n; ++i) {
      REQUIRE(table.ref().even_importance(i, n) >= table.ref().even_importance(i + 1, n));
      REQUIRE(table.ref().even_importance(i, n) <= 1.0f / static_cast<float>(i + 1));
    }
  }
}

TEST_CASE("harmonic: an empty table is legal", "[policy]")
{
  CHECK(diffkv::harmonic_table{0}.ref().max_tokens == 0);
  CHECK(diffkv::harmonic_table{-5}.ref().max_tokens == 0);
}

TEST_CASE("thresholds: a_h >= a_l >= 0 is accepted, all else refused", "[policy]")
{
  for (auto const t : {diffkv::thresholds{0, 0}, {1, 0.02f}, {2, 2}, {HUGE_VALF, 0}}) {
    CHECK_NOTHROW(validate(t));
  }
  for (auto const t :
       {diffkv::thresholds{1, 2}, {1, -0.1f}, {-1, -2}, {NAN, 0}, {1, NAN}, {0.0f, 1e-9f}}) {
    CHECK_THROWS_WITH(validate(t), diffkv::test::contains("threshold_high >= threshold_low >= 0"));
  }
}

TEST_CASE("thresholds: each slot, layer and head finds its own, a stride of 0 shares", "[policy]")
{
  diffkv::thresholds table[24];
  for (int i = 0; i < 24; ++i) { table[i].high = static_cast<float>(i); }
  diffkv::thresholds_ref const own{table, 12, 4, 1};
  diffkv::thresholds_ref const per_layer{table, 0, 1, 0};
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      for (std::uint32_t head = 0; head < 4; ++head) {
        CHECK(own.of(slot, layer, head).high == static_cast<float>(12 * slot + 4 * layer + head));
        CHECK(per_layer.of(slot, layer, head).high == static_cast<float>(layer));
      }
    }
  }
}
