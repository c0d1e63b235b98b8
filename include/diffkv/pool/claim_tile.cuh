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

//! The rows of one thread: neighbours, all of one tile.
template <class Tuning>
struct claim_rows {
  static constexpr std::uint32_t per_thread = Tuning::rows_per_thread;
  static_assert(per_thread % 4 == 0, "rows_per_thread must be a multiple of 4");
  std::uint32_t first;  //!< in the tile
  std::uint32_t count;
  std::uint32_t demand[per_thread];

  __device__ void load(std::uint32_t const* from)
  {
    from += first;
    if (count == per_thread && is_16_byte_aligned(from)) {
      for (std::uint32_t i = 0; i < per_thread; i += 4) {
        uint4 const d = __ldcg(reinterpret_cast<uint4 const*>(from + i));
        demand[i]     = d.x;
        demand[i + 1] = d.y;
        demand[i + 2] = d.z;
        demand[i + 3] = d.w;
      }
    } else {
      for (std::uint32_t i = 0; i < per_thread; ++i) {
        demand[i] = i < count ? __ldcg(from + i) : 0;
      }
    }
  }
  //! Refused sequences want nothing any more.
  __device__ void keep_granted(std::uint32_t rows_per_sequence, std::uint32_t const* granted)
  {
    for (std::uint32_t i = 0; i < per_thread; ++i) {
      std::uint32_t const s = i < count ? (first + i) / rows_per_sequence : 0u;
      if ((granted[s / 32] >> (s % 32) & 1u) == 0) { demand[i] = 0; }
    }
  }
  //! Prefix sum over the warp; the warp's sum goes to shared memory.
  //! @return pages before this thread's rows, in its warp
  [[nodiscard]] __device__ std::uint32_t sum_warp(std::uint32_t* warp_pages) const
  {
    std::uint32_t sum = 0;
    for (std::uint32_t i = 0; i < per_thread; ++i) { sum += demand[i]; }
    std::uint32_t const inclusive = warp_inclusive_sum(sum);
    if (lane_index() == 31) { warp_pages[threadIdx.x / 32] = inclusive; }
    return inclusive - sum;
  }
  __device__ void store_offsets(std::uint64_t* to, std::uint64_t offset) const
  {
    to += first;
    if (count == per_thread && is_16_byte_aligned(to)) {
      for (std::uint32_t i = 0; i < per_thread; i += 2) {
        ulonglong2 const two{offset, offset + demand[i]};
        reinterpret_cast<ulonglong2*>(to)[i / 2] = two;
        offset                                   = two.y + demand[i + 1];
      }
    } else {
      for (std::uint32_t i = 0; i < per_thread; ++i) {
        if (i < count) { to[i] = offset; }
        offset += demand[i];
      }
    }
  }
};

}  // namespace diffkv::detail
