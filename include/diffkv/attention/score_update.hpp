// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores without stored logits: which earlier queries a decode launch adds.
//! Read before this: attention/softmax_state.hpp.  Read next: attention/attention_options.hpp.
//!
//! The launch for position t recomputes the probabilities of queries t - k .. t - 1 from the key codes
//! that it reads anyway; a (sequence, layer) catches up when (t + layer) mod k = 0.
#include <diffkv/policy/importance.hpp>  // query_span
#include <diffkv/table/row_state.hpp>    // candidate

namespace diffkv {

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

}  // namespace diffkv
