// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The claim on the device: demand of any number of rows -> disjoint intervals of the ring -> ids.
//! Read before this: pool/claim_tile.cuh, pool/held_pages.cuh.  Read next: pool/release.cuh.
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/claim_tile.cuh>
#include <diffkv/pool/held_pages.cuh>  // mark_held

#include <cstddef>  // size_t

namespace diffkv {

namespace detail {

//! Where an SM takes 2048 threads, CTAs of the second launch load their rows beside those of the first.
#if defined(__CUDA_ARCH__) && \
  (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030)
inline constexpr unsigned claim_ctas_per_sm = 2;
#else
inline constexpr unsigned claim_ctas_per_sm = 1;
#endif

//! First launch: what each sequence and each tile wants; one CTA more takes the snapshot.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::max_threads, claim_ctas_per_sm)
  claim_demand_kernel(__grid_constant__ claim_params const p)
{
  __shared__ demand_sum shared[32];
  wait_for_previous();
  if (blockIdx.x == p.tiles.count) {  // apart, so that no tile waits for the counters
    if (threadIdx.x == 0) { *p.snapshot = take_snapshot(p.ring); }
    return;
  }
  claim_tile const tile       = tile_at(p, blockIdx.x);
  std::uint32_t const* demand = p.request.demand + tile.row;

  demand_sum mine = demand_sum::none();
  if (p.is_split()) {
    mine.pages = sum_strided(demand, tile.rows, threadIdx.x, blockDim.x);
  } else {
    std::uint32_t const per_seq = p.request.rows_per_sequence;
    std::uint32_t const lane    = threadIdx.x % p.lanes;
    for (std::uint32_t first = 0; first < tile.sequences; first += blockDim.x / p.lanes) {
      std::uint32_t const s = first + threadIdx.x / p.lanes;
      std::uint64_t sum     = 0;
      if (s < tile.sequences) {
        sum = sum_strided(demand + std::size_t{s} * per_seq, per_seq, lane, p.lanes);
      }
      if (p.lanes == 32) {
        sum = warp_sum(sum);
      } else {
        for (std::uint32_t other = p.lanes / 2; other > 0; other /= 2) {
          sum += __shfl_xor_sync(all_lanes, sum, static_cast<int>(other));
        }
      }
      if (lane == 0 && s < tile.sequences) {
        p.demands[tile.sequence + s] = saturated(sum);
        mine.add(saturated(sum));
      }
    }
  }
  demand_sum const sum = sum_over_block(mine, shared);
  if (threadIdx.x == 0) { p.sums[blockIdx.x] = sum; }
}

//! What this tile's sequences get.
template <class Tuning>
struct claim_tile_shared {
  static constexpr std::uint32_t most_rows = Tuning::max_threads * Tuning::rows_per_thread;
  alignas(16) std::uint32_t sums_of_rows[most_rows];
  claim_shared sums;
  std::uint32_t warp_pages[32];           //!< granted to the rows of each warp
  grant_sum before;                       //!< to all sequences in front; with the tile's own parts
  std::uint32_t refused_after;            //!< sequences, those of this tile included
  std::uint32_t granted[most_rows / 32];  //!< one bit per sequence of the tile
};

//! Not everybody gets pages: decides for the tile's sequences, and lists the refused ones in order.
//! @threads one warp
template <class Tuning>
__device__ void decide_short_of_pages(claim_params const& p, claim_tile const& tile,
                                      std::uint64_t room, claim_tile_shared<Tuning>& shared)
{
  std::uint32_t const lane = lane_index();
  auto const refuse        = [&](std::uint32_t sequence, std::uint32_t place) {
    if (p.request.refusals.sequences != nullptr) { p.request.refusals.sequences[place] = sequence; }
  };
  if (p.is_split()) {
    std::uint32_t const parts = p.tiles.per_sequence;
    auto const demand_of      = [&](std::uint32_t s) {
      std::uint64_t pages = 0;
      for (std::uint32_t i = 0; i < parts; ++i) {
        pages += __ldcg(&p.sums[std::size_t{s} * parts + i].pages);
      }
      return demand_of_one(saturated(pages));
    };
    grant_sum given = first_fit_groups(tile.sequence, room, demand_of,
                                       [](std::uint32_t, grant_sum g) { return g; });
    bool const fits = demand_of(tile.sequence).pages <= room - given.taken;
    if (lane == 0) {
      if (!fits && tile.part_of_first == 0) { refuse(tile.sequence, given.refused); }
      for (std::uint32_t i = 0; fits && i < tile.part_of_first; ++i) {
        given.taken += __ldcg(&p.sums[std::size_t{tile.sequence} * parts + i].pages);
      }
      shared.before        = given;
      shared.refused_after = given.refused + (fits ? 0u : 1u);
      shared.granted[0]    = fits ? 1u : 0u;
    }
    return;
  }
  grant_sum const before = first_fit_groups(
    blockIdx.x, room, [&](std::uint32_t i) { return load_demand(p.sums + i); },
    [&](std::uint32_t i, grant_sum given) {
      return first_fit_sequences(p.demands + std::size_t{i} * p.tiles.sequences, p.tiles.sequences,
                                 room, given,
                                 [](std::uint32_t, std::uint32_t, grant_sum const&) {});
    });
  grant_sum const after = first_fit_sequences(
    p.demands + tile.sequence, tile.sequences, room, before,
    [&](std::uint32_t first, std::uint32_t granted, grant_sum const& given) {
      if (lane == 0) { shared.granted[first / 32] = granted; }
      if ((granted >> lane & 1u) == 0) {
        auto const ahead = static_cast<std::uint32_t>(__popc(~granted & ((1u << lane) - 1u)));
        refuse(tile.sequence + first + lane, given.refused + ahead);
      }
    });
  if (lane == 0) {
    shared.before        = before;
    shared.refused_after = after.refused;
  }
}

//! Second launch: offsets, ids, answers; the CTA of the last tile moves the head.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::max_threads, claim_ctas_per_sm)
  claim_grant_kernel(__grid_constant__ claim_params const p)
{
  __shared__ claim_tile_shared<Tuning> shared;
  claim_request const& request = p.request;
  claim_tile const tile        = tile_at(p, blockIdx.x);
  claim_rows<Tuning> rows;
  std::uint32_t const warp = threadIdx.x / 32;
  rows.first               = warp * rows.per_warp;
  rows.count = rows.first < tile.rows ? min(rows.per_warp, tile.rows - rows.first) : 0u;
  rows.sums  = shared.sums_of_rows + rows.first;
  rows.load(request.demand +
            tile.row);  // nobody writes it since the launch before the one in front
  auto const add_up_rows = [&] {
    std::uint32_t const pages = rows.add_up();
    if (lane_index() == 0) { shared.warp_pages[warp] = pages; }
  };
  add_up_rows();
  wait_for_previous();

  ring_snapshot const snapshot = *p.snapshot;
  std::uint64_t const room     = snapshot.num_free();
  demand_before const sums =
    sum_demand_before(p.tiles.count, blockIdx.x, shared.sums,
                      [&](std::uint32_t i) { return __ldcg(&p.sums[i].pages); });
  bool const everybody = sums.all <= room;
  grant_sum given{sums.before, 0};
  std::uint32_t refused_after = 0;
  if (!everybody) {
    if (threadIdx.x < 32) { decide_short_of_pages(p, tile, room, shared); }
    __syncthreads();
    rows.keep_granted(p.is_split() ? tile.rows : request.rows_per_sequence, shared.granted);
    add_up_rows();
    given         = shared.before;
    refused_after = shared.refused_after;
    __syncthreads();
  }

  std::uint32_t const pages_of_lane =
    lane_index() < blockDim.x / 32 ? shared.warp_pages[lane_index()] : 0u;
  std::uint32_t const tile_pages = __reduce_add_sync(all_lanes, pages_of_lane);
  std::uint32_t const before_warp =
    __reduce_add_sync(all_lanes, lane_index() < warp ? pages_of_lane : 0u);
  if (request.offsets != nullptr) {
    rows.store_offsets(request.offsets + tile.row, given.taken + before_warp);
  }
  for (std::uint32_t i = threadIdx.x; i < tile_pages; i += blockDim.x) {
    std::uint64_t const place = given.taken + i;
    page_id const id          = p.ring.ids[cell_behind(snapshot.head_cell, place, p.ring.capacity)];
    if (request.ids != nullptr) { request.ids[place] = id; }
    if (p.ring.is_checked()) { mark_held(p.ring, id); }
  }
  if (request.granted != nullptr && tile.part_of_first == 0) {
    for (std::uint32_t s = threadIdx.x; s < tile.sequences; s += blockDim.x) {
      bool const granted = everybody || (shared.granted[s / 32] >> (s % 32) & 1u) != 0;
      request.granted[tile.sequence + s] = granted ? 1 : 0;
    }
  }
  if (blockIdx.x + 1 == gridDim.x && threadIdx.x == 0) {
    *p.ring.head = snapshot.head + given.taken + tile_pages;
    if (request.refusals.count != nullptr) { *request.refusals.count = refused_after; }
  }
}

//! Lanes that sum one sequence: more than its rows would idle.
[[nodiscard]] constexpr std::uint32_t lanes_for(std::uint32_t rows_per_sequence) noexcept
{
  std::uint32_t lanes = 1;
  while (lanes < 32 && lanes < rows_per_sequence) { lanes *= 2; }
  return lanes;
}

}  // namespace detail

//! Scratch of a claim. It keeps nothing from one claim to the next.
[[nodiscard]] inline std::size_t claim_workspace_bytes(std::uint32_t num_sequences,
                                                       std::uint32_t rows_per_sequence)
{
  claim_tiles const tiles = make_claim_tiles(num_sequences, rows_per_sequence);
  return sizeof(ring_snapshot) + tiles.count * sizeof(demand_sum) +
         (tiles.per_sequence > 1 ? 0 : std::size_t{num_sequences}) * sizeof(std::uint32_t);
}

//! Claims the demand of all rows: equals host::claim in every answer, ids and order included.
//! @param ring       device memory
//! @param request    device memory; each answer that is not null is written
//! @param workspace  device memory, aligned to 16 bytes
//! @throws  invalid_argument for a missing ring or demand, or too small a workspace, before any launch;
//!          cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(rows + pages). Where the ring is short, about as many steps more as there are groups of
//!          sequences that fit in part
inline void claim(free_ring_ref const& ring, claim_request const& request, void* workspace,
                  std::size_t workspace_bytes, cudaStream_t stream)
{
  using tuning = claim_tuning_sm90;
  if (request.num_sequences == 0) {
    detail::clear_result(request.refusals.count, stream);
    return;
  }
  validate(ring);
  DIFFKV_EXPECTS(request.demand != nullptr || request.rows_per_sequence == 0,
                 "demand: must not be null");
  detail::expect_workspace(workspace, workspace_bytes,
                           claim_workspace_bytes(request.num_sequences, request.rows_per_sequence));
  claim_tiles const tiles = make_claim_tiles(request.num_sequences, request.rows_per_sequence);
  auto* const snapshot    = static_cast<ring_snapshot*>(workspace);
  auto* const sums        = reinterpret_cast<demand_sum*>(snapshot + 1);
  auto* const demands     = reinterpret_cast<std::uint32_t*>(sums + tiles.count);
  detail::claim_params const params{
    ring, request, tiles, snapshot, sums, demands, detail::lanes_for(request.rows_per_sequence)};
  detail::launch(detail::claim_demand_kernel<tuning>, {tiles.count + 1, tiles.threads, 0, true},
                 stream, params);
  detail::launch(detail::claim_grant_kernel<tuning>, {tiles.count, tiles.threads, 0, true}, stream,
                 params);
}

}  // namespace diffkv
