// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One life of sequences with scores, checked: what the tests of the score path do.
#include "support/catch.hpp"
#include "support/score_run.cuh"
#include "support/twin_policies.hpp"

namespace diffkv::test {

//! Policies for host and device; the longest sequence has 200 tokens.
struct score_policies : twin_policies {
  score_policies() : twin_policies{200, 40} {}
};

template <class High, class Low, int HeadDim, conditioning Set = conditioning::none>
using scored_config = static_config<any_policy, High, Low, HeadDim, Set>;

template <class Config, class Variant, class T = __half>
void check_scores(policy_kind kind, score_setup const& setup = {}, int rounds = 40,
                  std::uint64_t seed = 1)
{
  CAPTURE(static_cast<int>(kind), Variant::group_size, Variant::score_every, Variant::exact_lag,
          seed);
  score_policies const policies;
  score_run<Config, Variant, T> run{setup, policies.host(kind), policies.device(kind), seed};
  run.live(rounds);
  CHECK(run.trouble() == "");
  // It was no idle life.
  CHECK(run.caught_up() >= rounds / Variant::score_every);
  if (setup.steady) { CHECK(run.together() > rounds / Variant::score_every); }
  CHECK(run.scored() > 10 * rounds);
  CHECK(run.candidates() > 0);
}

inline constexpr policy_kind all_policies[] = {policy_kind::paper, policy_kind::artifact,
                                               policy_kind::relative, policy_kind::static_budget};

}  // namespace diffkv::test
