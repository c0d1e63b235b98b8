// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/prefill/prefill_batch.hpp>

#include <vector>

#include "support/catch.hpp"

using diffkv::importance_queries;
using diffkv::detail::query_sample;

namespace {
//! Whether the query at `position` counts for importance in a prompt of `tokens`.
bool counts(importance_queries const& which, int tokens, int position)
{
  int const from_last = tokens - 1 - position;
  return (which.last == 0 || from_last < which.last) && from_last % which.every == 0;
}
}  // namespace

TEST_CASE("importance_queries: the number of queries that count is that of a walk over all",
          "[prefill]")
{
  for (int const last : {0, 1, 2, 7, 64}) {
    for (int const every : {1, 2, 3, 8, 100}) {
      importance_queries const which{last, every};
      for (int tokens = 1; tokens <= 40; ++tokens) {
        for (int token = 0; token < tokens; ++token) {
          int expected = 0;
          for (int j = token + 1; j < tokens; ++j) { expected += counts(which, tokens, j) ? 1 : 0; }
          CAPTURE(last, every, tokens, token);
          REQUIRE(which.count(tokens, token) == expected);
        }
      }
    }
  }
}

TEST_CASE("query_sample: names the queries of a chunk that count, in order", "[prefill]")
{
  for (int const last : {0, 1, 2, 7, 64}) {
    for (int const every : {1, 2, 3, 8, 100}) {
      importance_queries const which{last, every};
      for (int tokens = 1; tokens <= 24; ++tokens) {
        for (int position = 0; position < tokens; ++position) {
          for (int n = 0; position + n <= tokens; ++n) {
            std::vector<int> expected;
            for (int j = position; j < position + n; ++j) {
              if (counts(which, tokens, j)) { expected.push_back(j); }
            }
            auto const sample = query_sample::of(which, tokens, position, n);
            std::vector<int> named;
            for (int i = 0; i < sample.count; ++i) { named.push_back(sample.position(i)); }
            CAPTURE(last, every, tokens, position, n);
            REQUIRE(named == expected);
            for (int key = 0; key < tokens && !named.empty(); ++key) {
              int first = 0;
              while (first < sample.count && sample.position(first) <= key) { ++first; }
              CAPTURE(key);
              REQUIRE(diffkv::detail::min_of(sample.first_after(key), sample.count) == first);
            }
          }
        }
      }
    }
  }
}
