// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The extents of a cache and the numbering of rows.
//! Read before this: pool/claim_request.hpp.  Read next: table/page_table.hpp.
#include <diffkv/core/error.hpp>  // DIFFKV_EXPECTS

#include <cstddef>  // size_t
#include <cstdint>

namespace diffkv {

//! Largest score lag k (docs/glossary.md); queries wait at most this many steps to be summed.
inline constexpr std::int32_t max_score_every = 4;

//! When a (sequence, layer) adds the queries that wait (score_every > 1). Either way each query is added once,
//! and none waits for more than k steps.
enum class catch_up_schedule : std::uint8_t {
  //! At the layer's turn in the batch, (p + layer) mod k = 0, p the position of the batch's first sequence;
  //! a sequence of which k queries wait, in any launch. Sequences of a batch catch up together, which is fast
  //! (docs/decisions/0013-a-batch-catches-up-together.md), as long as the same one comes first and is not
  //! refused its steps.
  by_batch,
  //! (t + layer) mod k = 0, t the sequence's own position: what becomes of it does not depend on what else
  //! is in the batch.
  by_position
};

//! A sequence occupies a slot; row = (slot * num_layers + layer) * num_heads + head, so the rows of a
//! sequence are neighbours. q_head = head * group_size + its index in the group.
struct cache_shape {
  std::uint32_t num_slots    = 1;  //!< sequences at the same time
  std::uint32_t num_layers   = 1;
  std::uint32_t num_heads    = 1;  //!< kv heads
  std::uint32_t group_size   = 1;  //!< q_heads per head
  std::int32_t head_dim      = 64;
  std::int32_t max_tokens    = 0;   //!< longest sequence, pruned tokens counted
  std::int32_t window        = 64;  //!< W: the most recent tokens, always high
  std::int32_t score_every   = 4;   //!< k: 1, 2, 4; 0: no scores during generation
  catch_up_schedule schedule = catch_up_schedule::by_batch;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t num_q_heads() const noexcept
  {
    return num_heads * group_size;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t rows_per_slot() const noexcept
  {
    return num_layers * num_heads;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::size_t num_rows() const noexcept
  {
    return std::size_t{num_slots} * rows_per_slot();
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::size_t row(std::uint32_t slot,
                                                             std::uint32_t layer,
                                                             std::uint32_t head) const noexcept
  {
    return (std::size_t{slot} * num_layers + layer) * num_heads + head;
  }
  //! Index of (sequence, layer).
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::size_t layer_of(
    std::uint32_t slot, std::uint32_t layer) const noexcept
  {
    return std::size_t{slot} * num_layers + layer;
  }
  //! Whether the position of the batch's first sequence says when all catch up.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool first_decides() const noexcept
  {
    return score_every > 1 && schedule == catch_up_schedule::by_batch;
  }
  //! Candidates per row and tier: one for each step between two catch-ups.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t candidates_per_tier() const noexcept
  {
    return score_every > 1 ? static_cast<std::uint32_t>(score_every) : 1u;
  }
  //! Places of the query ring: the launch for t writes t while it reads t - k .. t - 1.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t ring_queries() const noexcept
  {
    return score_every > 0 ? static_cast<std::uint32_t>(score_every) + 1u : 0u;
  }
  //! Queries that the ring holds.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::size_t num_ring_queries() const noexcept
  {
    return std::size_t{num_slots} * num_layers * ring_queries() * num_q_heads();
  }
};

//! @throws invalid_argument naming the member and its legal values
inline void validate(cache_shape const& s)
{
  DIFFKV_EXPECTS(s.num_slots > 0 && s.num_layers > 0 && s.num_heads > 0 && s.group_size > 0,
                 "shape: num_slots, num_layers, num_heads and group_size must be at least 1");
  constexpr std::uint64_t most = 0xFFFF'FFFFu;
  DIFFKV_EXPECTS(std::uint64_t{s.num_layers} * s.num_heads <= most &&
                   std::uint64_t{s.num_heads} * s.group_size <= most,
                 "shape: num_layers * num_heads and num_heads * group_size must fit 32 bits");
  DIFFKV_EXPECTS(s.max_tokens > 0 && s.max_tokens <= (1 << 24),
                 "max_tokens: " + std::to_string(s.max_tokens) + " is not within 1 .. 16777216");
  DIFFKV_EXPECTS(s.window >= 1, "window: " + std::to_string(s.window) + " must be at least 1");
  DIFFKV_EXPECTS(s.score_every == 0 || s.score_every == 1 || s.score_every == 2 ||
                   s.score_every == max_score_every,
                 "score_every: " + std::to_string(s.score_every) + " must be 0, 1, 2 or 4");
  DIFFKV_EXPECTS(
    s.schedule == catch_up_schedule::by_batch || s.schedule == catch_up_schedule::by_position,
    "schedule: " + std::to_string(static_cast<int>(s.schedule)) +
      " must be catch_up_schedule::by_batch or by_position");
}

}  // namespace diffkv
