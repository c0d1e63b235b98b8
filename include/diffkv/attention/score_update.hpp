// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores without stored logits: which earlier queries a decode launch adds.
//! Read before this: attention/softmax_state.hpp.  Read next: attention/attention_options.hpp.
//!
//! The launch for position t recomputes the probabilities of the queries that wait, t - k .. t - 1 at most, from
//! the key codes that it reads anyway; catch_up_schedule says when.
#include <diffkv/table/row_state.hpp>  // layer_state

namespace diffkv {

//! Positions first .. last - 1 of the queries that a launch adds; empty if first >= last.
struct due_queries {
  std::int32_t first = 0;
  std::int32_t last  = 0;
  bool catches_up    = false;  //!< candidates are made anew even if no query is due
};

//! Whose turn it is in a launch, for all of its sequences.
struct catch_up_turn {
  std::uint32_t layer      = 0;
  std::int32_t score_every = 0;  //!< k: 1, 2, 4; 0: never
  std::int32_t tokens = 0;  //!< of the sequence whose position decides; 0: each goes by its own

  //! The queries that the launch adds to a sequence, which has its new token.
  //! @pre state.num_tokens > 0
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr due_queries queries_due(
    layer_state const& state) const noexcept
  {
    if (score_every <= 0) { return {}; }
    std::int32_t const position = state.num_tokens - 1;
    std::int32_t const oldest   = position - score_every;  // of those in the ring
    // Query number n lies at position n - 1: the first one not yet summed is at last_query.
    std::int32_t const waiting = state.queries.last_query;
    auto const turn =
      static_cast<std::uint32_t>(tokens > 0 ? tokens : state.num_tokens) - 1u + layer;
    // k is a power of two.
    bool const is_turn = (turn & (static_cast<std::uint32_t>(score_every) - 1u)) == 0;
    if (!is_turn && waiting > oldest) { return {}; }
    return {detail::max_of(waiting, oldest), position, true};
  }
};

}  // namespace diffkv
