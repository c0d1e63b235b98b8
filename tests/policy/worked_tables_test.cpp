// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The worked tables of docs/policies.md, line by line.
#include "reference/markdown_table.hpp"
#include "support/catch.hpp"

#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <cmath>

namespace {

using diffkv::policy_kind;
using diffkv::tier;

std::string const document = DIFFKV_SOURCE_DIR "/docs/policies.md";

constexpr policy_kind kinds[] = {policy_kind::paper, policy_kind::artifact, policy_kind::relative,
                                 policy_kind::static_budget};

diffkv::any_policy make(policy_kind kind, diffkv::harmonic_table const& table, std::int32_t budget)
{
  diffkv::any_policy policy{};
  policy.kind          = kind;
  policy.relative      = {table.ref()};
  policy.static_budget = {budget};
  return policy;
}

std::string words(diffkv::step_decision d)
{
  char const* const names[] = {"grow", "prune leaving", "demote leaving", "prune high",
                               "demote high"};
  return names[static_cast<int>(d.action)] + std::string{d.prune_low ? ", prune low" : ""};
}

diffkv::token_view token(std::string const& cell, std::int32_t number)
{
  return cell == "-" ? diffkv::token_view{}
                     : diffkv::token_view{true, std::strtof(cell.c_str(), nullptr), number};
}

}  // namespace

TEST_CASE("policies: the worked prompts of docs/policies.md", "[policy]")
{
  auto const tables = diffkv::test::tables_of(
    document, {"token", "importance", "paper", "artifact", "relative", "static"});
  REQUIRE(tables.size() == 2);
  diffkv::harmonic_table const harmonic{8};
  for (bool const has_low : {true, false}) {
    auto const& rows = tables[has_low ? 0 : 1];
    REQUIRE(rows.size() == 8);
    std::vector<float> importances;
    for (auto const& row : rows) { importances.push_back(std::strtof(row[1].c_str(), nullptr)); }
    diffkv::prompt_view const view{importances.data(), 8, 2, {1.0f, 0.25f}, has_low};
    for (std::size_t k = 0; k < 4; ++k) {
      auto const policy     = make(kinds[k], harmonic, 2);
      auto const parameters = policy.prepare(view);
      for (std::int32_t i = 1; i <= 8; ++i) {
        auto const& row = rows[std::size_t(i - 1)];
        CAPTURE(has_low, k, i, row[1]);
        CHECK(row[0] == std::to_string(i));
        CHECK(name(prompt_tier(policy, view, parameters, i, 8 - i)) == row[2 + k]);
      }
    }
  }
}

TEST_CASE("policies: the limits of the worked prompt are those of docs/policies.md", "[policy]")
{
  auto const tables = diffkv::test::tables_of(document, {"token", "paper", "artifact", "relative"});
  REQUIRE(tables.size() == 1);
  REQUIRE(tables[0].size() == 6);
  diffkv::harmonic_table const harmonic{8};
  diffkv::thresholds const limits{1.0f, 0.25f};
  for (auto const& row : tables[0]) {
    auto const i = static_cast<std::int32_t>(std::stoi(row[0]));
    for (std::size_t k = 0; k < 3; ++k) {
      std::string const& cell = row[1 + k];
      float const high        = std::stof(cell);
      float const low         = std::stof(cell.substr(cell.find("and") + 4));
      auto const policy       = make(kinds[k], harmonic, 0);
      auto const at           = [&](float x) { return policy.classify(x, i, 8, limits, {}); };
      float const step        = 1e-6f;  // the table has six digits
      CAPTURE(i, k, cell);
      CHECK(at(high + step) == tier::high);
      CHECK(at(high - step) == tier::low);
      CHECK(at(low + step) == tier::low);
      CHECK(at(low - step) == tier::pruned);
    }
  }
}

TEST_CASE("policies: the worked steps of docs/policies.md", "[policy]")
{
  auto const tables = diffkv::test::tables_of(
    document, {"leaving", "least high", "least low", "paper", "artifact", "relative", "static"});
  REQUIRE(tables.size() == 2);
  CHECK(tables[0].size() == 13);
  CHECK(tables[1].size() == 8);
  diffkv::harmonic_table const harmonic{100};
  CHECK(std::fabs(harmonic.ref().even_importance(36, 100) - 0.015825) < 1e-6);
  CHECK(std::fabs(harmonic.ref().even_importance(10, 100) - 0.025093) < 1e-6);
  CHECK(std::fabs(harmonic.ref().even_importance(20, 100) - 0.019870) < 1e-6);
  for (bool const has_low : {true, false}) {
    for (auto const& row : tables[has_low ? 0 : 1]) {
      REQUIRE(row.size() == 7);
      diffkv::step_view view{};
      view.num_tokens = 100;
      view.window     = 64;
      view.limits     = {1.0f, 0.02f};
      view.has_low    = has_low;
      view.counts     = {64 + 10, has_low ? 5u : 0u};  // the leaving token and 63, 10 outside
      view.leaving    = token(row[0], 36);
      view.least_high = token(row[1], 10);
      view.least_low  = token(row[2], 20);
      for (std::size_t k = 0; k < 4; ++k) {
        CAPTURE(has_low, row[0], row[1], row[2], k);
        CHECK(words(make(kinds[k], harmonic, 10).step(view)) == row[3 + k]);
      }
    }
  }
}

TEST_CASE("policies: scores exactly on the thresholds are low, at the prompt and at a step",
          "[policy]")
{
  struct line {
    float importance;
    tier expected;
  };
  float const high = 1.0f / 64, low = 1.0f / 256;
  line const lines[] = {{high, tier::low},
                        {std::nextafter(high, 1.0f), tier::high},
                        {low, tier::low},
                        {std::nextafter(low, 0.0f), tier::pruned},
                        {0.0f, tier::pruned}};
  diffkv::paper_policy const paper{};
  diffkv::artifact_policy const artifact{};
  for (line const& l : lines) {
    CAPTURE(l.importance);
    CHECK(paper.classify(l.importance, 64, 200, {1.0f, 0.25f}, {}) == l.expected);
    CHECK(artifact.classify(l.importance, 7, 64, {1.0f, 0.25f}, {}) == l.expected);
    diffkv::step_view view{};
    view.num_tokens = 64;
    view.window     = 8;
    view.limits     = {1.0f, 0.25f};
    view.leaving    = {true, l.importance, 56};
    auto const want = l.expected == tier::high  ? diffkv::step_action::grow
                      : l.expected == tier::low ? diffkv::step_action::demote_leaving
                                                : diffkv::step_action::prune_leaving;
    CHECK(paper.step(view).action == want);
  }
  diffkv::harmonic_table const table{64};
  diffkv::relative_policy const relative{table.ref()};
  for (std::int32_t i = 1; i <= 64; ++i) {
    float const even = table.ref().even_importance(i, 64);
    CHECK(relative.classify(even, i, 64, {1.0f, 0.25f}, {}) == tier::low);
    CHECK(relative.classify(std::nextafter(even, 1.0f), i, 64, {1.0f, 0.25f}, {}) == tier::high);
    CHECK(relative.classify(even / 4, i, 64, {1.0f, 0.25f}, {}) == tier::low);
    CHECK(relative.classify(std::nextafter(even / 4, 0.0f), i, 64, {1.0f, 0.25f}, {}) ==
          tier::pruned);
  }
}

TEST_CASE("policies: the index in 1/i starts at one", "[policy]")
{
  diffkv::paper_policy const paper{};
  CHECK(paper.classify(0.9f, 1, 50, {1.0f, 0.02f}, {}) == tier::low);
  CHECK(paper.classify(0.6f, 2, 50, {1.0f, 0.02f}, {}) == tier::high);
  CHECK(paper.classify(0.021f, 1, 50, {1.0f, 0.02f}, {}) == tier::low);
  CHECK(paper.classify(0.019f, 1, 50, {1.0f, 0.02f}, {}) == tier::pruned);
}

TEST_CASE("policies: even attention is low everywhere for a_h = 1", "[policy]")
{
  // N = 4, W = 1: each query spreads evenly over itself and what came before.
  float const importances[] = {0.361111f, 0.291667f, 0.25f, 0.0f};
  diffkv::prompt_view const view{importances, 4, 1, {1.0f, 0.02f}, true};
  diffkv::paper_policy const paper{};
  tier const expected[] = {tier::low, tier::low, tier::low, tier::high};
  for (std::int32_t i = 1; i <= 4; ++i) {
    CHECK(prompt_tier(paper, view, {}, i, 4 - i) == expected[i - 1]);
  }
}
