// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace {

using diffkv::prompt_view;
using diffkv::static_policy;
using diffkv::tier;

std::vector<tier> tiers_of(diffkv::any_policy const& policy, prompt_view const& row)
{
  auto const parameters = policy.prepare(row);
  std::vector<tier> out;
  for (std::int32_t i = 1; i <= row.num_tokens; ++i) {
    out.push_back(prompt_tier(policy, row, parameters, i, row.num_tokens - i));
  }
  return out;
}

struct all_policies {
  diffkv::harmonic_table table{2000};
  std::vector<diffkv::any_policy> list{};

  explicit all_policies(std::int32_t budget)
  {
    for (auto const kind : {diffkv::policy_kind::paper, diffkv::policy_kind::artifact,
                            diffkv::policy_kind::relative, diffkv::policy_kind::static_budget}) {
      diffkv::any_policy policy{};
      policy.kind          = kind;
      policy.relative      = {table.ref()};
      policy.static_budget = {budget};
      list.push_back(policy);
    }
  }
};

}  // namespace

TEST_CASE("prompt_tiers: exactly the window is left where everything else is pruned", "[policy]")
{
  all_policies const policies{0};
  for (auto const& policy : policies.list) {
    for (std::int32_t window : {1, 2, 16, 63, 64, 65}) {
      for (std::int32_t n : {0, 1, window - 1, window, window + 1, 2 * window, 200}) {
        std::vector<float> const importances(static_cast<std::size_t>(n), 0.5f);
        prompt_view const row{importances.data(), n, window, {1e9f, 1e9f}, true};
        auto const tiers = tiers_of(policy, row);
        CAPTURE(static_cast<int>(policy.kind), window, n);
        for (std::int32_t i = 1; i <= n; ++i) {
          // The last token has count 0 and lies in every window.
          bool const kept = i > n - window;
          CHECK(tiers[std::size_t(i - 1)] == (kept ? tier::high : tier::pruned));
        }
      }
    }
  }
}

TEST_CASE("prompt_tiers: a token that no query has seen is high", "[policy]")
{
  all_policies const policies{0};
  std::vector<float> const importances(10, 0.0f);
  prompt_view const row{importances.data(), 10, 1, {1e9f, 1e9f}, true};
  for (auto const& policy : policies.list) {
    auto const parameters = policy.prepare(row);
    CHECK(prompt_tier(policy, row, parameters, 3, 0) == tier::high);
    CHECK(prompt_tier(policy, row, parameters, 3, -1) == tier::high);
    CHECK(prompt_tier(policy, row, parameters, 3, 1) == tier::pruned);
  }
}

TEST_CASE("prompt_tiers: NaN is kept, Inf, negative and zero are classified as usual", "[policy]")
{
  std::vector<float> const importances = {0.5f,  NAN,  HUGE_VALF, -1.0f, 0.0f,
                                          0.05f, 0.0f, 0.0f,      0.0f,  0.0f};
  all_policies const policies{3};
  prompt_view const row{importances.data(), 10, 4, {1.0f, 0.02f}, true};
  tier const paper[]  = {tier::low, tier::high, tier::high, tier::pruned, tier::pruned, tier::low};
  tier const over_n[] = {tier::high,   tier::high,   tier::high,
                         tier::pruned, tier::pruned, tier::low};  // 0.1 and 0.002
  tier const budgeted[]    = {tier::high,   tier::high,   tier::high,
                              tier::pruned, tier::pruned, tier::pruned};
  tier const* const want[] = {paper, over_n, over_n, budgeted};
  for (std::size_t p = 0; p < 4; ++p) {
    auto const tiers = tiers_of(policies.list[p], row);
    for (std::size_t i = 0; i < 10; ++i) {
      CAPTURE(p, i, importances[i]);
      CHECK(tiers[i] == (i < 6 ? want[p][i] : tier::high));
    }
  }
}

TEST_CASE("prompt_tiers: without low tier what would be low is high", "[policy]")
{
  std::mt19937 random{81};
  all_policies const policies{30};
  for (int n = 0; n < 20; ++n) {
    std::vector<float> importances;
    for (int i = 0; i < 150; ++i) {
      importances.push_back(std::ldexp(static_cast<float>(random() % 1000), -14));
    }
    prompt_view row{importances.data(), 150, 16, {1.0f, 0.1f}, true};
    for (auto const& policy : policies.list) {
      row.has_low     = true;
      auto const with = tiers_of(policy, row);
      row.has_low     = false;
      auto const none = tiers_of(policy, row);
      for (std::size_t i = 0; i < 150; ++i) {
        CHECK(none[i] == (with[i] == tier::low ? tier::high : with[i]));
      }
    }
  }
}

TEST_CASE("static: a prompt keeps exactly its budget and the window, the later of equals",
          "[policy]")
{
  std::mt19937 random{82};
  for (int n = 0; n < 400; ++n) {
    auto const tokens = static_cast<std::int32_t>(1 + random() % 120);
    auto const window = static_cast<std::int32_t>(1 + random() % 40);
    auto const budget = static_cast<std::int32_t>(random() % 60);
    std::vector<float> importances;
    for (std::int32_t i = 0; i < tokens; ++i) {
      importances.push_back(
        random() % 20 == 0 ? NAN : static_cast<float>(random() % unsigned(n % 4 + 1)) * 0.25f);
    }
    prompt_view const row{importances.data(), tokens, window, {1.0f, 0.0f}, true};
    static_policy const policy{budget};
    auto const parameters = policy.prepare(row);

    // Outside the window, most important first, NaN before all, of equals the later first.
    std::vector<std::int32_t> order(std::size_t(std::max(0, tokens - window)));
    std::iota(order.begin(), order.end(), 1);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      float const x = importances[std::size_t(a - 1)], y = importances[std::size_t(b - 1)];
      if (std::isnan(x) != std::isnan(y)) { return std::isnan(x); }
      if (!std::isnan(x) && x != y) { return x > y; }
      return a > b;
    });
    auto const kept = std::min(order.size(), static_cast<std::size_t>(budget));
    std::vector<bool> high(std::size_t(tokens), false);
    for (std::size_t i = 0; i < kept; ++i) { high[std::size_t(order[i] - 1)] = true; }
    int wrong = 0;
    for (std::int32_t i = 1; i <= tokens - window; ++i) {
      tier const t = policy.classify(importances[std::size_t(i - 1)], i, tokens, {}, parameters);
      wrong += (t == tier::high) == high[std::size_t(i - 1)] ? 0 : 1;
    }
    CAPTURE(n, tokens, window, budget);
    CHECK(wrong == 0);
  }
}
