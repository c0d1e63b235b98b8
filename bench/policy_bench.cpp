// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// The tiers of a prompt, and the decisions of generation steps. Items are tokens, or rows.
#include "bench_inputs.hpp"

#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <algorithm>
#include <cstring>

namespace {

using namespace diffkv;
constexpr std::int32_t max_tokens = 8192;
constexpr std::int32_t window     = 64;
constexpr thresholds limits{2.0f, 0.1f};

harmonic_ref shared_harmonic()
{
  static harmonic_table const table{max_tokens};
  return table.ref();
}

template <class Policy>
Policy make_policy()
{
  if constexpr (std::is_same_v<Policy, relative_policy>) { return {shared_harmonic()}; }
  if constexpr (std::is_same_v<Policy, static_policy>) { return {256}; }
  return {};
}

//! Importances of a prompt around those of even attention: a skewed mix of all three tiers.
std::vector<float> importances(std::int32_t num_tokens)
{
  auto x = bench::normal_numbers(static_cast<std::size_t>(num_tokens), 7);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::exp(2.0f * x[i]) *
           shared_harmonic().even_importance(static_cast<std::int32_t>(i) + 1, num_tokens);
  }
  return x;
}

//! What a threshold is multiplied with, by the formula of each policy in f64.
template <class Policy>
double reference_importance(std::int32_t number, std::int32_t num_tokens)
{
  if constexpr (std::is_same_v<Policy, paper_policy>) { return 1.0 / number; }
  if constexpr (std::is_same_v<Policy, artifact_policy>) { return 1.0 / num_tokens; }
  double sum = 0.0;
  for (std::int32_t n = num_tokens; n > number; --n) { sum += 1.0 / n; }
  return sum / (num_tokens - number);
}

template <class Policy>
bool tiers_are_right(std::vector<float> const& x, std::vector<tier> const& tiers)
{
  auto const n         = static_cast<std::int32_t>(x.size());
  std::int32_t outside = n - window;
  std::vector<float> sorted(x.begin(), x.begin() + outside);
  std::sort(sorted.begin(), sorted.end(), std::greater<>{});
  for (std::int32_t i = 1; i <= n; ++i) {
    auto const at = static_cast<std::size_t>(i - 1);
    tier expected = tier::high;
    if (i > outside) {
    } else if constexpr (std::is_same_v<Policy, static_policy>) {
      expected = x[at] >= sorted[255] ? tier::high : tier::pruned;  // no two are equal
    } else {
      double const even = reference_importance<Policy>(i, n);
      if (bench::near(x[at], limits.high * even, 1e-6 * even)) { continue; }
      if (bench::near(x[at], limits.low * even, 1e-6 * even)) { continue; }
      expected = x[at] > limits.high * even  ? tier::high
                 : x[at] < limits.low * even ? tier::pruned
                                             : tier::low;
    }
    if (tiers[at] != expected) { return false; }
  }
  return true;
}

template <class Policy>
void classify(benchmark::State& state)
{
  auto const n      = static_cast<std::int32_t>(state.range(0));
  auto const policy = make_policy<Policy>();
  auto const x      = importances(n);
  std::vector<tier> tiers(x.size());
  auto const classify_all = [&] {
    prompt_view const view{x.data(), n, window, limits, true};
    auto const parameters = policy.prepare(view);
    for (std::int32_t i = 1; i <= n; ++i) {
      tiers[static_cast<std::size_t>(i - 1)] = prompt_tier(policy, view, parameters, i, 1);
    }
  };
  classify_all();
  if (!tiers_are_right<Policy>(x, tiers)) { return state.SkipWithError("a tier is wrong"); }
  for (auto _ : state) {
    classify_all();
    benchmark::DoNotOptimize(tiers.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, x.size());
}
BENCHMARK_TEMPLATE(classify, paper_policy)->ArgNames({"tokens"})->Arg(1024)->Arg(8192);
BENCHMARK_TEMPLATE(classify, artifact_policy)->ArgNames({"tokens"})->Arg(1024)->Arg(8192);
BENCHMARK_TEMPLATE(classify, relative_policy)->ArgNames({"tokens"})->Arg(1024)->Arg(8192);
BENCHMARK_TEMPLATE(classify, static_policy)->ArgNames({"tokens"})->Arg(1024)->Arg(8192);

//! Baseline: the importances copied.
void copy_importances(benchmark::State& state)
{
  auto const x = importances(static_cast<std::int32_t>(state.range(0)));
  std::vector<float> to(x.size());
  for (auto _ : state) {
    std::memcpy(to.data(), x.data(), x.size() * sizeof(float));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, x.size());
}
BENCHMARK(copy_importances)->ArgNames({"tokens"})->Arg(1024)->Arg(8192);

//! Rows at a step with every token present.
std::vector<step_view> step_views(std::size_t count)
{
  std::mt19937 random{7};
  auto const x = bench::normal_numbers(3 * count, 11);
  std::vector<step_view> views(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto const token = [&](std::size_t j, std::int32_t number) {
      return token_view{true, std::exp(2.0f * x[3 * i + j]) / 1024.0f, number};
    };
    views[i].num_tokens = 1024;
    views[i].window     = window;
    views[i].counts     = {200 + static_cast<std::uint32_t>(random() % 200), 100};
    views[i].limits     = limits;
    views[i].leaving    = token(0, 1024 - window);
    views[i].least_high = token(1, 1 + static_cast<std::int32_t>(random() % 900));
    views[i].least_low  = token(2, 1 + static_cast<std::int32_t>(random() % 900));
  }
  return views;
}

//! The rules of the four policies (docs/policies.md) once more, in f64.
template <class Policy>
step_decision expected_step(step_view const& row)
{
  double const c  = row.leaving.importance;
  double const mh = row.least_high.importance;
  double const ml = row.least_low.importance;
  if constexpr (std::is_same_v<Policy, static_policy>) {
    if (row.counts.high <= 256 + window - 1) { return {}; }
    return {c < mh ? step_action::prune_leaving : step_action::prune_high, false};
  } else if constexpr (std::is_same_v<Policy, artifact_policy>) {
    double const n = row.num_tokens;
    if (mh < limits.low / n && mh < ml) { return {step_action::prune_high, false}; }
    if (mh < limits.high / n) { return {step_action::demote_high, ml < limits.low / n}; }
    return {};
  } else {
    auto const even = [&](token_view const& token) {
      return std::is_same_v<Policy, paper_policy>
               ? 1.0 / row.num_tokens
               : reference_importance<relative_policy>(token.number, row.num_tokens);
    };
    if (c < limits.low * even(row.leaving)) { return {step_action::prune_leaving, false}; }
    if (c <= limits.high * even(row.leaving)) {
      return {step_action::demote_leaving, ml < limits.low * even(row.least_low)};
    }
    if (mh < limits.low * even(row.least_high)) { return {step_action::prune_high, false}; }
    if (mh <= limits.high * even(row.least_high)) { return {step_action::demote_high, false}; }
    return {};
  }
}

template <class Policy>
void step_decisions(benchmark::State& state)
{
  auto const policy = make_policy<Policy>();
  auto const views  = step_views(static_cast<std::size_t>(state.range(0)));
  std::vector<step_decision> decisions(views.size());
  for (step_view const& view : views) {
    if (!(policy.step(view) == expected_step<Policy>(view))) {
      return state.SkipWithError("a decision is wrong");
    }
  }
  for (auto _ : state) {
    for (std::size_t i = 0; i < views.size(); ++i) { decisions[i] = policy.step(views[i]); }
    benchmark::DoNotOptimize(decisions.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, views.size());
}
BENCHMARK_TEMPLATE(step_decisions, paper_policy)->ArgNames({"rows"})->Arg(1440);
BENCHMARK_TEMPLATE(step_decisions, artifact_policy)->ArgNames({"rows"})->Arg(1440);
BENCHMARK_TEMPLATE(step_decisions, relative_policy)->ArgNames({"rows"})->Arg(1440);
BENCHMARK_TEMPLATE(step_decisions, static_policy)->ArgNames({"rows"})->Arg(1440);

}  // namespace
