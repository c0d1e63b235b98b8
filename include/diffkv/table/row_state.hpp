// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a row and a (sequence, layer) know of themselves, defined once for all operations.
//! Read before this: table/page_table.hpp.  Read next: table/batch_ref.hpp.
//!
//! Positions are counted from 0, as a model's rotary embedding counts them; the policy's token number
//! is position + 1.
#include <diffkv/core/types.hpp>
#include <diffkv/policy/importance.hpp>  // query_span
#include <diffkv/quant/lag_rounding.hpp>
#include <diffkv/table/cache_shape.hpp>

namespace diffkv {

//! A token that may leave its tier: the least important of some pages when scores were last updated.
struct candidate {
  std::int32_t position = -1;  //!< -1: none
  slot_index slot       = no_slot;
  float priority        = 0.0f;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool present() const noexcept { return position >= 0; }
  //! Whether this one goes before `other`: lesser priority, ties to the lower position.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool before(candidate const& other) const noexcept
  {
    if (!present() || !other.present()) { return present(); }
    return priority < other.priority || (priority == other.priority && position < other.position);
  }
};

//! Whether a token may become a candidate at the launch (or scan) for position `now`.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool may_leave(tier t, std::int32_t position,
                                                          std::int32_t now, std::int32_t window,
                                                          std::int32_t count) noexcept
{
  return count > 0 && (t == tier::low || position <= now - window);
}

//! State of one row; a row owns pages.high entries at the left and pages.low at the right.
struct row_state {
  tier_counts tokens{};              //!< stored tokens: slots 0 .. n - 1 of each tier are in use
  tier_counts pages{};               //!< pages held, at least what the tokens need
  slot_index append_slot = no_slot;  //!< high slot reserved for the token of this step
};

//! State of one (sequence, layer).
struct layer_state {
  std::int32_t num_tokens = 0;  //!< N: tokens seen, pruned ones and the reserved one included
  query_span queries{};         //!< which queries the scores hold
};

//! Handle of the state of all rows.
struct row_state_ref {
  row_state* rows       = nullptr;  //!< [num_rows]
  slot_index* window    = nullptr;  //!< [num_rows, window_tokens] high slots, by position modulo
  candidate* candidates = nullptr;  //!< [num_rows, 2 (high, low), candidates_per_tier]
  layer_state* layers   = nullptr;  //!< [num_slots, num_layers]
  std::int32_t window_tokens        = 0;  //!< the lesser of shape.window and shape.max_tokens
  std::uint32_t candidates_per_tier = 1;

  [[nodiscard]] DIFFKV_HOST_DEVICE slot_index& window_slot(std::size_t row,
                                                           std::int32_t position) const noexcept
  {
    auto const w = static_cast<std::size_t>(window_tokens);
    return window[row * w + static_cast<std::size_t>(position % window_tokens)];
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE candidate* candidates_of(std::size_t row, tier t) const noexcept
  {
    return candidates +
           (row * num_stored_tiers + (t == tier::high ? 0u : 1u)) * candidates_per_tier;
  }
};

//! Handle of the last k + 1 queries of each (sequence, layer), conditioned, and of their log-sum-exp
//! over the conditioned logits (not corrected for the key offset). Place = position % places.
struct query_ring_ref {
  //! [num_slots * num_layers, places, num_q_heads, head_dim] if `rounding` is none, else null.
  float* queries       = nullptr;
  float* lse           = nullptr;  //!< [num_slots * num_layers, places, num_q_heads]
  float* offset_logits = nullptr;  //!< the same extents: scale * q.c, which a soft-cap needs
  std::int8_t* codes = nullptr;  //!< as `queries` if `rounding` is int8, else null; 16-byte aligned
  float* largest     = nullptr;  //!< as `lse`, with codes: max |q'|
  lag_rounding rounding     = lag_rounding::none;
  std::uint32_t places      = 0;
  std::uint32_t num_q_heads = 0;
  std::int32_t head_dim     = 0;

  //! Index of (layer index, position, q_head) in `lse`, `offset_logits` and `largest`.
  [[nodiscard]] DIFFKV_HOST_DEVICE std::size_t index(std::size_t layer, std::int32_t position,
                                                     std::uint32_t q_head) const noexcept
  {
    std::size_t const place = static_cast<std::uint32_t>(position) % places;
    return (layer * places + place) * num_q_heads + q_head;
  }
  //! @pre rounding is none
  [[nodiscard]] DIFFKV_HOST_DEVICE float* query(std::size_t i) const noexcept
  {
    return queries + i * static_cast<std::size_t>(head_dim);
  }
  //! @pre rounding is int8
  [[nodiscard]] DIFFKV_HOST_DEVICE std::int8_t* codes_of(std::size_t i) const noexcept
  {
    return codes + i * static_cast<std::size_t>(head_dim);
  }
};

}  // namespace diffkv
