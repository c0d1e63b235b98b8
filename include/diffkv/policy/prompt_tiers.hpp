// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The tier of each token of a prompt: the rules that hold for every policy, then the policy's own.
//! Read before this: policy/any_policy.hpp.  Read next: quant/code_spec.hpp.
#include <diffkv/policy/contract.hpp>

namespace diffkv {

//! Tier of token `number` (from 1) of a prompt, whose importance is read already.
//! The window is high; a token that no query has seen is high; a token whose importance is NaN is
//! kept (high), never dropped in silence; without low tier, low is high.
//! @param row     the view that `parameters` was prepared from
//! @param count   queries in this token's importance
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE tier prompt_tier(Policy const& policy, prompt_view const& row,
                                                  typename Policy::row_parameters const& parameters,
                                                  std::int32_t number, std::int32_t count,
                                                  float importance) noexcept
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  if (number > row.num_tokens - row.window || count <= 0) { return tier::high; }
  if (detail::is_nan(importance)) { return tier::high; }
  return without_low(policy.classify(importance, number, row.num_tokens, row.limits, parameters),
                     row.has_low);
}

//! The same; reads the importance from the row where it is asked for.
template <class Policy>
[[nodiscard]] DIFFKV_HOST_DEVICE tier prompt_tier(Policy const& policy, prompt_view const& row,
                                                  typename Policy::row_parameters const& parameters,
                                                  std::int32_t number, std::int32_t count) noexcept
{
  bool const is_asked = number <= row.num_tokens - row.window && count > 0;
  return prompt_tier(policy, row, parameters, number, count,
                     is_asked ? row.importances[number - 1] : 0.0f);
}

}  // namespace diffkv
