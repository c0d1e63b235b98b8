// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Scores where logits have an offset, a soft-cap or a window, and in other groups and head sizes.
#include "attention/scores_case.cuh"

namespace {
using namespace diffkv;
using test::check_scores;
using test::scored_config;
constexpr auto both = conditioning::centred | conditioning::rotated;
}  // namespace

TEST_CASE("decode_attention: scores over conditioned keys equal the host twin's", "[attention]")
{
  check_scores<scored_config<k8v4, k4v2, 128, both>, decode_variant<4, 4>>(policy_kind::relative);
  check_scores<scored_config<k8v4, k4v2, 96, both>, decode_variant<5, 2>, __nv_bfloat16>(
    policy_kind::paper, {}, 30);
}

TEST_CASE("decode_attention: lagged queries see soft-cap and sliding window as their own did",
          "[attention]")
{
  using config = scored_config<k8v4, k4v2, 64, both>;
  for (std::int32_t const window : {0, 20}) {
    CAPTURE(window);
    test::score_setup setup;
    setup.options.sliding_window = window;
    check_scores<config, decode_variant<2, 4, false, true>>(policy_kind::paper, setup, 40);
    setup.options.soft_cap = 5.0f;
    check_scores<config, decode_variant<2, 4, true, true>>(policy_kind::paper, setup, 40);
  }
}

TEST_CASE("decode_attention: scores in groups of 7 and 8 q_heads equal the host twin's",
          "[attention]")
{
  check_scores<scored_config<k8v4, k4v2, 128>, decode_variant<8, 4>>(policy_kind::relative, {}, 30);
  check_scores<scored_config<k8v8, void, 128>, decode_variant<7, 2>>(policy_kind::paper, {}, 30);
}
