// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/attention/score_update.hpp>

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

using diffkv::catch_up_turn;
using diffkv::due_queries;
using diffkv::layer_state;

//! One sequence's launches, each with its turn: how often each query was added.
struct added_queries {
  int k;
  layer_state state;
  std::vector<int> times = std::vector<int>(100, 0);
  bool right             = true;  //!< in order, none left out, none too late for the ring

  added_queries(int score_every, int prompt)
    : k{score_every}, state{prompt, {prompt, prompt, prompt}}
  {}
  //! @return whether it caught up
  bool decode(catch_up_turn const& turn)
  {
    int const t           = state.num_tokens++;
    due_queries const due = turn.queries_due(state);
    right                 = right && t - state.queries.last_query <= k;  // as many as the ring has
    if (!due.catches_up) {
      right = right && due.first >= due.last;
      return false;
    }
    right = right && due.first == state.queries.last_query && due.last == t;
    for (int q = due.first; q < due.last; ++q) { ++times[static_cast<std::size_t>(q)]; }
    state.queries.last_query = due.last;
    return true;
  }
  //! Prompt queries are in already; the last few wait for the next catch-up.
  [[nodiscard]] bool all_once() const
  {
    for (int q = 0; q < 100; ++q) {
      bool const is_in = q >= state.queries.prompt_tokens && q < state.queries.last_query;
      if (times[static_cast<std::size_t>(q)] != (is_in ? 1 : 0)) { return false; }
    }
    return state.queries.last_query >= state.num_tokens - 1 - k;
  }
};

}  // namespace

TEST_CASE("queries_due: by its own position a sequence adds every query once, k at a time",
          "[attention]")
{
  for (int const k : {1, 2, 4}) {
    for (std::uint32_t layer = 0; layer < 9; ++layer) {
      for (int prompt = 0; prompt < 10; ++prompt) {
        CAPTURE(k, layer, prompt);
        added_queries sequence{k, prompt};
        for (int t = prompt; t < 100; ++t) {
          bool const caught_up = sequence.decode({layer, k, 0});
          CHECK(caught_up == ((t + static_cast<int>(layer)) % k == 0));
        }
        CHECK(sequence.right);
        CHECK(sequence.all_once());
      }
    }
  }
}

TEST_CASE("queries_due: sequences that are in every batch catch up in the same launches",
          "[attention]")
{
  for (int const k : {1, 2, 4}) {
    for (std::uint32_t layer = 0; layer < 5; ++layer) {
      CAPTURE(k, layer);
      std::vector<added_queries> batch;
      for (int prompt = 0; prompt < 10; ++prompt) { batch.emplace_back(k, prompt); }
      // The first of them may be any.
      auto const first = batch.begin() + 3;
      for (int step = 0; step < 90; ++step) {
        int const p = first->state.num_tokens;
        for (added_queries& sequence : batch) {
          bool const caught_up = sequence.decode({layer, k, p + 1});
          CHECK(caught_up == ((p + static_cast<int>(layer)) % k == 0));
        }
      }
      for (added_queries const& sequence : batch) {
        CHECK(sequence.right);
        CHECK(sequence.all_once());
      }
    }
  }
}

TEST_CASE("queries_due: whatever batches a sequence is in, no query is lost", "[attention]")
{
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    diffkv::test::random random{seed};
    for (int const k : {1, 2, 4}) {
      CAPTURE(seed, k);
      added_queries sequence{k, random.between(0, 9)};
      int others = random.between(1, 50);
      int since  = 0;
      while (sequence.state.num_tokens < 100) {
        // Batches with other first sequences, or none that has tokens; now and then without this
        // one.
        others = random.one_in(8) ? random.between(0, 50) : others + 1;
        if (random.one_in(3)) { continue; }
        bool const caught_up = sequence.decode({2, k, random.one_in(9) ? 0 : others});
        since                = caught_up ? 0 : since + 1;
        CHECK(since < k + 1);
      }
      CHECK(sequence.right);
      CHECK(sequence.all_once());
    }
  }
}

TEST_CASE("queries_due: with score_every = 0 no query ever is", "[attention]")
{
  for (int t = 0; t < 10; ++t) {
    due_queries const due = catch_up_turn{0, 0, t}.queries_due({t + 1, {0, 0, 0}});
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
