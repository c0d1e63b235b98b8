// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A row and its place in the lag ring: its queries are kept, earlier ones are read, and the score path is
//! told about its tiles.
//! Read before this: attention/row_merge.cuh.  Read next: attention/decode_warp.cuh.
#include <diffkv/attention/row_merge.cuh>
#include <diffkv/core/launch.cuh>  // load_uncached

namespace diffkv::detail {

//! Has the line of an address come into the second-level cache, which others may write meanwhile.
__device__ inline void prefetch_line(void const* address) noexcept
{
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}

template <class Traits, class T, class Out>
struct lagged_row {
  using target_type           = row_target<Traits, T, Out>;
  static constexpr int places = Traits::candidate_places;

  decode_params<Traits, T, Out> const& p;
  decode_place<Traits> const& place;
  fragment_lane at;

  //! Keeps conditioned queries of four heads as codes.
  //! @param x  a lane's eighth of head 4 s + lane / 8
  template <class Share>
  __device__ void keep_codes(float const (&x)[Share::elements], int s, target_type const& target,
                             std::uint32_t kept) const noexcept
  {
    int const h          = 4 * s + at.lane / 8;
    float const greatest = greatest_magnitude<8>(x);
    int8_elements<Share::elements> const codes{x, greatest};
    std::uint32_t words[Share::elements / 4];
#pragma unroll
    for (int w = 0; w < Share::elements / 4; ++w) { words[w] = codes.word(w); }
    if (!target.has(h)) { return; }
    query_ring_ref const& ring = p.cache.queries;
    std::size_t const i        = target.in_ring(kept, h);
    code_share<Share>::store(ring.codes + i * std::size_t{Traits::head_dim}, at.lane % 8, words);
    if (at.lane % 8 == 0) { ring.largest[i] = greatest; }
  }

  //! Keeps them as they are: by way of shared memory, as memory of which a part of a sector is written
  //! has to be read first.
  //! @param x  a lane's eighth of head 4 s + lane / 8
  template <class Share>
  __device__ void keep(float const (&x)[Share::elements], int s, target_type const& target,
                       std::uint32_t kept) const noexcept
  {
    constexpr int head_dim = Traits::head_dim;
    float* const stage     = place.stage();
    int const owner        = at.lane % 8;
    __syncwarp();
#pragma unroll
    for (int e = 0; e < Share::elements; e += 4) {
      if (!Share::exists(owner, e)) { continue; }
      *reinterpret_cast<float4*>(stage + at.lane / 8 * head_dim + Share::dim(owner, e)) =
        float4{x[e], x[e + 1], x[e + 2], x[e + 3]};
    }
    __syncwarp();
    float* const to = p.cache.queries.queries + target.in_ring(kept, 4 * s) * std::size_t{head_dim};
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      if (!target.has(4 * s + h)) { break; }
      warp_vector<head_dim> const v;
#pragma unroll
      for (int q = 0; q < v.quads_per_lane; ++q) {
        int const i = h * head_dim + 4 * v.quad(at.lane, q);
        if (v.has(at.lane, q)) {
          *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<float4 const*>(stage + i);
        }
      }
    }
  }

  //! Has the due queries of a row that catches up come closer: behind the tiles that a launch asks for at
  //! first they would wait.
  //! @threads one warp
  __device__ void prefetch(target_type const& target) const noexcept
  {
    constexpr int heads         = Traits::group_size;
    constexpr int bytes         = Traits::head_dim * (Traits::codes_in_ring ? 1 : 4);
    constexpr int lines         = ceil_div(bytes, 128);
    planned_sequence const plan = load_uncached(p.sequences[target.sequence]);
    query_ring_ref const& ring  = p.cache.queries;
    auto const* const queries   = Traits::codes_in_ring
                                    ? reinterpret_cast<std::byte const*>(ring.codes)
                                    : reinterpret_cast<std::byte const*>(ring.queries);
    int const due               = min_of(plan.last_query - plan.first_query, Traits::score_every);
#pragma unroll 1
    for (int i = at.lane; i < due * heads * lines; i += 32) {
      int const head = i / lines % heads;
      std::size_t const from =
        target.in_ring(plan.slot, plan.first_query + i / (lines * heads), head);
      prefetch_line(queries + from * bytes + i % lines * 128);
      if (i % (lines * heads) != 0) { continue; }
      prefetch_line(ring.lse + from);
      if constexpr (Traits::codes_in_ring) { prefetch_line(ring.largest + from); }
      if constexpr (Traits::variant::soft_cap) { prefetch_line(ring.offset_logits + from); }
    }
  }

  //! The due queries of a row that catches up.
  template <class Scores>
  __device__ void load(Scores& scores, target_type const& target, planned_sequence const& plan,
                       std::uint32_t high_pages) const noexcept
  {
    using columns          = typename Scores::columns;
    cache_ref const& cache = p.cache;
    auto const exists      = [&](int query, int head) {
      return query < plan.last_query - plan.first_query && head < Traits::group_size &&
             query < Traits::score_every;
    };
    auto const place_of = [&](int query, int head) {
      return target.in_ring(plan.slot, plan.first_query + query, head);
    };
    scores.load(
      cache.queries,
      [&](int query, int head) {
        return exists(query, head) ? place_of(query, head) : not_in_ring;
      },
      p.options.scale, at);
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        int const column   = 8 * i + 2 * at.t + n;
        int const query    = columns::query(column);
        int const head     = columns::head(column);
        scores.lse[i][n]   = infinity;
        scores.start[i][n] = Traits::variant::soft_cap ? 0.0f : minus_infinity;
        if (!exists(query, head)) { continue; }
        std::size_t const from = place_of(query, head);
        float const lse        = cache.queries.lse[from];
        scores.lse[i][n]       = is_finite(lse) ? lse * log2_of_e : infinity;
        scores.start[i][n] =
          Traits::variant::soft_cap ? cache.queries.offset_logits[from] : -scores.lse[i][n];
      }
    }
    if (at.lane == 0) {
      query_span after       = plan.queries;
      after.last_query       = max_of(after.last_query, plan.last_query);
      *place.row_of_scores() = {after,      plan.num_tokens,    plan.first_query,
                                high_pages, cache.shape.window, p.options.sliding_window};
    }
    if (at.lane < num_stored_tiers * places) { place.record()[at.lane] = candidate{}; }
    __syncwarp();
  }

  //! Tells the score path about the tile at hand.
  template <class Scores>
  __device__ void open(Scores& scores, tile_note note, page_id page,
                       std::uint32_t ordinal) const noexcept
  {
    bool const low              = Traits::has_low && note.is(tile_note::low);
    scored_row const* const row = place.row_of_scores();
    std::uint32_t const in_tier = low ? ordinal - row->high_pages : ordinal;
    auto const page_tokens      = static_cast<std::uint32_t>(low ? Traits::low_tile::page_tokens
                                                                 : Traits::high_tile::page_tokens);
    tile_segment const& segment = p.cut[low ? 1 : 0].segments[4];
    scores.row                  = row;
    scores.policy               = &p.policy;
    scores.page                 = {p.cache.pool.page(page), low ? tier::low : tier::high,
                                   in_tier * page_tokens + note.block() * block_tokens,
                                   segment.in_page + segment.per_block * note.block()};
    scores.open_page(place.record() + (low ? places : 0) +
                     in_tier % static_cast<std::uint32_t>(max_of(1, places)));
  }
};

}  // namespace diffkv::detail
