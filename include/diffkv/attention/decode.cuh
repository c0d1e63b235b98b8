// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention over the mixed pages of all rows of a layer, one launch.
//! Read before this: attention/page_walk.cuh.  Read next: host/page_codec.hpp.
//!
//! Every warp reads its share of the pages of the layer, tile by tile through slots of shared memory
//! that it fills by itself, and keeps the sums of the row at hand in registers. A row that lies in one
//! warp is written at once. Else its parts are merged, first those of a CTA, then those of the CTAs, by
//! whoever comes last, in the order of the pages.
#include <diffkv/attention/attend_blocks.cuh>
#include <diffkv/attention/decode_plan.cuh>
#include <diffkv/attention/page_walk.cuh>
#include <diffkv/core/launch.cuh>

#include <cuda/atomic>

namespace diffkv {
namespace detail {

//! What the warps of a CTA share.
template <class Traits>
struct decode_cta {
  static constexpr int warps = Traits::tuning::warps;
  //! Pages of a row that have been read; 0: the row that began in front of the CTA, 1 + w: the one that
  //! goes on behind warp w.
  std::uint32_t arrived[warps + 1];
  //! Rows of many CTAs whose last part came from here: merged by all warps at the end. One begins in
  //! front of the CTA, one ends behind it.
  struct waiting_row {
    std::uint32_t index;
    std::uint32_t first_cta;
    std::uint32_t last_cta;
    std::uint32_t flags;
    float offset[Traits::heads];
  } waiting[2];
  std::uint32_t num_waiting;
};

//! One warp of a launch.
template <class Traits, class T, class Out>
struct decode_warp {
  using params                = decode_params<Traits, T, Out>;
  using target_type           = row_target<Traits, T, Out>;
  using part_type             = partial_row<Traits>;
  static constexpr int sets   = Traits::sets;
  static constexpr int slots  = Traits::tuning::slots;
  static constexpr int places = Traits::candidate_places;

  params const& p;
  decode_cta<Traits>& cta;
  std::byte* shared;         //!< of the CTA
  fragment_lane at;
  std::uint32_t warp;        //!< of the CTA
  std::uint32_t warps;       //!< of a CTA
  std::uint32_t total;       //!< pages of the layer
  std::uint32_t end_of_warp;  //!< first page behind the warp's range

  row_queries<Traits> queries;
  row_accumulator<Traits> sums;
  score_path<Traits> scores;

  [[nodiscard]] __device__ std::byte* memory_of(std::uint32_t w) const noexcept
  {
    return shared + std::size_t{w} * Traits::warp_bytes;
  }
  //! Part of a row that warp w read last: where its tiles were.
  [[nodiscard]] __device__ part_type last_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w))};
  }
  //! Part of the row that began in front of warp w and ends in it.
  [[nodiscard]] __device__ part_type first_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w) + Traits::ring_bytes)};
  }
  [[nodiscard]] __device__ float* stage() const noexcept
  {
    return reinterpret_cast<float*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes);
  }
  [[nodiscard]] __device__ candidate* record() const noexcept
  {
    return reinterpret_cast<candidate*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes +
                                        Traits::stage_bytes);
  }
  [[nodiscard]] __device__ tile_note* notes() const noexcept
  {
    return reinterpret_cast<tile_note*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes +
                                        Traits::stage_bytes + Traits::record_bytes);
  }
  [[nodiscard]] __device__ std::uint32_t barriers() const noexcept
  {
    return shared_address(notes() + slots);
  }
  //! First page of the range of CTA c.
  [[nodiscard]] __device__ std::uint32_t begin_of_cta(std::uint32_t c) const noexcept
  {
    return share_begin(total, c * warps, p.work.grid.num_warps());
  }

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
        rotate_share<Traits::head_dim, groups, 4, 1>(x, stage(), at.lane);
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
    scores.record              = record();
    if (at.lane < num_stored_tiers * places) { record()[at.lane] = candidate{}; }
    __syncwarp();
  }

  __device__ void begin_row(tile_note const& note) noexcept
  {
    target_type const target{p, note.index};
    planned_sequence const& plan = p.sequence(target.sequence);
    bool const stored            = (note.flags & tile_flag::stored) != 0;
    bool const keeps             = stored && note.ordinal == 0;
    load_queries(queries.high, target, keeps, plan.num_tokens - 1, plan.slot, true);
    if constexpr (!row_queries<Traits>::shared) {
      load_queries(queries.low, target, false, 0, 0, false);
    }
    if constexpr (Traits::variant::sliding_window) {
      queries.first_position = p.options.sliding_window > 0
                                 ? plan.num_tokens - p.options.sliding_window
                                 : -1;
    }
    if constexpr (Traits::has_scores) {
      scores.on = (note.flags & tile_flag::catches_up) != 0 && target.first_head == 0;
      if (scores.on) { load_scores(target, plan); }
    }
    sums.clear();
  }

  __device__ void attend(tile_note const& note, std::uint32_t tile, bool& in_low) noexcept
  {
    weight_exchange const exchange{at};
    bool const low = (note.flags & tile_flag::low) != 0;
    if constexpr (Traits::has_scores) {
      if (scores.on) {
        auto const page_tokens = static_cast<std::uint32_t>(
          low ? Traits::low_tile::page_tokens : Traits::high_tile::page_tokens);
        tile_segment const& segment = p.cut[low ? 1 : 0].segments[4];
        scores.page = {p.cache.pool.page(note.page), low ? tier::low : tier::high, note.first,
                       places == 0 ? 0u : note.first / page_tokens % static_cast<std::uint32_t>(places),
                       segment.in_page + segment.per_block * note.block};
      }
    }
    if (Traits::has_low && low) {
      if (!in_low) {
        unmix<Traits::high_tile::value.bits>(sums);
        mix<Traits::low_tile::value.bits>(sums);
        in_low = true;
      }
      attend_tile<typename Traits::low_tile>(tile, note.tokens, p.options.soft_cap, queries, sums,
                                             scores, exchange, at);
    } else {
      attend_tile<typename Traits::high_tile>(tile, note.tokens, p.options.soft_cap, queries, sums,
                                              scores, exchange, at);
    }
    if constexpr (Traits::has_scores) {
      if (scores.on && (note.flags & tile_flag::ends_page) != 0) { scores.close_page(); }
    }
  }

  //! The row's last tile in this warp was read.
  //! @param begin  first page of the row in this warp
  //! @param end    first page of the layer behind it in this warp
  __device__ void end_row(tile_note const& note, std::uint32_t pages_read, std::uint32_t end,
                          bool in_low) noexcept
  {
    close(sums, in_low);
    std::uint32_t const row_begin = end - 1 - note.ordinal;
    std::uint32_t const row_end   = row_begin + note.pages_of_row;
    bool const stored             = (note.flags & tile_flag::stored) != 0;
    bool catches_up               = false;
    if constexpr (Traits::has_scores) { catches_up = scores.on; }
    target_type const target{p, note.index};
    if (pages_read == note.pages_of_row) {
      store_whole_row(target, sums, queries.offset, stored, stage(), at);
      if constexpr (Traits::has_scores) {
        if (catches_up) {
          store_scores(target,
                       at.lane < num_stored_tiers * places ? record()[at.lane] : candidate{},
                       at.lane);
        }
        __syncwarp();
      }
      return;
    }
    part_type const part = end == end_of_warp ? last_part(warp) : first_part(warp);
    __syncwarp();
    store_partial(part, sums, at);
    if constexpr (Traits::has_scores) {
      if (catches_up && at.lane < num_stored_tiers * places) {
        part.candidates()[at.lane] = record()[at.lane];
      }
    }
    __syncwarp();

    // Within the CTA: whoever completes the row merges.
    std::uint32_t const num_warps = p.work.grid.num_warps();
    std::uint32_t const cta_begin = begin_of_cta(blockIdx.x);
    std::uint32_t const cta_end   = begin_of_cta(blockIdx.x + 1);
    std::uint32_t const here      = max_of(row_begin, cta_begin);
    std::uint32_t const here_end  = min_of(row_end, cta_end);
    std::uint32_t const first_cta_warp = blockIdx.x * warps;
    std::uint32_t const first_warp     = share_of(total, here, num_warps) - first_cta_warp;
    std::uint32_t const last_warp      = share_of(total, here_end - 1, num_warps) - first_cta_warp;
    bool completes                     = false;
    if (at.lane == 0) {
      std::uint32_t const key = row_begin < cta_begin ? 0u : first_warp + 1;
      cuda::atomic_ref<std::uint32_t, cuda::thread_scope_block> arrived{cta.arrived[key]};
      completes = arrived.fetch_add(pages_read, cuda::memory_order_acq_rel) + pages_read ==
                  here_end - here;
    }
    if (__shfl_sync(0xFFFF'FFFFu, completes ? 1 : 0, 0) == 0) { return; }
    auto const part_of_warp = [&](std::uint32_t i) -> part_type {
      std::uint32_t const w = first_warp + i;
      std::uint32_t const b = share_begin(total, first_cta_warp + w, num_warps);
      std::uint32_t const e = share_begin(total, first_cta_warp + w + 1, num_warps);
      if (b == e) { return {}; }
      return row_end >= e ? last_part(w) : first_part(w);
    };
    std::uint32_t const num_parts = last_warp - first_warp + 1;
    if (row_begin >= cta_begin && row_end <= cta_end) {
      finish(target, num_parts, part_of_warp, queries.offset, stored, catches_up);
      return;
    }

    // Over the CTAs.
    std::uint32_t const first_cta = share_of(total, row_begin, num_warps) / warps;
    std::uint32_t const last_cta  = share_of(total, row_end - 1, num_warps) / warps;
    part_type const left          = part_of_cta(blockIdx.x, first_cta);
    merge_parts<Traits>(
      num_parts, part_of_warp,
      [&](int h, merged_head<Traits> const& merged) {
        auto const& v = merged.out;
#pragma unroll
        for (int q = 0; q < v.quads_per_lane; ++q) {
          if (!v.has(at.lane, q)) { continue; }
          *reinterpret_cast<float4*>(left.out(h) + 4 * v.quad(at.lane, q)) =
            float4{v.x[q][0], v.x[q][1], v.x[q][2], v.x[q][3]};
        }
        if (at.lane == 0) { left.state(h) = float2{merged.max, merged.sum}; }
      },
      at.lane);
    if constexpr (Traits::has_scores) {
      if (catches_up) {
        candidate const c = merge_candidates<Traits>(num_parts, part_of_warp, at.lane);
        if (at.lane < num_stored_tiers * places) { left.candidates()[at.lane] = c; }
      }
    }
    __syncwarp();
    // A layer of fewer pages than CTAs leaves some without.
    std::uint32_t const num_ctas =
      total >= p.work.grid.ctas ? last_cta - first_cta + 1 : note.pages_of_row;
    bool is_last = false;
    if (at.lane == 0) {
      cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> arrivals{
        p.work.arrivals[first_cta]};
      is_last = arrivals.fetch_add(1, cuda::memory_order_acq_rel) == num_ctas - 1;
      if (is_last) { arrivals.store(0, cuda::memory_order_relaxed); }
    }
    if (__shfl_sync(0xFFFF'FFFFu, is_last ? 1 : 0, 0) == 0) { return; }
    if (num_ctas <= Traits::tuning::few_parts) {
      finish(
        target, last_cta - first_cta + 1,
        [&](std::uint32_t i) { return part_of_cta(first_cta + i, first_cta); }, queries.offset,
        stored, catches_up);
      return;
    }
    std::uint32_t place = 0;
    if (at.lane == 0) {
      cuda::atomic_ref<std::uint32_t, cuda::thread_scope_block> waiting{cta.num_waiting};
      place              = waiting.fetch_add(1, cuda::memory_order_relaxed);
      cta.waiting[place].index     = note.index;
      cta.waiting[place].first_cta = first_cta;
      cta.waiting[place].last_cta  = last_cta;
      cta.waiting[place].flags     = (stored ? 1u : 0u) | (catches_up ? 2u : 0u);
    }
    place = __shfl_sync(0xFFFF'FFFFu, place, 0);
#pragma unroll
    for (int s = 0; s < sets; ++s) {
      if (at.g == 0 && 4 * s + at.t < Traits::heads) {
        cta.waiting[place].offset[4 * s + at.t] = queries.offset[s];
      }
    }
  }

  //! What CTA c left of the row that begins in first_cta.
  [[nodiscard]] __device__ part_type part_of_cta(std::uint32_t c,
                                                 std::uint32_t first_cta) const noexcept
  {
    if (begin_of_cta(c) == begin_of_cta(c + 1)) { return {}; }
    std::uint32_t const place = 2 * c + (c == first_cta ? 1 : 0);
    return {p.work.partials + std::size_t{place} * p.work.partial_floats};
  }

  //! Merges the parts of a row into its result.
  //! @param offset  of head 4 s + t
  template <class PartAt>
  __device__ void finish(target_type const& target, std::uint32_t num_parts, PartAt const& part,
                         float const (&offset)[sets], bool stored, bool catches_up) const noexcept
  {
    merge_parts<Traits>(
      num_parts, part,
      [&](int h, merged_head<Traits>& merged) {
        float of_head = 0.0f;
        if constexpr (Traits::centred) {
#pragma unroll
          for (int s = 0; s < sets; ++s) {
            float const o = __shfl_sync(0xFFFF'FFFFu, offset[s], h % 4);
            of_head       = h / 4 == s ? o : of_head;
          }
        }
        store_merged_head(target, h, merged, of_head, stored, at.lane);
      },
      at.lane);
    if constexpr (Traits::has_scores) {
      if (catches_up) {
        store_scores(target, merge_candidates<Traits>(num_parts, part, at.lane), at.lane);
      }
    }
  }

  //! Rows of many CTAs, by all warps: each merges some of the parts, then one what they have made.
  //! @threads the CTA
  __device__ void finish_waiting_rows() noexcept
  {
    __syncthreads();
    std::uint32_t const num_waiting = cta.num_waiting;
    for (std::uint32_t i = 0; i < num_waiting; ++i) {
      auto const& row             = cta.waiting[i];
      bool const catches_up       = (row.flags & 2u) != 0;
      std::uint32_t const num_all = row.last_cta - row.first_cta + 1;
      std::uint32_t const num_own = num_all > warp ? ceil_div(num_all - warp, warps) : 0u;
      auto const own_part         = [&](std::uint32_t k) {
        return part_of_cta(row.first_cta + warp + k * warps, row.first_cta);
      };
      part_type const mine = last_part(warp);
      merge_parts<Traits>(
        num_own, own_part,
        [&](int h, merged_head<Traits> const& merged) {
          auto const& v = merged.out;
#pragma unroll
          for (int q = 0; q < v.quads_per_lane; ++q) {
            if (!v.has(at.lane, q)) { continue; }
            *reinterpret_cast<float4*>(mine.out(h) + 4 * v.quad(at.lane, q)) =
              float4{v.x[q][0], v.x[q][1], v.x[q][2], v.x[q][3]};
          }
          if (at.lane == 0) { mine.state(h) = float2{merged.max, merged.sum}; }
        },
        at.lane);
      if constexpr (Traits::has_scores) {
        if (catches_up) {
          candidate const c = merge_candidates<Traits>(num_own, own_part, at.lane);
          if (at.lane < num_stored_tiers * places) { mine.candidates()[at.lane] = c; }
        }
      }
      __syncthreads();
      if (warp == 0) {
        float offset[sets]{};
#pragma unroll
        for (int s = 0; s < sets; ++s) {
          if (4 * s + at.t < Traits::heads) { offset[s] = row.offset[4 * s + at.t]; }
        }
        finish(
          target_type{p, row.index}, warps, [&](std::uint32_t w) { return last_part(w); }, offset,
          (row.flags & 1u) != 0, catches_up);
      }
      __syncthreads();
    }
  }

  //! Rows without tokens, a few to each warp.
  __device__ void store_empty_rows() const noexcept
  {
    std::uint32_t const num_warps = p.work.grid.num_warps();
    for (std::uint32_t index = blockIdx.x * warps + warp; index < p.totals().num_rows;
         index += num_warps) {
      planned_row const& row = p.row(index);
      if (row.high + row.low > 0) { continue; }
      store_empty_row(target_type{p, index}, at.lane);
    }
  }

  //! All tiles of the warp's range.
  __device__ void read_pages(warp_range const& range) noexcept
  {
    page_stream<slots> stream;
    stream.init(barriers(), at.lane);
    __syncwarp();
    page_walk<Traits, T, Out> walk{p, range, at.lane};
    std::uint32_t const ring = shared_address(memory_of(warp));
    std::uint32_t requested  = 0;
    std::uint32_t page       = end_of_warp - range.num_pages;  // of the layer
    std::uint32_t row_begin  = page;                           // of the row at hand, in this warp
    bool in_low              = false;
    auto const request       = [&] {
      if (walk.has_more()) {
        std::uint32_t const slot = requested % slots;
        walk.request(stream, static_cast<int>(slot), ring + slot * Traits::slot_bytes,
                           notes() + slot);
      } else {
        stream.end();
      }
      ++requested;
    };
    request();
    bool looked_ahead = false;
#pragma unroll 1
    for (std::uint32_t tile = 0; page < end_of_warp; ++tile) {
      std::uint32_t const slot = tile % slots;
      // One copy at first: asking for more can take long, and the queries can be had meanwhile.
      if (looked_ahead) {
#pragma unroll 1
        while (requested < tile + slots) { request(); }
      }
      __syncwarp();
      tile_note const note = notes()[slot];
      if ((note.flags & tile_flag::begins) != 0) {
        begin_row(note);
        row_begin = page;
        in_low    = false;
      }
      if (!looked_ahead) {
        looked_ahead = true;
        walk.look_ahead();
#pragma unroll 1
        while (requested < tile + slots) { request(); }
      }
      stream.wait(static_cast<int>(slot));
      attend(note, ring + slot * Traits::slot_bytes, in_low);
      __syncwarp();  // the slot may be filled again
      if ((note.flags & tile_flag::ends_page) != 0) { ++page; }
      if ((note.flags & tile_flag::ends) != 0) { end_row(note, page - row_begin, page, in_low); }
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
  warp_range const range    = p.work.ranges[p.work.index_of(p.layer) * p.work.grid.num_warps() + share];
  std::uint32_t const total = p.totals().num_pages;
  decode_warp<Traits, T, Out> self{
    p,     cta,   shared, fragment_lane::of_thread(),
    warp,  warps, total,  share_begin(total, share + 1, p.work.grid.num_warps())};
  __syncthreads();
  if (range.num_pages > 0) { self.read_pages(range); }
  if (p.totals().empty_rows > 0) { self.store_empty_rows(); }
  self.finish_waiting_rows();
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
                   work.grid.warps >= 1 &&
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
