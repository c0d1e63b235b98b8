// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What decode attention is given for a launch, and where the results of a row go.
//! Read before this: attention/partial_row.cuh.  Read next: attention/page_walk.cuh.
#include <diffkv/attention/attention_options.hpp>
#include <diffkv/attention/page_shares.cuh>
#include <diffkv/attention/partial_row.cuh>
#include <diffkv/core/vectors.hpp>

#include <cstring>  // memcpy
#include <type_traits>

namespace diffkv::detail {

template <class Traits, class T, class Out>
struct decode_params {
  // What every warp reads lies close together: each line of constants is a miss at first.
  warp_range const* ranges;           //!< [num_warps] of the layer
  planned_layer const* totals;        //!< of the layer
  planned_row const* rows;            //!< of the layer
  planned_sequence const* sequences;  //!< of the layer
  std::byte* pages;
  page_table_ref table;
  vectors<T> query;
  float const* key_offsets;  //!< [num_heads, head_dim] of the layer, or null
  attention_options options;
  std::uint32_t num_warps;  //!< of the launch
  std::uint32_t layer;
  divider num_heads;
  bool whole_queries;  //!< may be read 16 bytes at a time
  bool whole_out;      //!< may be written four elements at a time
  bool whole_offsets;  //!< as whole_queries
  vectors<Out> out;
  float* lse;
  float* partials;
  std::uint32_t* arrivals;
  tile_geometry cut[num_stored_tiers];  //!< for tiles that are not whole
  typename Traits::policy policy;       //!< from here on for the score path
  cache_ref cache;
};

//! Of a row whose queries are not kept.
inline constexpr std::uint32_t not_kept = 0xFFFF'FFFFu;

//! A row of the launch: where its queries are and its results go.
template <class Traits, class T, class Out>
struct row_target {
  using params = decode_params<Traits, T, Out>;

  params const& p;
  std::uint32_t sequence;
  std::uint32_t head;
  std::uint32_t first_head;  //!< of the pass, in the group

  __device__ row_target(params const& params_of_launch, std::uint32_t index) noexcept
    : p{params_of_launch}
  {
    std::uint32_t const row = index / Traits::passes;
    sequence                = p.num_heads.quotient(row);
    head                    = row - sequence * p.num_heads.divisor;
    first_head              = index % Traits::passes * Traits::heads;
  }
  //! Heads of the pass; the last one may have fewer.
  [[nodiscard]] __device__ bool has(int h) const noexcept
  {
    return h < Traits::heads &&
           (Traits::passes == 1 || static_cast<int>(first_head) + h < Traits::group_size);
  }
  [[nodiscard]] __device__ std::uint32_t q_head(int h) const noexcept
  {
    return head * Traits::group_size + first_head + static_cast<std::uint32_t>(h);
  }
  [[nodiscard]] __device__ T* query(int h) const noexcept
  {
    return p.query.at(static_cast<std::ptrdiff_t>(sequence), q_head(h));
  }
  [[nodiscard]] __device__ float const* key_offset() const noexcept
  {
    return p.key_offsets + std::size_t{head} * Traits::head_dim;
  }
  [[nodiscard]] __device__ Out* out(int h) const noexcept
  {
    return p.out.at(static_cast<std::ptrdiff_t>(sequence), q_head(h));
  }

  //! query_ring_ref::index of head h at a place of the ring, places of all layers being counted.
  [[nodiscard]] __device__ std::size_t in_ring(std::uint32_t place, int h) const noexcept
  {
    return std::size_t{place} * (p.num_heads.divisor * Traits::group_size) + q_head(h);
  }
  //! Of the query of a position.
  [[nodiscard]] __device__ std::size_t in_ring(std::uint32_t slot, std::int32_t position,
                                               int h) const noexcept
  {
    constexpr auto places     = static_cast<std::uint32_t>(Traits::score_every + 1);
    std::uint32_t const layer = slot * p.cache.shape.num_layers + p.layer;
    return in_ring(layer * places + static_cast<std::uint32_t>(position) % places, h);
  }

  //! Log-sum-exp of head h, into the lag ring, too.
  //! @param max, sum  base 2
  //! @param offset    scale * q.c
  __device__ void store_lse(int h, float max, float sum, float offset,
                            std::uint32_t kept) const noexcept
  {
    float const lse = (max + fast_log2(sum)) * ln_of_2;  // -inf if sum = 0
    if (p.lse != nullptr) {
      // A soft-cap has seen the offset.
      float const correction = Traits::variant::soft_cap ? 0.0f : offset;
      p.lse[std::size_t{sequence} * p.num_heads.divisor * Traits::group_size + q_head(h)] =
        lse + correction;
    }
    if constexpr (Traits::has_scores) {
      if (kept == not_kept) { return; }
      std::size_t const i              = in_ring(kept, h);
      p.cache.queries.lse[i]           = lse;
      p.cache.queries.offset_logits[i] = offset;
    }
  }
};

template <class Out>
__device__ void store_quad(Out* to, bool whole, float a, float b, float c, float d) noexcept
{
  using word = std::conditional_t<sizeof(Out) == 2, uint2, uint4>;
  static_assert(sizeof(word) == 4 * sizeof(Out));
  Out quad[4];
  from_f32(a, quad[0]);
  from_f32(b, quad[1]);
  from_f32(c, quad[2]);
  from_f32(d, quad[3]);
  if (whole) {
    // Assigned, it would be four stores, like those below.
    word bits;
    std::memcpy(&bits, quad, sizeof bits);
    __stcg(reinterpret_cast<word*>(to), bits);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) { to[e] = quad[e]; }
  }
}

//! What a sum is multiplied with; a row without tokens gives 0.
[[nodiscard]] __device__ inline float inverse_of(float sum) noexcept
{
  return sum == 0.0f ? 0.0f : reciprocal(sum);
}

//! A row that one warp has read from its first page to its last.
//! @param row    closed
//! @param stage  see rotate_share
//! @threads one warp
template <class Traits, class T, class Out>
__device__ void store_whole_row(row_target<Traits, T, Out> const& target,
                                row_accumulator<Traits> const& row,
                                float const (&offset)[Traits::sets], std::uint32_t kept,
                                float* stage, fragment_lane at) noexcept
{
  using share = vector_share<Traits::head_dim, Traits::values.groups, 8>;
#pragma unroll
  for (int s = 0; s < Traits::sets; ++s) {
    float const inverse = inverse_of(row.sum[s]);
    float x[share::elements];
#pragma unroll
    for (int e = 0; e < share::elements; ++e) { x[e] = row.out[s][e] * inverse; }
    if constexpr (Traits::rotated) {
      rotate_share<Traits::head_dim, Traits::values.groups, 8, 4>(x, stage, at.lane);
    }
    int const h = 4 * s + at.t;
    if (!target.has(h)) { continue; }
    Out* const to = target.out(h);
#pragma unroll
    for (int e = 0; e < share::elements; e += 4) {
      if (!share::exists(at.g, e)) { continue; }
      store_quad(to + share::dim(at.g, e), target.p.whole_out, x[e], x[e + 1], x[e + 2], x[e + 3]);
    }
    if (at.g == 0) { target.store_lse(h, row.max[s], row.sum[s], offset[s], kept); }
  }
}

//! One head of a row that was merged.
//! @param offset  of use in lane 0
//! @threads one warp
template <class Traits, class T, class Out>
__device__ void store_merged_head(row_target<Traits, T, Out> const& target, int h,
                                  merged_head<Traits>& merged, float offset, std::uint32_t kept,
                                  int lane) noexcept
{
  auto& v             = merged.out;
  float const inverse = inverse_of(merged.sum);
#pragma unroll
  for (int q = 0; q < v.quads_per_lane; ++q) {
#pragma unroll
    for (int e = 0; e < 4; ++e) { v.x[q][e] *= inverse; }
  }
  if constexpr (Traits::rotated) { rotate(v, lane); }
  if (!target.has(h)) { return; }
#pragma unroll
  for (int q = 0; q < v.quads_per_lane; ++q) {
    if (!v.has(lane, q)) { continue; }
    store_quad(target.out(h) + 4 * v.quad(lane, q), target.p.whole_out, v.x[q][0], v.x[q][1],
               v.x[q][2], v.x[q][3]);
  }
  if (lane == 0) { target.store_lse(h, merged.max, merged.sum, offset, kept); }
}

//! A row without tokens gives 0 and lse = -inf.
//! @threads one warp
template <class Traits, class T, class Out>
__device__ void store_empty_row(row_target<Traits, T, Out> const& target, int lane) noexcept
{
#pragma unroll 1
  for (int h = 0; h < Traits::heads; ++h) {
    merged_head<Traits> nothing{};
    store_merged_head(target, h, nothing, 0.0f, not_kept, lane);
  }
}

//! What else a row that catches up leaves: its candidates, and, once per sequence, that its queries
//! are summed.
//! @param c  candidate (tier, place) = (lane / places, lane mod places)
//! @threads one warp
template <class Traits, class T, class Out>
__device__ void store_scores(row_target<Traits, T, Out> const& target, candidate const& c,
                             int lane) noexcept
{
  static_assert(Traits::has_scores);
  auto const& p = target.p;
  if (target.first_head != 0) { return; }
  planned_sequence const& plan = p.sequences[target.sequence];
  std::size_t const row        = p.cache.shape.row(plan.slot, p.layer, target.head);
  constexpr int places         = Traits::candidate_places;
  if (lane < num_stored_tiers * places) {
    p.cache.state.candidates_of(row, lane < places ? tier::high : tier::low)[lane % places] = c;
  }
  if (target.head == 0 && lane == 0) {
    std::int32_t& last = p.cache.layer(plan.slot, p.layer).queries.last_query;
    last               = max_of(plan.queries.last_query, plan.last_query);
  }
}

}  // namespace diffkv::detail
