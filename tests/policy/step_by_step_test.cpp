// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Whole rows, step by step: a policy's decisions applied to sets of tokens against the same steps
//! told in words (reference/row_model.hpp), for windows from 1 to 64, with and without low tier.
#include "reference/row_model.hpp"
#include "support/catch.hpp"

#include <diffkv/policy/any_policy.hpp>

#include <algorithm>
#include <vector>

namespace {

using diffkv::policy_kind;
using diffkv::step_action;
using diffkv::test::row_sets;
using diffkv::test::step_words;

// Importance of a token when N is reserved: it wanders, now and then far, and ties happen.
float importance_at(int token, int n, unsigned seed)
{
  auto mixed = (seed * 1000003u + static_cast<unsigned>(token * 4099 + n / 3)) * 2654435761u;
  mixed ^= mixed >> 15;
  mixed *= 2246822519u;
  auto const draw   = static_cast<float>((mixed >> 20) % 64) / 32.0f;
  auto const spread = static_cast<float>(1 + token % 5) * 0.25f;
  return draw * draw * spread / static_cast<float>(n);
}

// u(i, N) for every i <= N <= steps, summed anew in f64 from the small terms up.
constexpr int steps = 160;
std::vector<std::vector<float>> even_importances()
{
  std::vector<std::vector<float>> out(steps + 1);
  for (int n = 1; n <= steps; ++n) {
    out[std::size_t(n)].resize(std::size_t(n) + 1);
    double sum = 0.0;
    for (int i = n; i >= 1; --i) {
      out[std::size_t(n)][std::size_t(i)] = static_cast<float>(i == n ? 1.0 / n : sum / (n - i));
      sum += 1.0 / i;
    }
  }
  return out;
}

// The library's step: what it sees of the sets, and its decision carried out on them.
void library_step(diffkv::any_policy const& policy, row_sets& row, step_words const& w)
{
  diffkv::step_view view{};
  view.num_tokens = w.n;
  view.window     = w.window;
  view.counts     = {static_cast<std::uint32_t>(row.high.size()),
                     static_cast<std::uint32_t>(row.low.size())};
  view.limits     = {w.a_high, w.a_low};
  view.has_low    = w.has_low;
  auto const see  = [&](int token) {
    return token == 0 ? diffkv::token_view{} : diffkv::token_view{true, w.importance(token), token};
  };
  // The least by the policy's own priority, ties to the lowest position.
  auto const least = [&](std::set<int> const& set, int last) {
    int best      = 0;
    float best_of = 0.0f;
    for (int const token : set) {
      if (token > last) { break; }
      float const p = policy.priority(w.importance(token), token, w.n);
      if (best == 0 || p < best_of) {
        best    = token;
        best_of = p;
      }
    }
    return best;
  };
  int const leaving = w.n - w.window >= 1 ? w.n - w.window : 0;
  int const high    = least(row.high, w.n - w.window - 1);
  int const low     = least(row.low, w.n);
  view.leaving      = see(leaving);
  view.least_high   = see(high);
  view.least_low    = see(low);

  auto const decision = policy.step(view);
  bool const of_leaving =
    decision.action == step_action::prune_leaving || decision.action == step_action::demote_leaving;
  int const moved = decision.action == step_action::grow ? 0 : of_leaving ? leaving : high;
  if (decision.prune_low) { row.low.erase(low); }
  if (moved != 0) { row.high.erase(moved); }
  if (decision.action == step_action::demote_leaving ||
      decision.action == step_action::demote_high) {
    row.low.insert(moved);
  }
  row.high.insert(w.n);
}

}  // namespace

TEST_CASE("policies: every step of a row does what the words say, W from 1 to 64", "[policy]")
{
  diffkv::harmonic_table const table{steps};
  auto const evens    = even_importances();
  unsigned const seed = 17;
  CAPTURE(seed);
  int moves[5] = {};
  for (int window = 1; window <= 64; ++window) {
    for (bool const has_low : {true, false}) {
      for (diffkv::thresholds const limits :
           {diffkv::thresholds{1.0f, 0.02f}, {0.25f, 0.0f}, {2.0f, 0.5f}, {0.5f, 0.5f}}) {
        for (auto const kind : {policy_kind::paper, policy_kind::artifact, policy_kind::relative,
                                policy_kind::static_budget}) {
          diffkv::any_policy policy{};
          policy.kind          = kind;
          policy.relative      = {table.ref()};
          policy.static_budget = {window / 2};
          row_sets got, want;
          for (int n = 1; n <= steps; ++n) {
            step_words w{};
            w.n             = n;
            w.window        = window;
            w.a_high        = limits.high;
            w.a_low         = limits.low;
            w.has_low       = has_low;
            w.importance    = [=](int token) { return importance_at(token, n, seed); };
            auto const even = [&evens, n](int token) {
              return evens[std::size_t(n)][std::size_t(token)];
            };
            w.limit = [=](float a, int token) {
              return kind == policy_kind::relative ? a * even(token) : a / static_cast<float>(n);
            };
            w.turn = [=](int token) {
              float const x = importance_at(token, n, seed);
              return kind == policy_kind::relative ? x / even(token) : x;
            };
            std::size_t const low_before  = got.low.size();
            std::size_t const high_before = got.high.size();
            library_step(policy, got, w);
            switch (kind) {
              case policy_kind::artifact:
                artifact_step_in_words(want, w);
                break;
              case policy_kind::static_budget:
                static_step_in_words(want, w, window / 2);
                break;
              default:
                threshold_step_in_words(want, w);
            }
            if (!(got == want)) {
              FAIL("policy " << static_cast<int>(kind) << ", W " << window << ", N " << n
                             << ", a_h " << limits.high << ", low tier " << has_low);
            }
            // At most one token enters and one leaves each part; the window stays high.
            bool const lawful = got.high.size() - high_before <= 1 &&
                                got.low.size() <= low_before + 1 && (has_low || got.low.empty());
            int in_window = 0;
            for (int token = std::max(1, n - window + 1); token <= n; ++token) {
              in_window += got.high.count(token) == 1 ? 1 : 0;
            }
            if (!lawful || in_window != std::min(n, window)) {
              FAIL("W " << window << ", N " << n);
            }
            moves[static_cast<int>(kind)] += got.high.size() == high_before ? 1 : 0;
          }
        }
      }
    }
  }
  for (int kind = 0; kind < 4; ++kind) { CHECK(moves[kind] > 1000); }  // the rows were not idle
}

TEST_CASE("static: a generating row holds its budget outside the window from then on", "[policy]")
{
  for (int const window : {1, 3, 64}) {
    for (int const budget : {0, 1, 10}) {
      diffkv::any_policy policy{};
      policy.kind          = policy_kind::static_budget;
      policy.static_budget = {budget};
      row_sets row;
      for (int n = 1; n <= 200; ++n) {
        step_words w{};
        w.n          = n;
        w.window     = window;
        w.importance = [=](int token) { return importance_at(token, n, 5); };
        library_step(policy, row, w);
        int const most = window + budget;
        CAPTURE(window, budget, n);
        CHECK(static_cast<int>(row.high.size()) == std::min(n, most));
      }
    }
  }
}
