// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/attention/score_update.hpp>

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

TEST_CASE("queries_due: every query is due exactly once, within k launches, in order",
          "[attention]")
{
  for (int const k : {1, 2, 4}) {
    for (std::uint32_t layer = 0; layer < 9; ++layer) {
      for (int prompt = 0; prompt < 10; ++prompt) {
        CAPTURE(k, layer, prompt);
        diffkv::query_span seen{prompt, prompt, prompt};
        std::vector<int> times(100, 0);
        bool right = true;
        for (int t = prompt; t < 100; ++t) {  // position of the token being decoded
          diffkv::due_queries const due = diffkv::queries_due(t, layer, k, seen);
          right = right && due.catches_up == ((t + static_cast<int>(layer)) % k == 0);
          if (!due.catches_up) {
            right = right && due.first >= due.last;
            continue;
          }
          right =
            right && due.first == seen.last_query && due.last == t && due.last - due.first <= k;
          for (int q = due.first; q < due.last; ++q) { ++times[static_cast<std::size_t>(q)]; }
          seen.last_query = due.last;
        }
        CHECK(right);
        for (int q = 0; q < 100; ++q) {
          // Prompt queries are in already; the last few wait for the next catch-up.
          int const expected = q >= prompt && q < seen.last_query ? 1 : 0;
          REQUIRE(times[static_cast<std::size_t>(q)] == expected);
        }
        CHECK(seen.last_query > 99 - k);
      }
    }
  }
}

TEST_CASE("queries_due: with score_every = 0 no query ever is", "[attention]")
{
  for (int t = 0; t < 10; ++t) {
    diffkv::due_queries const due = diffkv::queries_due(t, 0, 0, {3, 3, 3});
    CHECK_FALSE(due.catches_up);
    CHECK(due.first >= due.last);
  }
}

TEST_CASE("query_span: a token's count is the number of queries that saw it", "[attention]")
{
  // Against counting them one by one.
  for (int prompt = 0; prompt <= 12; ++prompt) {
    for (int const queries : {0, 1, 5, prompt}) {
      if (queries > prompt) { continue; }
      for (int last = prompt; last <= prompt + 6; ++last) {
        diffkv::query_span const span{prompt, queries, last};
        for (int number = 1; number <= prompt + 8; ++number) {
          int count = 0;
          for (int query = number + 1; query <= last; ++query) {
            bool const summed = query > prompt || query > prompt - queries;
            count += summed ? 1 : 0;
          }
          CAPTURE(prompt, queries, last, number);
          REQUIRE(span.count(number) == count);
        }
      }
    }
  }
}

TEST_CASE("int8_query_code: codes stay within 127 and half a step of the query", "[attention]")
{
  std::uint64_t const seed = 6;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  for (int round = 0; round < 200; ++round) {
    float const size = std::ldexp(1.0f, random.between(-100, 100));
    auto const q     = random.floats(64, -size, size);
    float largest    = 0.0f;
    for (float const x : q) { largest = std::max(largest, std::fabs(x)); }
    double const factor = diffkv::int8_query_factor(1.0f, largest);
    for (float const x : q) {
      float const code = diffkv::int8_query_code(x, largest);
      REQUIRE(std::fabs(code) <= 127.0f);
      REQUIRE(code == std::nearbyint(code));
      REQUIRE(std::fabs(factor * code - x) <= 0.5001 * factor);
    }
    CHECK(diffkv::int8_query_code(largest, largest) == 127.0f);
    CHECK(diffkv::int8_query_code(-largest, largest) == -127.0f);
  }
}

TEST_CASE("int8_query_code: ties go to even, and a query of zeros has codes 0", "[attention]")
{
  CHECK(diffkv::int8_query_code(0.5f, 127.0f) == 0.0f);
  CHECK(diffkv::int8_query_code(1.5f, 127.0f) == 2.0f);
  CHECK(diffkv::int8_query_code(-2.5f, 127.0f) == -2.0f);
  CHECK(diffkv::int8_query_code(0.0f, 0.0f) == 0.0f);
  CHECK(diffkv::int8_query_factor(0.125f, 0.0f) == 0.0f);
  CHECK(diffkv::int8_query_factor(0.5f, 254.0f) == 1.0f);
}

TEST_CASE("int8_query_code: also of numbers whose multiples are none", "[host]")
{
  CHECK(diffkv::int8_query_code(3e38f, 3e38f) == 127.0f);
  CHECK(diffkv::int8_query_code(-3e38f, 3e38f) == -127.0f);
  CHECK(diffkv::int8_query_code(1e38f, 3e38f) == 42.0f);
  CHECK(diffkv::int8_query_code(1.0f, 3e38f) == 0.0f);
  float const infinity = diffkv::detail::infinity;
  CHECK(diffkv::int8_query_code(infinity, infinity) == 0.0f);
  CHECK(diffkv::int8_query_code(1.0f, infinity - infinity) == 0.0f);
}

TEST_CASE("default_lag_rounding: 8-bit queries where keys are codes, none where they are f16",
          "[attention]")
{
  for (int const bits : {8, 4, 2}) {
    CHECK(diffkv::default_lag_rounding({bits, 1}) == diffkv::lag_rounding::int8);
  }
  CHECK(diffkv::default_lag_rounding({16, 1}) == diffkv::lag_rounding::none);
}
