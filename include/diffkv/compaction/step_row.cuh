// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The plan of a row carried out on the device: by a thread its pages, table and state, then by warps
//! the tokens that move.
//! Read before this: compaction/move_token.cuh, pool/claim_plan.cuh.  Read next: compaction/step.cuh.
#include <diffkv/compaction/move_token.cuh>
#include <diffkv/compaction/step_record.hpp>
#include <diffkv/pool/claim_plan.cuh>
#include <diffkv/pool/held_pages.cuh>

namespace diffkv::detail {

//! One row on its way: read before it is known whether its sequence is served, written after.
class step_row {
 public:
  //! Reads where the pages of the row's move lie now.
  __device__ step_row(cache_ref const& cache, std::size_t row, row_state const& state,
                      step_record const& record)
    : row_{row}, position_{record.position}, state_{state}, plan_{unpack_step(record, state.tokens)}
  {
    if (!moves()) { return; }
    tier const source     = demotes() ? tier::high : tier::low;
    slot_index const from = demotes() ? plan_.demote_from : plan_.fill_from;
    slot_index const to   = demotes() ? plan_.demote_to : plan_.fill_to;
    from_                 = cache.table.entry(row, source, page_of(cache, source, from));
    from_token_           = in_page(cache, source, from);
    to_token_             = in_page(cache, tier::low, to);
    if (plan_.low_page == page_source::none) {
      to_ = cache.table.entry(row, tier::low, page_of(cache, tier::low, to));
    }
  }
  [[nodiscard]] __device__ bool moves() const noexcept
  {
    return demotes() || plan_.fill_from != no_slot;
  }
  //! Carries out the plan, all but the move.
  //! @param ids  where the row's claimed pages lie in the ring: high before low
  __device__ void apply(cache_ref const& cache, ring_snapshot const& ring, std::uint64_t ids)
  {
    add_page(cache, tier::high, plan_.high_page, ring, ids);
    add_page(cache, tier::low, plan_.low_page, ring, ids);
    state_.tokens                            = plan_.tokens_after;
    state_.append_slot                       = plan_.append_slot;
    cache.state.rows[row_]                   = state_;
    cache.state.window_slot(row_, position_) = plan_.append_slot;
  }
  //! @pre moves(), and the plan was applied
  [[nodiscard]] __device__ token_move move() const
  {
    return {from_, to_, from_token_, to_token_, demotes()};
  }

 private:
  [[nodiscard]] __device__ bool demotes() const noexcept { return plan_.demote_from != no_slot; }
  [[nodiscard]] static __device__ std::uint32_t page_of(cache_ref const& cache, tier t,
                                                        slot_index slot) noexcept
  {
    return slot / cache.tiers.tokens_per_page(t);
  }
  [[nodiscard]] static __device__ std::uint16_t in_page(cache_ref const& cache, tier t,
                                                        slot_index slot) noexcept
  {
    return static_cast<std::uint16_t>(slot % cache.tiers.tokens_per_page(t));
  }
  __device__ void add_page(cache_ref const& cache, tier t, page_source source,
                           ring_snapshot const& ring, std::uint64_t& ids)
  {
    if (source == page_source::none) { return; }
    bool const high = t == tier::high;
    auto& mine      = high ? state_.pages.high : state_.pages.low;
    auto& theirs    = high ? state_.pages.low : state_.pages.high;
    page_id id      = no_page;
    if (source == page_source::ring) {
      id = cache.ring.ids[cell_behind(ring.head_cell, ids++, cache.ring.capacity)];
      if (cache.ring.is_checked()) { mark_held(cache.ring, id); }
    } else {
      page_id& spare = cache.table.entry(row_, high ? tier::low : tier::high, --theirs);
      id             = spare;
      spare          = no_page;
    }
    cache.table.entry(row_, t, mine++) = id;
    if (!high) { to_ = id; }  // the low part grows by the token that moves, and only then
  }

  std::size_t row_;
  std::int32_t position_;
  row_state state_;
  row_step plan_;
  page_id from_             = no_page;
  page_id to_               = no_page;
  std::uint16_t from_token_ = 0;
  std::uint16_t to_token_   = 0;
};

//! Shared memory of `move_tokens`.
template <int Rows>
struct token_moves {
  static constexpr unsigned row_warps = Rows / 32;
  std::uint32_t of_warp[row_warps];
  token_move moves[Rows];
};

//! Moves the tokens of a CTA's rows. The first `Rows` threads have a row each.
//! @param row    asked for its move where `moves` is set
//! @param low    format of the low tier, for its clips
//! @threads the CTA, whole warps
template <class Layouts, int Rows>
__device__ void move_tokens(page_pool_ref const& pool, step_row const& row, bool moves,
                            format_spec const& low, token_moves<Rows>& shared)
{
  constexpr unsigned row_warps = token_moves<Rows>::row_warps;
  unsigned const warp          = threadIdx.x / 32;
  unsigned const lane          = lane_index();
  unsigned const movers        = __ballot_sync(all_lanes, moves);
  if (warp < row_warps && lane == 0) {
    shared.of_warp[warp] = static_cast<std::uint32_t>(__popc(movers));
  }
  __syncthreads();
  std::uint32_t before = 0;
  std::uint32_t count  = 0;
  for (unsigned w = 0; w < row_warps; ++w) {
    before += w < warp ? shared.of_warp[w] : 0u;
    count += shared.of_warp[w];
  }
  if (count == 0) { return; }
  if (moves) {
    auto const place    = before + static_cast<unsigned>(__popc(movers & ((1u << lane) - 1u)));
    shared.moves[place] = row.move();
  }
  __syncthreads();
  // One token is read while the one before it is encoded and written. Copies are rare.
  std::uint32_t const stride = blockDim.x / 32;
  auto const at_lane         = static_cast<int>(lane);
  auto const next_demotion   = [&](std::uint32_t i) {
    for (; i < count && !shared.moves[i].demotes; i += stride) {
      copy_token<Layouts>(pool, shared.moves[i], at_lane);
    }
    return i;
  };
  std::uint32_t i = next_demotion(warp);
  if (i >= count) { return; }
  demotion<Layouts> token{pool, shared.moves[i], at_lane};
  for (;;) {
    std::uint32_t const next = next_demotion(i + stride);
    if (next >= count) { break; }
    demotion<Layouts> const other{pool, shared.moves[next], at_lane};
    token.store(pool, shared.moves[i], low, at_lane);
    token = other;
    i     = next;
  }
  token.store(pool, shared.moves[i], low, at_lane);
}

}  // namespace diffkv::detail
