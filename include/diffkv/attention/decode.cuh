// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention over the mixed pages of all rows of a layer, one launch.
//! Read before this: attention/row_merge.cuh.  Read next: host/page_codec.hpp.
//!
//! Every warp reads its share of the pages of the layer, tile by tile through slots of shared memory
//! that it fills by itself, and keeps the sums of the row at hand in registers. A row that lies in one
//! warp is written at once. Else its parts are merged, first those of a CTA, then those of the CTAs, by
//! whoever comes last, in the order of the pages.
#include <diffkv/attention/attend_blocks.cuh>
#include <diffkv/attention/decode_plan.cuh>
#include <diffkv/attention/row_merge.cuh>
#include <diffkv/core/launch.cuh>

namespace diffkv {
namespace detail {

//! One warp of a launch.
template <class Traits, class T, class Out>
struct decode_warp {
  using params                = decode_params<Traits, T, Out>;
  using target_type           = row_target<Traits, T, Out>;
  static constexpr int sets   = Traits::sets;
  static constexpr int slots  = Traits::tuning::slots;
  static constexpr int places = Traits::candidate_places;

  params const& p;
  decode_place<Traits> place;
  fragment_lane at;

  row_queries<Traits> queries;
  row_accumulator<Traits> sums;
  score_path<Traits> scores;

  //! Conditions the queries of a row, keeps them as columns, and, in the row's first part, in the ring.
  template <class Queries>
  __device__ void load_queries(Queries& columns, target_type const& target, bool keeps,
                               std::int32_t position, std::uint32_t slot, bool wants_offset) noexcept
  {
    using share = typename Queries::share;
    auto const& options      = p.options;
    constexpr float unit     = Traits::variant::soft_cap ? 1.0f : log2_of_e;
    constexpr int groups     = share::order.groups;
#pragma unroll
    for (int s = 0; s < sets; ++s) {
      int const h       = 4 * s + at.g / 2;
      bool const exists = target.has(h);
      float x[share::elements];
      load_share<share>(exists ? target.query(h) : nullptr, p.whole_queries, at.t, x);
      if constexpr (Traits::centred) {
        if (wants_offset) {
          float c[share::elements];
          load_share<share>(p.cache.key_offset(p.layer, target.head), false, at.t, c);
          float product = 0.0f;
#pragma unroll
          for (int e = 0; e < share::elements; ++e) { product = fmaf(x[e], c[e], product); }
          product           = sum_over_t(product) * options.scale;
          queries.offset[s] = __shfl_sync(0xFFFF'FFFFu, product, 8 * at.t);
        }
      } else {
        queries.offset[s] = 0.0f;
      }
      if constexpr (Traits::rotated) {
        rotate_share<Traits::head_dim, groups, 4, 1>(x, place.stage(), at.lane);
      }
      if constexpr (Traits::has_scores) {
        if (keeps && exists && at.g % 2 == 0) {
          float* const to = p.cache.queries.query(p.cache.shape.layer_of(slot, p.layer), position,
                                                  target.q_head(h));
#pragma unroll
          for (int e = 0; e < share::elements; e += 4) {
            if (!share::exists(at.t, e)) { continue; }
            *reinterpret_cast<float4*>(to + share::dim(at.t, e)) =
              float4{x[e], x[e + 1], x[e + 2], x[e + 3]};
          }
        }
      }
#pragma unroll
      for (float& e : x) { e *= options.scale; }
      columns.set(s, x, unit, at);
    }
  }

  //! The due queries of a row that catches up.
  __device__ void load_scores(target_type const& target, planned_sequence const& plan) noexcept
  {
    using columns = typename score_path<Traits>::columns;
    cache_ref const& cache      = p.cache;
    std::size_t const layer     = cache.shape.layer_of(plan.slot, p.layer);
    std::uint32_t const q_head  = target.head * Traits::group_size;
    auto const exists           = [&](int query, int head) {
      return query < plan.last_query - plan.first_query && head < Traits::group_size &&
             query < Traits::score_every;
    };
    scores.load(
      [&](int query, int head) -> float const* {
        return exists(query, head)
                 ? cache.queries.query(layer, plan.first_query + query,
                                       q_head + static_cast<std::uint32_t>(head))
                 : nullptr;
      },
      p.options.scale, at);
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        int const column      = 8 * i + 2 * at.t + n;
        int const query       = columns::query(column);
        int const head        = columns::head(column);
        scores.lse[i][n]      = infinity;
        scores.offset[i][n]   = 0.0f;
        if (!exists(query, head)) { continue; }
        std::size_t const place = cache.queries.index(layer, plan.first_query + query,
                                                      q_head + static_cast<std::uint32_t>(head));
        scores.lse[i][n]        = cache.queries.lse[place] * log2_of_e;
        scores.offset[i][n]     = cache.queries.offset_logits[place];
      }
    }
    scores.first_query         = plan.first_query;
    scores.window_of_attention = p.options.sliding_window;
    scores.after               = plan.queries;
    scores.after.last_query    = max_of(plan.queries.last_query, plan.last_query);
    scores.num_tokens          = plan.num_tokens;
    scores.window              = cache.shape.window;
    scores.policy              = &p.policy;
    scores.record              = place.record();
    if (at.lane < num_stored_tiers * places) { place.record()[at.lane] = candidate{}; }
    __syncwarp();
  }

  __device__ void begin_row(row_note const& note) noexcept
  {
    target_type const target{p, note.index};
    planned_sequence const& plan = p.sequence(target.sequence);
    bool const keeps             = (note.flags & row_flag::stored) != 0 && note.ordinal == 0;
    load_queries(queries.high, target, keeps, plan.num_tokens - 1, plan.slot, true);
    if constexpr (!row_queries<Traits>::shared) {
      load_queries(queries.low, target, false, 0, 0, false);
    }
    if constexpr (Traits::variant::sliding_window) {
      queries.first_position =
        p.options.sliding_window > 0 ? plan.num_tokens - p.options.sliding_window : -1;
    }
    if constexpr (Traits::has_scores) {
      scores.on = (note.flags & row_flag::catches_up) != 0 && target.first_head == 0;
      if (scores.on) { load_scores(target, plan); }
    }
    sums.clear();
  }

  //! @param page     that the tile is of, and its ordinal in the row
  //! @param in_low   whether the sums are mixed as low codes are
  __device__ void attend(tile_note note, std::uint32_t tile, page_id page, row_note const& row,
                         std::uint32_t ordinal, bool& in_low) noexcept
  {
    weight_exchange const exchange{at};
    bool const low = Traits::has_low && note.is(tile_note::low);
    if constexpr (Traits::has_scores) {
      if (scores.on) { scores.page = scored(note, page, row, ordinal, low); }
    }
    if (low) {
      if (!in_low) {
        unmix<Traits::high_tile::value.bits>(sums);
        mix<Traits::low_tile::value.bits>(sums);
        in_low = true;
      }
      attend_tile<typename Traits::low_tile>(tile, note.tokens(), p.options.soft_cap, queries, sums,
                                             scores, exchange, at);
    } else {
      attend_tile<typename Traits::high_tile>(tile, note.tokens(), p.options.soft_cap, queries, sums,
                                              scores, exchange, at);
    }
    if constexpr (Traits::has_scores) {
      if (scores.on && note.is(tile_note::ends_page)) { scores.close_page(); }
    }
  }

  [[nodiscard]] __device__ scored_page scored(tile_note note, page_id page, row_note const& row,
                                              std::uint32_t ordinal, bool low) const noexcept
  {
    std::uint32_t const high_pages  = ceil_div(
      p.row(row.index).high, static_cast<std::uint32_t>(Traits::high_tile::page_tokens));
    std::uint32_t const in_tier     = low ? ordinal - high_pages : ordinal;
    auto const page_tokens          = static_cast<std::uint32_t>(
      low ? Traits::low_tile::page_tokens : Traits::high_tile::page_tokens);
    tile_segment const& segment = p.cut[low ? 1 : 0].segments[4];
    return {p.cache.pool.page(page), low ? tier::low : tier::high,
            in_tier * page_tokens + note.block() * block_tokens,
            in_tier % static_cast<std::uint32_t>(max_of(1, places)),
            segment.in_page + segment.per_block * note.block()};
  }

  //! The row's last tile in this warp was read.
  //! @param pages_read  of the row in this warp
  //! @param behind      pages of the layer up to here
  //! @param is_last     the warp's range ends here
  __device__ void end_row(row_note const& note, std::uint32_t pages_read, std::uint32_t behind,
                          bool is_last, bool in_low) noexcept
  {
    close(sums, in_low);
    bool catches_up = false;
    if constexpr (Traits::has_scores) { catches_up = scores.on; }
    bool const has_candidate = at.lane < num_stored_tiers * places;
    if (pages_read == note.pages) {
      target_type const target{p, note.index};
      store_whole_row(target, sums, queries.offset, (note.flags & row_flag::stored) != 0,
                      place.stage(), at);
      if constexpr (Traits::has_scores) {
        if (catches_up) {
          store_scores(target, has_candidate ? place.record()[at.lane] : candidate{}, at.lane);
        }
        __syncwarp();
      }
      return;
    }
    partial_row<Traits> const part =
      is_last ? place.last_part(place.warp) : place.first_part(place.warp);
    __syncwarp();
    store_partial(part, sums, queries.offset, at);
    if constexpr (Traits::has_scores) {
      if (catches_up && has_candidate) { part.candidates()[at.lane] = place.record()[at.lane]; }
    }
    __syncwarp();
    std::uint32_t const begin = behind - pages_read - note.ordinal;
    hand_over(p, place, note.index, begin, begin + note.pages, pages_read,
              (note.flags & row_flag::stored) | (catches_up ? row_flag::catches_up : 0u));
  }

  //! Rows without tokens, a few to each warp.
  __device__ void store_empty_rows() const noexcept
  {
    std::uint32_t const num_warps = place.ctas * place.warps;
    for (std::uint32_t index = blockIdx.x * place.warps + place.warp; index < p.totals().num_rows;
         index += num_warps) {
      planned_row const& row = p.row(index);
      if (row.high + row.low > 0) { continue; }
      store_empty_row(target_type{p, index}, at.lane);
    }
  }

  //! All tiles of the warp's range.
  __device__ void read_pages(warp_range const& range) noexcept
  {
    static_assert(slots == 2, "a tile at hand, one on its way");
    page_stream<slots> stream;
    stream.init(place.barriers(), at.lane);
    __syncwarp();
    page_walk<Traits, T, Out> walk{p, range, at.lane};
    row_note* const notes    = place.notes();
    std::uint32_t const ring = shared_address(place.memory_of(place.warp));
    std::uint32_t page       = place.begin_of_warp(blockIdx.x * place.warps + place.warp);
    std::uint32_t const end  = page + range.num_pages;
    tile_note note{}, note_ahead{};  // of the tile at hand, and of the one on its way
    page_id id{}, id_ahead{};
    row_note row{};
    std::uint32_t row_begin = page;  // first page of the row at hand, in this warp
    bool has_begun          = false;
    bool in_low             = false;
    std::uint32_t slot      = 0;
    std::uint32_t pending   = 0;  // tiles asked for
    // At first one tile: asking for more can take long, and the queries can be had meanwhile.
    std::uint32_t most_pending = 1;
#pragma unroll 1
    for (;;) {
#pragma unroll 1
      while (pending < most_pending && walk.has_more()) {
        std::uint32_t const into = slot ^ pending;
        note_ahead = walk.request(stream, static_cast<int>(into), ring + into * Traits::slot_bytes,
                                  notes + into, id_ahead);
        if (pending == 0) {
          note = note_ahead;
          id   = id_ahead;
        }
        ++pending;
      }
      if (pending == 0) { return; }
      if (note.is(tile_note::begins) && !has_begun) {
        has_begun = true;
        __syncwarp();
        row       = notes[slot];
        row_begin = page;
        in_low    = false;
        begin_row(row);
      }
      if (most_pending == 1) {
        most_pending = slots;
        walk.look_ahead();
        continue;
      }
      if (pending < slots) { stream.end(); }
      stream.wait(static_cast<int>(slot));
      attend(note, ring + slot * Traits::slot_bytes, id, row, row.ordinal + page - row_begin, in_low);
      __syncwarp();  // the slot may be filled again
      if (note.is(tile_note::ends_page)) { ++page; }
      if (note.is(tile_note::ends)) { end_row(row, page - row_begin, page, page == end, in_low); }
      has_begun = false;
      note      = note_ahead;
      id        = id_ahead;
      slot ^= 1u;
      --pending;
    }
  }
};

template <class Traits, class T, class Out>
DIFFKV_KERNEL void __launch_bounds__(Traits::tuning::warps * 32, 1)
  decode_attention_kernel(__grid_constant__ decode_params<Traits, T, Out> const p)
{
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ decode_cta<Traits> cta;
  std::uint32_t const warp  = threadIdx.x / 32;
  std::uint32_t const warps = blockDim.x / 32;
  std::uint32_t const share = blockIdx.x * warps + warp;
  if (threadIdx.x <= Traits::tuning::warps) { cta.arrived[threadIdx.x] = 0; }
  if (threadIdx.x == 0) { cta.num_waiting = 0; }
  wait_for_previous();
  std::uint32_t const num_warps = p.work.grid.num_warps();
  warp_range const range        = p.work.ranges[p.work.index_of(p.layer) * num_warps + share];
  decode_place<Traits> const place{&cta, shared, p.work.partials, warp, warps, p.work.grid.ctas,
                                   p.totals().num_pages};
  decode_warp<Traits, T, Out> self{p, place, fragment_lane::of_thread()};
  __syncthreads();
  if (range.num_pages > 0) { self.read_pages(range); }
  if (p.totals().empty_rows > 0) { self.store_empty_rows(); }
  merge_waiting_rows(p, place);
}

//! Whether vectors of `v`, and every n-th element of them, are aligned to n elements.
template <class T>
[[nodiscard]] bool has_whole_units(vectors<T> const& v, std::size_t n) noexcept
{
  auto const stride = static_cast<std::ptrdiff_t>(n);
  return reinterpret_cast<std::uintptr_t>(v.data) % (n * sizeof(T)) == 0 &&
         v.token_stride % stride == 0 && v.head_stride % stride == 0;
}

//! Shared memory of a CTA beside that of its warps, what the system keeps included.
template <class Traits>
inline constexpr std::uint32_t static_bytes =
  round_up(static_cast<std::uint32_t>(sizeof(decode_cta<Traits>)), 128u) + 1024u;

//! @throws invalid_argument naming what does not fit
template <class Traits>
void expect_decodable(cache_ref const& cache, std::uint32_t layer, attention_options const& options,
                      decode_workspace_ref const& work)
{
  using variant            = typename Traits::variant;
  cache_shape const& shape = cache.shape;
  DIFFKV_EXPECTS(layer < shape.num_layers, "layer: " + std::to_string(layer) + " is not below " +
                                             std::to_string(shape.num_layers));
  DIFFKV_EXPECTS(layer >= work.layers.first && layer - work.layers.first < work.layers.count,
                 "layer: " + std::to_string(layer) + " is not among the workspace's " +
                   std::to_string(work.layers.count) + " from " +
                   std::to_string(work.layers.first) + " on");
  DIFFKV_EXPECTS(shape.group_size == static_cast<std::uint32_t>(Traits::group_size),
                 "cache: group_size " + std::to_string(shape.group_size) +
                   " differs from the variant's " + std::to_string(Traits::group_size));
  DIFFKV_EXPECTS(Traits::score_every == 0 || shape.score_every == Traits::score_every,
                 "cache: score_every " + std::to_string(shape.score_every) +
                   " differs from the variant's " + std::to_string(Traits::score_every));
  DIFFKV_EXPECTS(variant::soft_cap == (options.soft_cap > 0.0f),
                 "options: soft_cap must be greater than 0 with a variant that has one, and 0 else");
  DIFFKV_EXPECTS(variant::sliding_window || options.sliding_window <= 0,
                 "options: sliding_window must be 0 with a variant that has none");
  DIFFKV_EXPECTS(!Traits::has_scores || options.exact_lagged_queries == variant::exact_lag,
                 "options: exact_lagged_queries differs from the variant's");
  DIFFKV_EXPECTS(work.totals != nullptr &&
                   work.grid.passes == static_cast<std::uint32_t>(Traits::passes) &&
                   work.partial_floats == static_cast<std::uint32_t>(Traits::part_floats) &&
                   work.grid.warps >= 1 && work.grid.num_warps() <= 0xFFFFu &&
                   work.grid.warps <= static_cast<std::uint32_t>(Traits::tuning::warps) &&
                   work.num_rows == work.capacity * shape.num_heads * work.grid.passes,
                 "workspace: it was not made for this cache and variant");
}

}  // namespace detail

//! The grid that fills the current device: one CTA a multiprocessor, as many warps as its shared memory
//! has room for.
//! @throws cuda_error; invalid_argument if not even one warp fits
template <class Config, class Variant>
[[nodiscard]] decode_grid default_decode_grid(cache_shape const& /*shape*/)
{
  using traits = detail::decode_traits<Config, Variant>;
  int device   = 0;
  int ctas     = 0;
  int bytes    = 0;
  DIFFKV_CUDA_TRY(cudaGetDevice(&device));
  DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device));
  DIFFKV_CUDA_TRY(
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  auto const free = static_cast<std::uint32_t>(bytes) - detail::static_bytes<traits>;
  std::uint32_t const warps =
    detail::min_of(static_cast<std::uint32_t>(traits::tuning::warps), free / traits::warp_bytes);
  DIFFKV_EXPECTS(warps > 0, "device: a warp of decode attention needs " +
                              std::to_string(traits::warp_bytes) + " bytes of shared memory");
  return {static_cast<std::uint32_t>(ctas), warps, static_cast<std::uint32_t>(traits::passes)};
}

//! Memory of the plan of a step and of the scratch of its launches.
//! @param capacity  sequences of a batch, at most
//! @param layers    that are planned together
//! @throws as decode_workspace_bytes without template parameters
template <class Config, class Variant>
[[nodiscard]] std::size_t decode_workspace_bytes(cache_shape const& shape, std::uint32_t capacity,
                                                 layer_range layers, decode_grid grid)
{
  using traits = detail::decode_traits<Config, Variant>;
  return decode_workspace_bytes(shape, capacity, layers, grid,
                                static_cast<std::uint32_t>(traits::part_floats));
}

//! Lays out `memory`; nothing is written.
//! @throws as make_decode_workspace without template parameters
template <class Config, class Variant>
[[nodiscard]] decode_workspace_ref make_decode_workspace(void* memory, std::size_t bytes,
                                                         cache_shape const& shape,
                                                         std::uint32_t capacity,
                                                         layer_range layers, decode_grid grid)
{
  using traits = detail::decode_traits<Config, Variant>;
  return make_decode_workspace(memory, bytes, shape, capacity, layers, grid,
                               static_cast<std::uint32_t>(traits::part_floats));
}

//! Decode attention of one layer for the batch that `plan_decode` saw, as host::decode_attention; with
//! Variant::score_every = k > 0 also the score path: the conditioned query and its log-sum-exp go into
//! the lag ring, and rows that catch up get the scores of the due queries and new candidates.
//! @tparam Config    static_config of the cache; its policy orders the candidates
//! @tparam Variant   decode_variant; its group_size is the cache's, its score_every 0 or the cache's
//! @tparam T, Out    elements of query and out: float, __half, __nv_bfloat16
//! @param cache      handles in device memory
//! @param options    `splits` is not read, the plan splits; `exact_lagged_queries` must be the variant's
//! @param work       the plan of this step; one launch at a time
//! @param query      [batch, num_q_heads, head_dim], rotary embedding applied, not conditioned
//! @param out        [batch, num_q_heads, head_dim]; 0 for a row without tokens
//! @param lse        [batch, num_q_heads] f32 natural logarithm, or null; -inf for a row without tokens
//! @pre    `append` of this layer stored the token of each sequence; sequences that `step` refused give
//!         attention over what they have and record nothing
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   reads each page once per 16 q_heads (8 at head_dim 256) of a head; no allocation
//! @error  per element within docs/numerics.md; the same bits from run to run and for any placement of
//!         pages, with the same plan
template <class Config, class Variant, class T, class Out>
void decode_attention(cache_ref const& cache, std::uint32_t layer,
                      typename Config::policy_type const& policy, attention_options const& options,
                      decode_workspace_ref const& work, vectors<T> query, vectors<Out> out, float* lse,
                      cudaStream_t stream)
{
  using traits = detail::decode_traits<Config, Variant>;
  expect_config<Config>(cache);
  detail::expect_decodable<traits>(cache, layer, options, work);
  if (work.capacity == 0) { return; }
  detail::decode_params<traits, T, Out> params{
    cache,
    work,
    policy,
    options,
    layer,
    query,
    out,
    lse,
    detail::has_whole_units(query, 16 / sizeof(T)),
    detail::has_whole_units(out, 4),
    {traits::high_tile::cut, traits::low_tile::cut}};
  auto* const kernel           = detail::decode_attention_kernel<traits, T, Out>;
  std::uint32_t const shared   = traits::shared_bytes(work.grid.warps);
  device_guard const guard{stream};
  DIFFKV_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared)));
  detail::launch(kernel, {work.grid.ctas, work.grid.warps * 32, shared, true}, stream, params);
}

}  // namespace diffkv
