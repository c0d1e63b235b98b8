// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Scores from lagged queries that are not rounded, over codes and over f16 keys.
#include "attention/scores_case.cuh"

namespace {
using namespace diffkv;
using test::check_scores;
using test::scored_config;
}  // namespace

TEST_CASE("decode_attention: scores of exact lagged queries are within their bound", "[attention]")
{
  for (std::uint64_t const seed : {1u, 2u}) {
    check_scores<scored_config<k8v4, k4v2, 128>, decode_variant<4, 2, false, false, true>>(
      policy_kind::paper, {}, 30, seed);
    check_scores<scored_config<k8v4, k4v2, 64>, decode_variant<3, 1, false, false, true>>(
      policy_kind::relative, {}, 20, seed);
  }
}

TEST_CASE("decode_attention: scores over f16 keys are those of exact queries", "[attention]")
{
  check_scores<scored_config<k16v16, void, 64>, decode_variant<2, 4>>(policy_kind::relative, {},
                                                                      40);
  check_scores<scored_config<k16v4, k4v2, 128>, decode_variant<4, 4>, __nv_bfloat16>(
    policy_kind::paper, {}, 40);
}
