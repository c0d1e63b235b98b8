// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Scores for groups that fill no octet of columns, or several, with each number of due queries.
#include "attention/scores_case.cuh"

namespace {
using namespace diffkv;
using test::check_scores;
using test::scored_config;
using mixed = scored_config<k8v4, k4v2, 64>;

//! Whether each head of each query has a column, and no other one has the same.
template <int GroupSize, int Queries, bool Exact>
constexpr bool has_all_columns()
{
  using columns           = detail::lag_columns<GroupSize, Queries, Exact>;
  constexpr int of_a_head = columns::paired ? 2 : 1;
  for (int query = 0; query < Queries; ++query) {
    for (int head = 0; head < GroupSize; ++head) {
      int found = 0;
      for (int c = 0; c < 8 * columns::octets; ++c) {
        bool const is = columns::query(c) == query && columns::head(c) == head;
        // The lane that has it is one of those of its query.
        found += is && c % 8 / 2 / columns::lanes == query ? 1 : 0;
      }
      if (found != of_a_head) { return false; }
    }
  }
  return true;
}
template <int... GroupSizes>
constexpr bool all_have_columns()
{
  return ((has_all_columns<GroupSizes, 1, false>() && has_all_columns<GroupSizes, 2, false>() &&
           has_all_columns<GroupSizes, 4, false>() && has_all_columns<GroupSizes, 1, true>() &&
           has_all_columns<GroupSizes, 2, true>() && has_all_columns<GroupSizes, 4, true>()) &&
          ...);
}
static_assert(all_have_columns<1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24>());

template <int GroupSize, int Queries, bool Exact = false>
using variant = decode_variant<GroupSize, Queries, false, false, Exact>;
}  // namespace

TEST_CASE("decode_attention: scores with four due queries, groups that leave columns empty",
          "[attention]")
{
  check_scores<mixed, variant<1, 4>>(policy_kind::relative, {}, 30);
  check_scores<mixed, variant<5, 4>>(policy_kind::paper, {}, 30);
  check_scores<mixed, variant<3, 4, true>>(policy_kind::relative, {}, 30);
}

TEST_CASE("decode_attention: scores with one or two due queries, in several octets", "[attention]")
{
  check_scores<mixed, variant<9, 1>>(policy_kind::relative, {}, 20);
  check_scores<mixed, variant<6, 1, true>>(policy_kind::paper, {}, 20);
  check_scores<mixed, variant<3, 2>>(policy_kind::relative, {}, 30);
  check_scores<mixed, variant<20, 2>>(policy_kind::paper, {}, 30);
}

TEST_CASE("decode_attention: soft-cap and sliding window with one or two due queries",
          "[attention]")
{
  test::score_setup setup;
  setup.options.sliding_window = 20;
  setup.options.soft_cap       = 5.0f;
  check_scores<mixed, decode_variant<4, 1, true, true>>(policy_kind::paper, setup, 20);
  check_scores<mixed, decode_variant<3, 2, true, true>>(policy_kind::relative, setup, 30);
}
