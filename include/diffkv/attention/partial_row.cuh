// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Partial results of a row, and their merge in a fixed order: the same bits from run to run.
//! Read before this: attention/attend_blocks.cuh.  Read next: attention/row_output.cuh.
#include <diffkv/attention/decode_traits.hpp>
#include <diffkv/attention/query_fragments.cuh>  // vector_share
#include <diffkv/attention/row_accumulator.cuh>
#include <diffkv/attention/value_products.cuh>  // value_elements
#include <diffkv/quant/warp_vector.cuh>
#include <diffkv/table/row_state.hpp>  // candidate

namespace diffkv::detail {

[[nodiscard]] __device__ inline float sum_over_warp(float x) noexcept
{
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) { x += __shfl_xor_sync(0xFFFF'FFFFu, x, mask); }
  return x;
}
//! NaN is passed over.
[[nodiscard]] __device__ inline float max_over_warp(float x) noexcept
{
  return ordered_float(__reduce_max_sync(0xFFFF'FFFFu, ordered_int(x)));
}

//! Where the numbers of a partial result lie (decode_traits). In shared or in device memory.
template <class Traits>
struct partial_row {
  float* at = nullptr;

  [[nodiscard]] __device__ float* out(int head) const noexcept
  {
    return at + head * Traits::head_dim;
  }
  [[nodiscard]] __device__ float2& state(int head) const noexcept
  {
    return reinterpret_cast<float2*>(at + Traits::part_states)[head];
  }
  [[nodiscard]] __device__ float& offset(int head) const noexcept
  {
    return at[Traits::part_offsets + head];
  }
  [[nodiscard]] __device__ candidate* candidates() const noexcept
  {
    return reinterpret_cast<candidate*>(at + Traits::part_candidates);
  }
};

//! The part that lane `i` has.
//! @threads one warp
template <class Traits>
[[nodiscard]] __device__ partial_row<Traits> part_of_lane(partial_row<Traits> const& mine,
                                                          int i) noexcept
{
  auto const at = reinterpret_cast<unsigned long long>(mine.at);
  return {reinterpret_cast<float*>(__shfl_sync(0xFFFF'FFFFu, at, i))};
}

//! Zeros are added: what is left is sums of values, in the order of the tier.
//! @threads one warp
template <class Tile, class Traits>
__device__ void settle(row_accumulator<Traits>& row) noexcept
{
  constexpr int groups    = Tile::value.groups;
  constexpr int per_group = value_elements<Tile> / groups;
#pragma unroll
  for (int s = 0; s < Traits::sets; ++s) {
#pragma unroll
    for (int i = 0; i < groups; ++i) {
      float const zeros = sum_over_g(row.zeros[s][i]);
      row.zeros[s][i]   = 0.0f;
#pragma unroll
      for (int e = 0; e < per_group; ++e) { row.out[s][i * per_group + e] += zeros; }
    }
  }
}

//! From the order of one tier to that of another.
//! @param stage  shared memory of the warp for four vectors
//! @threads one warp
template <class From, class To, class Traits>
__device__ void reorder(row_accumulator<Traits>& row, float* stage, fragment_lane at) noexcept
{
  using source        = vector_share<Traits::head_dim, From::value.groups, 8>;
  using target        = vector_share<Traits::head_dim, To::value.groups, 8>;
  float* const vector = stage + at.t * Traits::head_dim;
#pragma unroll
  for (int s = 0; s < Traits::sets; ++s) {
    __syncwarp();
#pragma unroll
    for (int e = 0; e < source::elements; ++e) {
      if (source::exists(at.g, e)) { vector[source::dim(at.g, e)] = row.out[s][e]; }
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < target::elements; ++e) {
      row.out[s][e] = target::exists(at.g, e) ? vector[target::dim(at.g, e)] : 0.0f;
    }
  }
}

//! The low tier of a row begins, whose sums are in another order.
//! @param stage  as `reorder`
//! @threads one warp
template <class Traits>
__device__ void begin_low(row_accumulator<Traits>& row, float* stage, fragment_lane at) noexcept
{
  static_assert(Traits::reorders);
  settle<typename Traits::high_tile>(row);
  reorder<typename Traits::high_tile, typename Traits::low_tile>(row, stage, at);
}

//! The lanes' sums become the row's.
//! @param low    the sums are in the order of the low tier, if the tiers have different ones
//! @param stage  as `reorder`
//! @threads one warp
template <class Traits>
__device__ void close(row_accumulator<Traits>& row, bool low, float* stage,
                      fragment_lane at) noexcept
{
  using high_tile = typename Traits::high_tile;
  using low_tile  = typename Traits::low_tile;
  if constexpr (Traits::reorders) {
    if (low) {
      settle<low_tile>(row);
      reorder<low_tile, high_tile>(row, stage, at);
    } else {
      settle<high_tile>(row);
    }
  } else {
    settle<high_tile>(row);
  }
#pragma unroll
  for (int s = 0; s < Traits::sets; ++s) { row.sum[s] = sum_over_g(row.sum[s]); }
}

//! @param row     closed
//! @param offset  scale * q.c of head 4 s + t
//! @threads one warp; followed by __syncwarp
template <class Traits>
__device__ void store_partial(partial_row<Traits> const& part, row_accumulator<Traits> const& row,
                              float const (&offset)[Traits::sets], fragment_lane at) noexcept
{
  using share = vector_share<Traits::head_dim, Traits::values.groups, 8>;
#pragma unroll
  for (int s = 0; s < Traits::sets; ++s) {
    int const head = 4 * s + at.t;
    if (head >= Traits::heads) { continue; }
    float* const to = part.out(head);
#pragma unroll
    for (int e = 0; e < share::elements; e += 4) {
      if (!share::exists(at.g, e)) { continue; }
      *reinterpret_cast<float4*>(to + share::dim(at.g, e)) =
        float4{row.out[s][e], row.out[s][e + 1], row.out[s][e + 2], row.out[s][e + 3]};
    }
    if (at.g == 0) {
      part.state(head) = float2{row.max[s], row.sum[s]};
      if constexpr (Traits::centred) { part.offset(head) = offset[s]; }
    }
  }
}

//! One head of a row over several parts, quads as in warp_vector; max and sum in all lanes.
template <class Traits>
struct merged_head {
  warp_vector<Traits::head_dim> out{};
  float max = row_accumulator<Traits>::lowest_reference;
  float sum = 0.0f;

  //! Adds head h of up to 32 parts, in the order of the lanes.
  //! @param mine   part of the lane, if it has one
  //! @param which  bit i: lane i has one
  //! @threads one warp
  __device__ void add(int h, partial_row<Traits> const& mine, unsigned which, int lane) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    constexpr int at_once  = 4;  // on their way
    float2 const state     = (which >> lane & 1u) != 0
                               ? mine.state(h)
                               : float2{row_accumulator<Traits>::lowest_reference, 0.0f};
    float weight           = 0.0f;
    int const count        = 32 - __clz(static_cast<int>(which));
#pragma unroll 1
    for (int first = 0; first < count; first += at_once) {
      float4 x[at_once][warp_vector<Traits::head_dim>::quads_per_lane];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        partial_row<Traits> const part = part_of_lane(mine, first + i);
        bool const is_there            = (which >> first >> i & 1u) != 0;
#pragma unroll
        for (int q = 0; q < out.quads_per_lane; ++q) {
          x[i][q] = float4{};
          if (is_there && out.has(lane, q)) {
            x[i][q] = *reinterpret_cast<float4 const*>(part.out(h) + 4 * out.quad(lane, q));
          }
        }
      }
      if (first == 0) {  // while the first sums are on their way
        float const before = max;
        max                = fmaxf(before, max_over_warp(state.x));
        float const factor = fast_exp2(before - max);
        weight             = fast_exp2(state.x - max);
        sum                = fmaf(sum, factor, sum_over_warp(weight * state.y));
#pragma unroll
        for (int q = 0; q < out.quads_per_lane; ++q) {
#pragma unroll
          for (int e = 0; e < 4; ++e) { out.x[q][e] *= factor; }
        }
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        float const w = __shfl_sync(all, weight, first + i);
#pragma unroll
        for (int q = 0; q < out.quads_per_lane; ++q) {
          out.x[q][0] = fmaf(w, x[i][q].x, out.x[q][0]);
          out.x[q][1] = fmaf(w, x[i][q].y, out.x[q][1]);
          out.x[q][2] = fmaf(w, x[i][q].z, out.x[q][2]);
          out.x[q][3] = fmaf(w, x[i][q].w, out.x[q][3]);
        }
      }
    }
  }
};

//! One head of a row over some of its parts, for those who have the others.
//! @param to      in device memory
//! @param offset  of use in lane 0
//! @threads one warp
template <class Traits>
__device__ void store_merged_part(partial_row<Traits> const& to, int h,
                                  merged_head<Traits> const& merged, float offset,
                                  int lane) noexcept
{
  auto const& v = merged.out;
#pragma unroll
  for (int q = 0; q < v.quads_per_lane; ++q) {
    if (!v.has(lane, q)) { continue; }
    // Assigned, it would be four stores.
    __stcg(reinterpret_cast<float4*>(to.out(h) + 4 * v.quad(lane, q)),
           float4{v.x[q][0], v.x[q][1], v.x[q][2], v.x[q][3]});
  }
  if (lane == 0) {
    to.state(h) = float2{merged.max, merged.sum};
    if constexpr (Traits::centred) { to.offset(h) = offset; }
  }
}

//! The candidate (tier, place) = (lane / places, lane mod places) over up to 32 parts.
//! @param mine, which  as merged_head::add
//! @threads one warp; of use in the first 2 * places lanes
template <class Traits>
__device__ void add_candidates(candidate& best, partial_row<Traits> const& mine, unsigned which,
                               int lane) noexcept
{
  int const count = 32 - __clz(static_cast<int>(which));
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    partial_row<Traits> const part = part_of_lane(mine, i);
    if ((which >> i & 1u) == 0 || lane >= num_stored_tiers * Traits::candidate_places) { continue; }
    candidate const c = part.candidates()[lane];
    if (c.before(best)) { best = c; }
  }
}

}  // namespace diffkv::detail
