// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Scores, candidates and the lag ring after decode attention on the device are those of the host twin.
#include "attention/scores_case.cuh"

namespace {
using namespace diffkv;
using test::check_scores;
using mixed = test::scored_config<k8v4, k4v2, 128>;
}  // namespace

TEST_CASE("decode_attention: scores of a few steps equal the host twin's", "[attention][small]")
{
  test::score_setup setup;
  setup.slots = 2, setup.layers = 1, setup.max_tokens = 100;
  check_scores<mixed, decode_variant<4, 4>>(policy_kind::relative, setup, 8);
}

TEST_CASE("decode_attention: scores and candidates equal the host twin's for every policy",
          "[attention]")
{
  for (policy_kind const kind : test::all_policies) {
    for (std::uint64_t const seed : {2u, 3u}) {
      check_scores<mixed, decode_variant<4, 4>>(kind, {}, 40, seed);
      check_scores<mixed, decode_variant<4, 1>>(kind, {}, 20, seed);
    }
  }
}

TEST_CASE("decode_attention: scores do not depend on the number of splits", "[attention]")
{
  for (decode_grid const grid : {decode_grid{1, 1}, decode_grid{3, 1}, decode_grid{1, 5},
                                 decode_grid{7, 3}, decode_grid{64, 1}}) {
    CAPTURE(grid.ctas, grid.warps);
    test::score_setup setup;
    setup.grid = grid;
    check_scores<mixed, decode_variant<4, 4>>(policy_kind::paper, setup, 25, grid.ctas);
  }
}

TEST_CASE(
  "decode_attention: scores of sequences that catch up by their own positions equal the host "
  "twin's",
  "[attention]")
{
  test::score_setup setup;
  setup.schedule = catch_up_schedule::by_position;
  check_scores<mixed, decode_variant<4, 4>>(policy_kind::paper, setup, 40, 8);
  check_scores<mixed, decode_variant<4, 2>>(policy_kind::relative, setup, 40, 9);
}

TEST_CASE("decode_attention: scores of sequences that are in every batch equal the host twin's",
          "[attention]")
{
  test::score_setup setup;
  setup.steady = true;
  check_scores<mixed, decode_variant<4, 4>>(policy_kind::paper, setup, 40, 10);
  check_scores<mixed, decode_variant<4, 2>>(policy_kind::relative, setup, 40, 11);
}

TEST_CASE("decode_attention: rows whose step was refused record nothing", "[attention]")
{
  test::score_setup setup;
  setup.sixths_of_pages = 1;
  test::score_policies const policies;
  int refused = 0;
  for (std::uint64_t seed = 4; seed < 9; ++seed) {
    CAPTURE(seed);
    test::score_run<mixed, decode_variant<4, 1>> run{setup, policies.host(policy_kind::paper),
                                                     policies.device(policy_kind::paper), seed};
    run.live(60);
    CHECK(run.trouble() == "");
    refused += run.refused();
  }
  CHECK(refused > 5);
}

TEST_CASE("decode_attention: a bad query adds nothing to the scores", "[attention]")
{
  test::score_setup setup;
  setup.bad_queries = true;
  check_scores<mixed, decode_variant<4, 4>>(policy_kind::relative, setup, 60, 5);
  check_scores<mixed, decode_variant<4, 1>>(policy_kind::relative, setup, 30, 6);
}

TEST_CASE("decode_attention: one captured graph catches up when its steps are due", "[attention]")
{
  test::score_setup setup;
  setup.captured = true;
  check_scores<mixed, decode_variant<4, 4>>(policy_kind::relative, setup, 60, 7);
}
