// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The policies are one definition: device and host decide alike.
#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <random>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using namespace diffkv;

//! What a policy says about one step and about one token.
struct verdict {
  step_decision step{};
  tier classified{};
  float priority = 0.0f;
};

DIFFKV_HOST_DEVICE verdict judge(any_policy const& policy, step_view const& view)
{
  any_policy::row_parameters const all{};
  token_view const& token = view.leaving;
  return {policy.step(view),
          policy.classify(token.importance, token.number, view.num_tokens, view.limits, all),
          policy.priority(token.importance, token.number, view.num_tokens)};
}

__global__ void judge_kernel(any_policy policy, step_view const* views, int count, verdict* out)
{
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) { out[i] = judge(policy, views[i]); }
}

//! One thread per row: the tiers of a whole prompt.
__global__ void prompt_kernel(any_policy policy, float const* importances, int num_rows,
                              int num_tokens, int window, thresholds limits, tier* out)
{
  int const r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= num_rows) { return; }
  prompt_view const row{importances + r * num_tokens, num_tokens, window, limits, true};
  auto const parameters = policy.prepare(row);
  query_span const queries{num_tokens, policy.prompt_queries(num_tokens), num_tokens};
  for (int i = 1; i <= num_tokens; ++i) {
    out[r * num_tokens + i - 1] = prompt_tier(policy, row, parameters, i, queries.count(i));
  }
}

constexpr policy_kind all_kinds[] = {policy_kind::paper, policy_kind::artifact,
                                     policy_kind::relative, policy_kind::static_budget};

any_policy make_policy(policy_kind kind, harmonic_ref harmonic)
{
  any_policy policy;
  policy.kind                 = kind;
  policy.relative.harmonic    = harmonic;
  policy.static_budget.budget = 37;
  return policy;
}

}  // namespace

TEST_CASE("policies: device and host decide alike on 10^5 random steps", "[policy]")
{
  constexpr int max_tokens = 5000;
  constexpr int count      = 100000;
  std::mt19937 engine{7};
  std::uniform_int_distribution<int> length{1, max_tokens};
  std::uniform_real_distribution<float> unit;
  std::vector<step_view> views(count);
  for (auto& v : views) {
    v.num_tokens     = length(engine);
    v.window         = 1 + length(engine) % 64;
    v.counts         = {static_cast<std::uint32_t>(length(engine) % 200),
                        static_cast<std::uint32_t>(length(engine) % 200)};
    v.limits         = {2.0f * unit(engine), 0.0f};
    v.limits.low     = v.limits.high * unit(engine) * unit(engine);
    v.has_low        = unit(engine) < 0.7f;
    auto const token = [&] {
      int const number = 1 + length(engine) % v.num_tokens;
      // Often exactly on a threshold: equality must fall alike.
      float const importance = unit(engine) < 0.3f
                                 ? v.limits.high / static_cast<float>(v.num_tokens)
                                 : 4.0f * unit(engine) / static_cast<float>(v.num_tokens);
      return token_view{unit(engine) < 0.8f, importance, number};
    };
    v.leaving    = token();
    v.least_high = token();
    v.least_low  = token();
  }
  harmonic_table const table{max_tokens};
  test::device_stream stream;
  test::device_array<double> const sums{table.ref().sums, max_tokens + 1};
  test::device_array<step_view> const device_views{views};
  for (policy_kind kind : all_kinds) {
    CAPTURE(static_cast<int>(kind));
    test::device_array<verdict> const out{count};
    judge_kernel<<<(count + 255) / 256, 256, 0, stream.get()>>>(
      make_policy(kind, {sums.data(), max_tokens}), device_views.data(), count, out.data());
    stream.wait();
    auto const got          = out.to_host();
    any_policy const policy = make_policy(kind, table.ref());
    int different           = 0;
    for (int i = 0; i < count; ++i) {
      auto const at        = static_cast<std::size_t>(i);
      verdict const wanted = judge(policy, views[at]);
      bool const same = wanted.step == got[at].step && wanted.classified == got[at].classified &&
                        detail::float_bits(wanted.priority) == detail::float_bits(got[at].priority);
      different += same ? 0 : 1;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("policies: device and host give every token of a prompt the same tier", "[policy]")
{
  constexpr int num_rows = 64;
  std::mt19937 engine{8};
  std::exponential_distribution<float> importance;
  for (int num_tokens : {1, 64, 65, 777}) {
    std::vector<float> importances(static_cast<std::size_t>(num_rows * num_tokens));
    for (auto& x : importances) { x = importance(engine) / static_cast<float>(num_tokens); }
    for (std::size_t i = 0; i < importances.size(); i += 13) {  // ties, and what is no number
      importances[i] = i % 2 == 0 ? 0.001f : std::numeric_limits<float>::quiet_NaN();
    }
    harmonic_table const table{num_tokens};
    test::device_stream stream;
    test::device_array<double> const sums{table.ref().sums,
                                          static_cast<std::size_t>(num_tokens) + 1};
    test::device_array<float> const device_importances{importances};
    for (policy_kind kind : all_kinds) {
      CAPTURE(num_tokens, static_cast<int>(kind));
      thresholds const limits{1.0f, 0.02f};
      test::device_array<tier> const out{importances.size()};
      prompt_kernel<<<1, num_rows, 0, stream.get()>>>(make_policy(kind, {sums.data(), num_tokens}),
                                                      device_importances.data(), num_rows,
                                                      num_tokens, 64, limits, out.data());
      stream.wait();
      std::vector<tier> wanted;
      any_policy const policy = make_policy(kind, table.ref());
      for (int r = 0; r < num_rows; ++r) {
        prompt_view const row{importances.data() + r * num_tokens, num_tokens, 64, limits, true};
        auto const parameters = policy.prepare(row);
        query_span const queries{num_tokens, policy.prompt_queries(num_tokens), num_tokens};
        for (int i = 1; i <= num_tokens; ++i) {
          wanted.push_back(prompt_tier(policy, row, parameters, i, queries.count(i)));
        }
      }
      CHECK(out.to_host() == wanted);
    }
  }
}
