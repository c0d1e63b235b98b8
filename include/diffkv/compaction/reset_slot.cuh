// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What admission and release share: how the rows of slots go to CTAs, and state as of a free slot.
//! Read before this: table/batch_ref.hpp, pool/claim_plan.cuh.  Read next: compaction/release.cuh.
#include <diffkv/pool/claim_plan.cuh>  // lane_index
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/cache_ref.hpp>

#include <cstddef>  // size_t

namespace diffkv {

//! Measured on an H200.
struct slot_tuning_sm90 {
  static constexpr unsigned threads   = 256;
  static constexpr unsigned warps     = threads / 32;
  static constexpr unsigned most_rows = threads;  //!< of a CTA
  //! Every CTA sums what all of them hold, so larger batches get larger parts.
  static constexpr unsigned wanted_ctas = 528;
};

namespace detail {

//! Each slot of a batch is shared by some CTAs, a part of its rows each.
struct slot_parts {
  std::uint32_t rows     = 0;  //!< of a part; the last may have fewer
  std::uint32_t per_slot = 0;
  std::uint32_t grid     = 0;  //!< CTAs
};

//! @throws invalid_argument if the batch is more than a grid can take
template <class Tuning = slot_tuning_sm90>
[[nodiscard]] inline slot_parts make_slot_parts(cache_shape const& shape, std::uint32_t capacity)
{
  std::uint64_t const per_slot = shape.rows_per_slot();
  std::uint64_t const wanted   = ceil_div<std::uint64_t>(capacity * per_slot, Tuning::wanted_ctas);
  std::uint64_t const rows     = min_of<std::uint64_t>(
    round_up<std::uint64_t>(max_of<std::uint64_t>(wanted, 1), Tuning::warps), Tuning::most_rows);
  std::uint64_t const parts = ceil_div(per_slot, rows);
  DIFFKV_EXPECTS(capacity * parts <= 0x7FFF'FFFEu, "batch: " + std::to_string(capacity) +
                                                     " sequences of " + std::to_string(per_slot) +
                                                     " rows are more than one launch can take");
  return {static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(parts),
          static_cast<std::uint32_t>(capacity * parts)};
}

//! The row holds no tokens.  @threads one warp; all have read what they need of the row
__device__ inline void reset_row(cache_ref const& cache, std::size_t row, std::uint32_t high_pages)
{
  std::uint32_t const lane = lane_index();
  if (lane == 0) {
    row_state state{};
    state.pages.high      = high_pages;
    cache.state.rows[row] = state;
  }
  candidate* const candidates = cache.state.candidates_of(row, tier::high);  // low ones lie behind
  for (std::uint32_t i = lane; i < num_stored_tiers * cache.state.candidates_per_tier; i += 32) {
    candidates[i] = candidate{};
  }
}

//! @threads the CTA
__device__ inline void set_layers(cache_ref const& cache, std::uint32_t slot,
                                  layer_state const& state)
{
  for (std::uint32_t l = threadIdx.x; l < cache.shape.num_layers; l += blockDim.x) {
    cache.layer(slot, l) = state;
  }
}

}  // namespace detail

}  // namespace diffkv
