// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The policies written from docs/policies.md with lists and sorts, independent of policy/.
#include <diffkv/core/types.hpp>         // tier
#include <diffkv/policy/any_policy.hpp>  // policy_kind
#include <diffkv/policy/thresholds.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace diffkv::test {

//! Which queries a token's score holds: docs/policies.md, tokens numbered from 1.
struct model_queries {
  int prompt_tokens  = 0;
  int prompt_queries = 0;
  int last           = 0;

  [[nodiscard]] int count(int number) const
  {
    int const n = number <= prompt_tokens
                    ? std::min(prompt_queries, prompt_tokens - number) + (last - prompt_tokens)
                    : last - number;
    return std::max(n, 0);
  }
};

struct model_policy {
  policy_kind kind = policy_kind::paper;
  int budget       = 0;

  [[nodiscard]] int prompt_queries(int num_tokens) const
  {
    return kind == policy_kind::artifact ? std::min(64, num_tokens) : num_tokens;
  }

  //! What an even spread of attention would give token i of N.
  [[nodiscard]] static float even(int number, int num_tokens)
  {
    if (number == num_tokens) { return static_cast<float>(1.0 / num_tokens); }
    double to_number = 0.0;
    double to_last   = 0.0;
    for (int n = 1; n <= num_tokens; ++n) {
      to_last += 1.0 / n;
      if (n == number) { to_number = to_last; }
    }
    return static_cast<float>((to_last - to_number) / (num_tokens - number));
  }

  //! By the thresholds of a prompt (paper: over i) or of a step (paper: over N). Not for `static`.
  [[nodiscard]] tier classify(float importance, int number, int num_tokens, thresholds a,
                              bool at_prompt) const
  {
    float high = 0.0f;
    float low  = 0.0f;
    if (kind == policy_kind::relative) {
      high = a.high * even(number, num_tokens);
      low  = a.low * even(number, num_tokens);
    } else {
      auto const by =
        static_cast<float>(kind == policy_kind::paper && at_prompt ? number : num_tokens);
      high = a.high / by;
      low  = a.low / by;
    }
    if (importance > high) { return tier::high; }
    return importance < low ? tier::pruned : tier::low;
  }

  [[nodiscard]] float priority(float importance, int number, int num_tokens) const
  {
    return kind == policy_kind::relative ? importance / even(number, num_tokens) : importance;
  }

  //! Tiers of all tokens of a prompt.
  [[nodiscard]] std::vector<tier> prompt_tiers(std::vector<float> const& importances, int window,
                                               thresholds a, bool has_low) const
  {
    int const n = static_cast<int>(importances.size());
    model_queries const queries{n, prompt_queries(n), n};
    std::vector<tier> tiers(importances.size(), tier::high);
    std::vector<int> outside;
    for (int number = 1; number <= n - window; ++number) {
      float const importance = importances[static_cast<std::size_t>(number - 1)];
      if (queries.count(number) == 0) { continue; }
      outside.push_back(number);
      if (std::isnan(importance) || kind == policy_kind::static_budget) { continue; }
      tier const t                                = classify(importance, number, n, a, true);
      tiers[static_cast<std::size_t>(number - 1)] = t == tier::low && !has_low ? tier::high : t;
    }
    if (kind == policy_kind::static_budget) {
      // The least important go first, of equals the earlier; NaN is kept before all others.
      std::stable_sort(outside.begin(), outside.end(), [&](int a_number, int b_number) {
        float const x = importances[static_cast<std::size_t>(a_number - 1)];
        float const y = importances[static_cast<std::size_t>(b_number - 1)];
        return std::isnan(y) ? !std::isnan(x) : x < y;
      });
      for (int i = 0; i + budget < static_cast<int>(outside.size()); ++i) {
        int const number = outside[static_cast<std::size_t>(i)];
        bool const kept  = std::isnan(importances[static_cast<std::size_t>(number - 1)]);
        tiers[static_cast<std::size_t>(number - 1)] = kept ? tier::high : tier::pruned;
      }
    }
    return tiers;
  }
};

}  // namespace diffkv::test
