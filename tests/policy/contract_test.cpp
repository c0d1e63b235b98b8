// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "policy/contract.hpp"

#include <diffkv/policy/any_policy.hpp>

namespace {

using diffkv::artifact_policy;
using diffkv::harmonic_table;
using diffkv::paper_policy;
using diffkv::relative_policy;
using diffkv::static_policy;
using diffkv::step_action;
using diffkv::tier;
using diffkv::test::check_policy_contract;

// A policy of a user: keeps the first tokens (attention sinks) and the window, prunes the rest.
struct sink_policy {
  using row_parameters   = diffkv::no_parameters;
  std::int32_t num_sinks = 4;
  std::int32_t prompt_queries(std::int32_t) const { return 0; }
  row_parameters prepare(diffkv::prompt_view const&) const { return {}; }
  tier classify(float, std::int32_t number, std::int32_t, diffkv::thresholds,
                row_parameters const&) const
  {
    return number <= num_sinks ? tier::high : tier::pruned;
  }
  float priority(float importance, std::int32_t, std::int32_t) const { return importance; }
  diffkv::step_decision step(diffkv::step_view const& row) const
  {
    bool const prune = row.leaving.present && row.leaving.number > num_sinks;
    return {prune ? step_action::prune_leaving : step_action::grow, false};
  }
};

// Lacks `priority`.
struct incomplete_policy {
  using row_parameters = diffkv::no_parameters;
  std::int32_t prompt_queries(std::int32_t n) const { return n; }
  row_parameters prepare(diffkv::prompt_view const&) const { return {}; }
  tier classify(float, std::int32_t, std::int32_t, diffkv::thresholds, row_parameters const&) const
  {
    return tier::high;
  }
  diffkv::step_decision step(diffkv::step_view const&) const { return {}; }
};

struct wrong_return_policy : sink_policy {
  int classify(float, std::int32_t, std::int32_t, diffkv::thresholds, row_parameters const&) const
  {
    return 0;
  }
};

}  // namespace

TEST_CASE("contract: paper fulfils it", "[policy]") { check_policy_contract(paper_policy{}); }

TEST_CASE("contract: artifact fulfils it", "[policy]") { check_policy_contract(artifact_policy{}); }

TEST_CASE("contract: relative fulfils it", "[policy]")
{
  harmonic_table const table{300};
  check_policy_contract(relative_policy{table.ref()});
}

TEST_CASE("contract: static fulfils it, whatever the budget", "[policy]")
{
  for (std::int32_t const budget : {0, 1, 20, 64, 299, 1000}) {
    CAPTURE(budget);
    check_policy_contract(static_policy{budget}, {300, 60, 1500, 92});
  }
}

TEST_CASE("contract: any_policy fulfils it as each of its kinds", "[policy]")
{
  harmonic_table const table{300};
  for (auto const kind : {diffkv::policy_kind::paper, diffkv::policy_kind::artifact,
                          diffkv::policy_kind::relative, diffkv::policy_kind::static_budget}) {
    diffkv::any_policy policy{};
    policy.kind          = kind;
    policy.relative      = {table.ref()};
    policy.static_budget = {20};
    check_policy_contract(policy, {300, 60, 1500, 93});
  }
}

TEST_CASE("contract: a user's own policy fulfils it", "[policy]")
{
  check_policy_contract(sink_policy{});
}

TEST_CASE("contract: is_policy refuses what lacks a member or returns another type", "[policy]")
{
  STATIC_REQUIRE(diffkv::is_policy_v<sink_policy>);
  STATIC_REQUIRE_FALSE(diffkv::is_policy_v<incomplete_policy>);
  STATIC_REQUIRE_FALSE(diffkv::is_policy_v<wrong_return_policy>);
  STATIC_REQUIRE_FALSE(diffkv::is_policy_v<int>);
}

namespace {
// Steps otherwise than its base.
struct derived_policy : paper_policy {
  diffkv::step_decision step(diffkv::step_view const& row) const
  {
    return {step_action::grow, row.least_low.present};
  }
};
}  // namespace

TEST_CASE("contract: a policy decides about the leaving token first only if it says so of itself",
          "[policy]")
{
  STATIC_REQUIRE(diffkv::decides_leaving_first_v<paper_policy>);
  STATIC_REQUIRE(diffkv::decides_leaving_first_v<relative_policy>);
  STATIC_REQUIRE_FALSE(diffkv::decides_leaving_first_v<artifact_policy>);
  STATIC_REQUIRE_FALSE(diffkv::decides_leaving_first_v<static_policy>);
  STATIC_REQUIRE_FALSE(diffkv::decides_leaving_first_v<diffkv::any_policy>);
  STATIC_REQUIRE(diffkv::is_policy_v<derived_policy>);
  STATIC_REQUIRE_FALSE(diffkv::decides_leaving_first_v<derived_policy>);
  check_policy_contract(derived_policy{});
}

TEST_CASE("contract: equality with a threshold is low, on both sides", "[policy]")
{
  CHECK(diffkv::between(0.5f, 0.5f, 0.25f) == tier::low);
  CHECK(diffkv::between(0.25f, 0.5f, 0.25f) == tier::low);
  CHECK(diffkv::between(0.5f, 0.5f, 0.5f) == tier::low);
  CHECK(diffkv::between(0.50000006f, 0.5f, 0.25f) == tier::high);
  CHECK(diffkv::between(0.24999999f, 0.5f, 0.25f) == tier::pruned);
  CHECK(diffkv::without_low(tier::low, true) == tier::low);
  CHECK(diffkv::without_low(tier::low, false) == tier::high);
  CHECK(diffkv::without_low(tier::pruned, false) == tier::pruned);
}

TEST_CASE("any_policy: dispatches to the policy of its kind", "[policy]")
{
  harmonic_table const table{300};
  diffkv::any_policy any{};
  any.relative      = {table.ref()};
  any.static_budget = {20};
  std::mt19937 random{94};
  for (int n = 0; n < 2000; ++n) {
    auto const v = diffkv::test::contract_detail::draw_step(random, 300);
    any.kind     = diffkv::policy_kind::paper;
    CHECK(any.step(v) == any.paper.step(v));
    any.kind = diffkv::policy_kind::artifact;
    CHECK(any.step(v) == any.artifact.step(v));
    any.kind = diffkv::policy_kind::relative;
    CHECK(any.step(v) == any.relative.step(v));
    CHECK(any.priority(0.25f, 3, v.num_tokens) == any.relative.priority(0.25f, 3, v.num_tokens));
    any.kind = diffkv::policy_kind::static_budget;
    CHECK(any.step(v) == any.static_budget.step(v));
    CHECK(any.priority(0.25f, 3, v.num_tokens) == 0.25f);
  }
  for (std::int32_t const n : {1, 63, 64, 65, 1000}) {
    any.kind = diffkv::policy_kind::artifact;
    CHECK(any.prompt_queries(n) == std::min(n, 64));
    any.kind = diffkv::policy_kind::relative;
    CHECK(any.prompt_queries(n) == n);
  }
}

TEST_CASE("any_policy: names are read, others are refused with the four names", "[policy]")
{
  CHECK(diffkv::parse_policy("paper") == diffkv::policy_kind::paper);
  CHECK(diffkv::parse_policy("artifact") == diffkv::policy_kind::artifact);
  CHECK(diffkv::parse_policy("relative") == diffkv::policy_kind::relative);
  CHECK(diffkv::parse_policy("static") == diffkv::policy_kind::static_budget);
  for (char const* text : {"", "Paper", "static_budget", "h2o", "paper "}) {
    CHECK_THROWS_WITH(diffkv::parse_policy(text),
                      diffkv::test::contains("use paper, artifact, relative or static"));
  }
}
