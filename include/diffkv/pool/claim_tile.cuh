// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a CTA of a claim works on: a tile of rows; loading, summing and answering them.
//! Read before this: pool/claim_plan.cuh, pool/claim_tiles.hpp.  Read next: pool/claim.cuh.
#include <diffkv/pool/claim_plan.cuh>
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/pool/claim_tiles.hpp>

#include <cstddef>  // size_t
#include <cstdint>

namespace diffkv::detail {

struct claim_params {
  free_ring_ref ring;
  claim_request request;
  claim_tiles tiles;
  ring_snapshot* snapshot;
  demand_sum* sums;        //!< [tiles.count]; only `pages` where a sequence has several tiles
  std::uint32_t* demands;  //!< [num_sequences] saturated; unused where a sequence has several tiles
  std::uint32_t lanes;     //!< lanes that sum one sequence: a power of two up to 32

  [[nodiscard]] DIFFKV_HOST_DEVICE bool is_split() const noexcept { return tiles.per_sequence > 1; }
};

//! The rows and sequences of one tile.
struct claim_tile {
  std::size_t row;              //!< the first
  std::uint32_t rows;           //!< how many
  std::uint32_t sequence;       //!< the first
  std::uint32_t sequences;      //!< how many
  std::uint32_t part_of_first;  //!< which part of `sequence` the tile is; 0 where it is whole
};

[[nodiscard]] __device__ inline claim_tile tile_at(claim_params const& p, std::uint32_t tile)
{
  std::uint32_t const per_seq = p.request.rows_per_sequence;
  if (p.is_split()) {
    std::uint32_t const s     = tile / p.tiles.per_sequence;
    std::uint32_t const part  = tile % p.tiles.per_sequence;
    std::uint32_t const begin = part * p.tiles.rows;
    return {std::size_t{s} * per_seq + begin, min(p.tiles.rows, per_seq - begin), s, 1, part};
  }
  std::uint32_t const s     = tile * p.tiles.sequences;
  std::uint32_t const count = min(p.tiles.sequences, p.request.num_sequences - s);
  return {std::size_t{s} * per_seq, count * per_seq, s, count, 0};
}

[[nodiscard]] __device__ inline bool is_16_byte_aligned(void const* p) noexcept
{
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

//! Sum of `count` demands, by `lanes` neighbouring lanes; this lane's share.
[[nodiscard]] __device__ inline std::uint64_t sum_strided(std::uint32_t const* demand,
                                                          std::uint32_t count, std::uint32_t lane,
                                                          std::uint32_t lanes)
{
  std::uint64_t sum = 0;
  if (count % 4 == 0 && is_16_byte_aligned(demand)) {
    auto const* four = reinterpret_cast<uint4 const*>(demand);
#pragma unroll 2
    for (std::uint32_t i = lane; i < count / 4; i += lanes) {
      uint4 const d = __ldcg(four + i);
      sum += (std::uint64_t{d.x} + d.y) + (std::uint64_t{d.z} + d.w);
    }
  } else {
#pragma unroll 4
    for (std::uint32_t i = lane; i < count; i += lanes) { sum += __ldcg(demand + i); }
  }
  return sum;
}

//! Sums over the CTA.  @threads the CTA, whole warps; result valid in thread 0
[[nodiscard]] __device__ inline demand_sum sum_over_block(demand_sum mine, demand_sum* shared)
{
  auto const over_warp = [](demand_sum const& d) {
    return demand_sum{warp_sum(d.pages), __reduce_min_sync(all_lanes, d.least),
                      __reduce_add_sync(all_lanes, d.wanting)};
  };
  mine = over_warp(mine);
  if (blockDim.x == 32) { return mine; }
  if (lane_index() == 0) { shared[threadIdx.x / 32] = mine; }
  __syncthreads();
  if (threadIdx.x >= 32) { return demand_sum::none(); }
  return over_warp(threadIdx.x < blockDim.x / 32 ? shared[threadIdx.x] : demand_sum::none());
}

//! The rows of one warp: this lane has rows lane, lane + 32, ... so that memory is met in order.
template <class Tuning>
struct claim_rows {
  static constexpr std::uint32_t per_lane = Tuning::rows_per_thread;
  static constexpr std::uint32_t per_warp = 32 * per_lane;
  static_assert(per_lane % 4 == 0, "rows_per_thread must be a multiple of 4");

  std::uint32_t first;  //!< in the tile
  std::uint32_t count;  //!< at most per_warp
  std::uint32_t* sums;  //!< [per_warp] shared memory of this warp, aligned to 16 bytes
  std::uint32_t demand[per_lane];

  //! @param from  demand of the tile
  __device__ void load(std::uint32_t const* from)
  {
    for (std::uint32_t i = 0; i < per_lane; ++i) {
      std::uint32_t const row = i * 32 + lane_index();
      demand[i]               = row < count ? __ldcg(from + first + row) : 0u;
    }
  }
  //! Refused sequences want nothing any more.
  //! @param granted  a bit for each sequence of the tile
  __device__ void keep_granted(std::uint32_t rows_per_sequence, std::uint32_t const* granted)
  {
    for (std::uint32_t i = 0; i < per_lane; ++i) {
      std::uint32_t const row = i * 32 + lane_index();
      std::uint32_t const s   = row < count ? (first + row) / rows_per_sequence : 0u;
      if ((granted[s / 32] >> (s % 32) & 1u) == 0) { demand[i] = 0; }
    }
  }
  //! Exclusive prefix sum over the warp's rows, into `sums`.
  //! @return the sum of all of them  @threads one warp
  [[nodiscard]] __device__ std::uint32_t add_up()
  {
    for (std::uint32_t i = 0; i < per_lane; ++i) { sums[i * 32 + lane_index()] = demand[i]; }
    __syncwarp();
    auto* const neighbours = reinterpret_cast<uint4*>(sums + lane_index() * per_lane);
    uint4 d[per_lane / 4];
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < per_lane / 4; ++i) {
      d[i] = neighbours[i];
      sum += d[i].x + d[i].y + d[i].z + d[i].w;
    }
    std::uint32_t const inclusive = warp_inclusive_sum(sum);
    std::uint32_t before          = inclusive - sum;
    for (std::uint32_t i = 0; i < per_lane / 4; ++i) {
      uint4 const of_rows{before, before + d[i].x, before + d[i].x + d[i].y,
                          before + d[i].x + d[i].y + d[i].z};
      neighbours[i] = of_rows;
      before        = of_rows.w + d[i].w;
    }
    __syncwarp();
    return __shfl_sync(all_lanes, inclusive, 31);
  }
  //! @param to      offsets of the tile
  //! @param before  pages granted before the warp's rows
  __device__ void store_offsets(std::uint64_t* to, std::uint64_t before) const
  {
    for (std::uint32_t i = 0; i < per_lane; ++i) {
      std::uint32_t const row = i * 32 + lane_index();
      if (row < count) { to[first + row] = before + sums[row]; }
    }
  }
};

}  // namespace diffkv::detail
