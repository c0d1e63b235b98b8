// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores without stored logits: which earlier queries a decode launch adds, and how it rounds them.
//! Read before this: attention/softmax_state.hpp.  Read next: attention/attention_options.hpp.
//!
//! The launch for position t recomputes the probabilities of queries t - k .. t - 1 from the key codes
//! that it reads anyway; a (sequence, layer) catches up when (t + layer) mod k = 0.
#include <diffkv/page/page_geometry.hpp>  // code_spec
#include <diffkv/policy/importance.hpp>   // query_span
#include <diffkv/table/row_state.hpp>     // candidate

namespace diffkv {

//! How lagged queries are rounded before their logits are recomputed.
enum class lag_rounding : std::uint8_t { none, int8 };

//! The default per format: 8-bit queries where the keys are codes, so that integer products serve both.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr lag_rounding default_lag_rounding(code_spec key) noexcept
{
  return key.is_quantised() ? lag_rounding::int8 : lag_rounding::none;
}

//! Positions first .. last - 1 of the queries that a launch adds; empty if first >= last.
struct due_queries {
  std::int32_t first = 0;
  std::int32_t last  = 0;
  bool catches_up    = false;  //!< candidates are made anew even if no query is due
};

//! @param position     t: position of the token being decoded, counted from 0
//! @param score_every  k: 1, 2, 4; 0: never
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr due_queries queries_due(std::int32_t position,
                                                                   std::uint32_t layer,
                                                                   std::int32_t score_every,
                                                                   query_span const& seen) noexcept
{
  if (score_every <= 0) { return {}; }
  // k is a power of two.
  std::uint32_t const at = static_cast<std::uint32_t>(position) + layer;
  if ((at & (static_cast<std::uint32_t>(score_every) - 1u)) != 0) { return {}; }
  // Query number n lies at position n - 1: the first one not yet summed is at seen.last_query.
  std::int32_t const first = detail::max_of(seen.last_query, position - score_every);
  return {first, position, true};
}

//! Factor and code of one element of an 8-bit query: q ~ factor * code, |code| <= 127.
//! `largest` is max |q'| over the q_head; 0 gives code 0.
[[nodiscard]] DIFFKV_HOST_DEVICE inline float int8_query_code(float q, float largest) noexcept
{
  if (largest == 0.0f) { return 0.0f; }
  return detail::round_half_even(detail::div_rn(detail::mul_rn(q, 127.0f), largest));
}
[[nodiscard]] DIFFKV_HOST_DEVICE inline float int8_query_factor(float scale, float largest) noexcept
{
  return detail::div_rn(detail::mul_rn(scale, largest), 127.0f);
}

}  // namespace diffkv
