// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The laws of policy/contract.hpp as a test for any policy. Include it in a Catch2 test and call
//!     diffkv::test::check_policy_contract(my_policy{});
//! A law that is broken is reported with the view that broke it. Nothing here knows a policy.
#include "support/catch.hpp"

#include <diffkv/policy/contract.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace diffkv::test {

//! What the laws are tried with.
struct contract_options {
  std::int32_t max_tokens = 300;  //!< longest row; a policy with tables must reach it
  int num_rows            = 200;
  int num_steps           = 5000;
  unsigned seed           = 91;
};

[[nodiscard]] inline std::string describe(step_view const& v)
{
  std::ostringstream out;
  auto const token = [&](char const* what, token_view const& t) {
    out << ", " << what;
    if (t.present) {
      out << " " << t.importance << " (token " << t.number << ")";
    } else {
      out << " absent";
    }
  };
  out << "N " << v.num_tokens << ", W " << v.window << ", high " << v.counts.high << ", low "
      << v.counts.low << ", a_h " << v.limits.high << ", a_l " << v.limits.low
      << (v.has_low ? "" : ", no low tier");
  token("leaving", v.leaving);
  token("least high", v.least_high);
  token("least low", v.least_low);
  return out.str();
}

namespace contract_detail {

//! Importances over many orders, with 0, the infinities, negative numbers and many ties.
[[nodiscard]] inline float draw_importance(std::mt19937& random)
{
  switch (random() % 12) {
    case 0:
      return 0.0f;
    case 1:
      return detail::infinity;
    case 2:
      return -detail::infinity;
    case 3:
      return -1.0f;
    case 4:
    case 5:
      return 1.0f / static_cast<float>(1 + random() % 8);  // ties
    default:
      return std::ldexp(static_cast<float>(random() % 4096), -12 - static_cast<int>(random() % 12));
  }
}

[[nodiscard]] inline thresholds draw_limits(std::mt19937& random)
{
  float const choices[] = {0.0f, 0.02f, 0.25f, 1.0f, 2.0f, 4.0f, 1e6f};
  float const a         = choices[random() % 7];
  float const b         = choices[random() % 7];
  return {std::max(a, b), std::min(a, b)};
}

[[nodiscard]] inline int rank(tier t) { return t == tier::high ? 2 : t == tier::low ? 1 : 0; }

//! What a decision does with the leaving token.
[[nodiscard]] inline int leaving_rank(step_decision d)
{
  return d.action == step_action::prune_leaving    ? 0
         : d.action == step_action::demote_leaving ? 1
                                                   : 2;
}

template <class Policy>
void check_prompt(Policy const& policy, contract_options const& options)
{
  std::mt19937 random{options.seed};
  for (int n = 0; n < options.num_rows; ++n) {
    std::vector<float> importances;
    prompt_view row{};
    row.num_tokens = 1 + static_cast<std::int32_t>(random() % unsigned(options.max_tokens));
    row.window     = 1 + static_cast<std::int32_t>(random() % 80);
    row.limits     = draw_limits(random);
    row.has_low    = random() % 2 == 0;
    for (std::int32_t i = 0; i < row.num_tokens; ++i) {
      importances.push_back(draw_importance(random));
    }
    row.importances = importances.data();
    CAPTURE(n, row.num_tokens, row.window, row.limits.high, row.limits.low, row.has_low);

    std::int32_t const count = policy.prompt_queries(row.num_tokens);
    auto const parameters    = policy.prepare(row);
    // Importances of the window are not read: the parameters stay when those change.
    auto other = importances;
    for (std::int32_t i = std::max(0, row.num_tokens - row.window); i < row.num_tokens; ++i) {
      other[std::size_t(i)] = draw_importance(random);
    }
    prompt_view other_row = row;
    other_row.importances = other.data();
    auto const again      = policy.prepare(other_row);

    int broken_pure = 0, broken_window = 0, broken_low = 0, broken_order = 0, broken_priority = 0;
    for (std::int32_t i = 1; i <= row.num_tokens - row.window; ++i) {
      float const x = importances[std::size_t(i - 1)];
      tier const t  = policy.classify(x, i, row.num_tokens, row.limits, parameters);
      broken_pure += policy.classify(x, i, row.num_tokens, row.limits, parameters) == t ? 0 : 1;
      broken_window += policy.classify(x, i, row.num_tokens, row.limits, again) == t ? 0 : 1;
      broken_low += row.has_low || prompt_tier(policy, row, parameters, i, 1) != tier::low ? 0 : 1;
      float const greater = draw_importance(random);
      if (greater < x) { continue; }
      tier const better = policy.classify(greater, i, row.num_tokens, row.limits, parameters);
      broken_order += rank(better) >= rank(t) ? 0 : 1;
      broken_priority +=
        policy.priority(greater, i, row.num_tokens) >= policy.priority(x, i, row.num_tokens) ? 0
                                                                                             : 1;
    }
    CHECK(count >= 0);
    CHECK(count <= row.num_tokens);
    CHECK(broken_pure == 0);      // classify is a function of its arguments
    CHECK(broken_window == 0);    // the importances of the window do not matter
    CHECK(broken_low == 0);       // without low tier nothing is low
    CHECK(broken_order == 0);     // greater importance, no lesser tier
    CHECK(broken_priority == 0);  // greater importance, no earlier turn
  }
}

[[nodiscard]] inline step_view draw_step(std::mt19937& random, std::int32_t max_tokens)
{
  step_view v{};
  v.num_tokens               = 2 + static_cast<std::int32_t>(random() % unsigned(max_tokens - 1));
  v.window                   = 1 + static_cast<std::int32_t>(random() % 80);
  v.limits                   = draw_limits(random);
  v.has_low                  = random() % 3 != 0;
  std::int32_t const leaving = v.num_tokens - v.window;
  v.leaving.present          = leaving >= 1 && random() % 8 != 0;
  v.leaving.number           = v.leaving.present ? leaving : 0;
  // Tokens 1 .. leaving - 1 lie outside the window; some are high, some low, some pruned.
  auto const before = static_cast<std::uint32_t>(std::max(0, leaving - 1));
  std::uint32_t const window =
    static_cast<std::uint32_t>(std::min(v.window, v.num_tokens - 1));  // the leaving one too
  std::uint32_t const high = before == 0 ? 0 : static_cast<std::uint32_t>(random()) % (before + 1);
  std::uint32_t const low =
    before == high || !v.has_low ? 0 : static_cast<std::uint32_t>(random()) % (before - high + 1);
  v.counts         = {high + window, low};
  auto const token = [&](std::uint32_t count) {
    token_view t{};
    if (count == 0 || random() % 8 == 0) { return t; }
    t.present    = true;
    t.number     = 1 + static_cast<std::int32_t>(random() % before);
    t.importance = draw_importance(random);
    return t;
  };
  if (v.leaving.present) { v.leaving.importance = draw_importance(random); }
  v.least_high = token(high);
  v.least_low  = token(low);
  return v;
}

template <class Policy>
void check_steps(Policy const& policy, contract_options const& options)
{
  std::mt19937 random{options.seed + 1};
  auto const require = [](bool law, char const* what, step_view const& v) {
    if (!law) { FAIL_CHECK(what << ": " << describe(v)); }
  };
  for (int n = 0; n < options.num_steps; ++n) {
    step_view const v     = draw_step(random, options.max_tokens);
    step_decision const d = policy.step(v);
    require(policy.step(v) == d, "step is a function of its view", v);
    bool const of_leaving =
      d.action == step_action::prune_leaving || d.action == step_action::demote_leaving;
    bool const of_high =
      d.action == step_action::prune_high || d.action == step_action::demote_high;
    bool const demotes =
      d.action == step_action::demote_leaving || d.action == step_action::demote_high;
    require(!of_leaving || v.leaving.present, "the leaving token moves only if present", v);
    require(!of_high || v.least_high.present, "a high token moves only if present", v);
    require(!d.prune_low || v.least_low.present, "a low token is dropped only if present", v);
    require(v.has_low || (!demotes && !d.prune_low), "without low tier nothing is low", v);

    if constexpr (decides_leaving_first_v<Policy>) {
      step_view alone  = v;
      alone.least_high = alone.least_low = {};
      step_action const first            = policy.step(alone).action;
      step_view looked_at                = v;
      if (first != step_action::grow) { looked_at.least_high = {}; }
      if (first != step_action::demote_leaving) { looked_at.least_low = {}; }
      require(policy.step(looked_at) == d,
              "a policy with leaving_first ignores the tokens that it need not know", v);
    }

    if (!v.leaving.present) { continue; }
    step_view better          = v;
    better.leaving.importance = std::max(draw_importance(random), v.leaving.importance);
    require(leaving_rank(policy.step(better)) >= leaving_rank(d),
            "a leaving token of greater importance keeps no lesser tier", v);
    // What is absent is not read.
    step_view noise = v;
    for (token_view* t : {&noise.leaving, &noise.least_high, &noise.least_low}) {
      if (t->present) { continue; }
      t->importance = draw_importance(random);
      t->number     = 1;
    }
    require(policy.step(noise) == d, "what is absent is not read", v);
  }
}

}  // namespace contract_detail

//! Checks every law of policy/contract.hpp that can be checked from outside.
template <class Policy>
void check_policy_contract(Policy const& policy, contract_options const& options = {})
{
  STATIC_REQUIRE(is_policy_v<Policy>);
  CAPTURE(options.seed);
  contract_detail::check_prompt(policy, options);
  contract_detail::check_steps(policy, options);
}

}  // namespace diffkv::test
