// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One of the built-in policies, chosen at run time: for host programs with a `--policy` option.
//! Read before this: policy/static_budget.hpp.  Read next: policy/prompt_tiers.hpp.
#include <diffkv/policy/artifact.hpp>
#include <diffkv/policy/paper.hpp>
#include <diffkv/policy/relative.hpp>
#include <diffkv/policy/static_budget.hpp>

#include <string_view>

namespace diffkv {

enum class policy_kind : std::uint8_t { paper, artifact, relative, static_budget };

//! @throws invalid_argument naming the four policies
[[nodiscard]] inline policy_kind parse_policy(std::string_view text)
{
  if (text == "paper") { return policy_kind::paper; }
  if (text == "artifact") { return policy_kind::artifact; }
  if (text == "relative") { return policy_kind::relative; }
  DIFFKV_EXPECTS(text == "static", "policy: '" + std::string{text} +
                                     "' is unknown, use paper, artifact, relative or static");
  return policy_kind::static_budget;
}

//! Dispatches to the policy named by `kind`; itself a policy.
struct any_policy {
  policy_kind kind = policy_kind::relative;
  paper_policy paper{};
  artifact_policy artifact{};
  relative_policy relative{};
  static_policy static_budget{};

  using row_parameters = static_policy::row_parameters;

  //! @throws invalid_argument as the policy named by `kind` does
  void validate(std::int32_t max_tokens) const
  {
    if (kind == policy_kind::relative) { relative.validate(max_tokens); }
    if (kind == policy_kind::static_budget) { static_budget.validate(max_tokens); }
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t prompt_queries(
    std::int32_t num_tokens) const noexcept
  {
    return kind == policy_kind::artifact ? artifact.prompt_queries(num_tokens) : num_tokens;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const& row) const noexcept
  {
    return kind == policy_kind::static_budget ? static_budget.prepare(row) : row_parameters{};
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t number,
                                                 std::int32_t num_tokens, thresholds limits,
                                                 row_parameters const& row) const noexcept
  {
    switch (kind) {
      case policy_kind::paper:
        return paper.classify(importance, number, num_tokens, limits, {});
      case policy_kind::artifact:
        return artifact.classify(importance, number, num_tokens, limits, {});
      case policy_kind::relative:
        return relative.classify(importance, number, num_tokens, limits, {});
      default:
        return static_budget.classify(importance, number, num_tokens, limits, row);
    }
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t number,
                                                  std::int32_t num_tokens) const noexcept
  {
    return kind == policy_kind::relative ? relative.priority(importance, number, num_tokens)
                                         : importance;
  }

  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    switch (kind) {
      case policy_kind::paper:
        return paper.step(row);
      case policy_kind::artifact:
        return artifact.step(row);
      case policy_kind::relative:
        return relative.step(row);
      default:
        return static_budget.step(row);
    }
  }
};
static_assert(is_policy_v<any_policy>);

}  // namespace diffkv
