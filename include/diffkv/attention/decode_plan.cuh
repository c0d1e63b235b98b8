// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Makes the work plan of a step on the device: one launch for all layers, without a list of pages.
//! Read before this: attention/plan_rows.cuh.  Read next: attention/tensor_core.cuh.
#include <diffkv/attention/plan_rows.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/table/static_config.hpp>

#include <limits>

namespace diffkv {

//! Measured on an H200, where most of the time is loads that wait for loads: half the threads are no
//! faster, a layer in one CTA takes twice as long as in four.
struct decode_plan_tuning_sm90 {
  static constexpr unsigned threads = 1024;  //!< of a CTA, at most
  static constexpr unsigned least   = 256;   //!< of a CTA, at least
  static constexpr unsigned ctas    = 264;   //!< of a launch, where layers are few: two per SM
  static constexpr unsigned parts   = 4;     //!< CTAs of a layer, at most
  static constexpr unsigned rows    = 3072;  //!< of a layer that are counted at a time
  static_assert(rows % threads == 0, "threads count as many rows each");
};

namespace detail {

//! A CTA that plans its part of one layer.
template <class Layouts>
struct plan_block {
  decode_plan_params const& p;
  plan_rows<Layouts> rows;
  std::uint32_t part;

  //! The part's rows, as far as they are counted, and their sequences; from the last thread on, as the first
  //! ones have ranges to write.
  __device__ void write_rows(counted_rows const& counted) const
  {
    std::size_t const layer    = rows.layer;
    std::uint32_t const heads  = p.num_heads.divisor;
    std::uint32_t const thread = blockDim.x - 1 - threadIdx.x;
    std::uint32_t const begin  = max(part * p.rows_of_part, counted.first);
    std::uint32_t const end    = min((part + 1) * p.rows_of_part, counted.first + counted.count);
    planned_row* const to      = p.planned_rows + layer * p.workspace_rows;
#pragma unroll 1
    for (std::uint32_t r = begin + thread; r < end; r += blockDim.x) {
      planned_row const row = rows.counted.rows[r - counted.first];
#pragma unroll 1
      for (std::uint32_t pass = 0; pass < p.passes; ++pass) {
        to[std::size_t{r} * p.passes + pass] = row;
      }
    }
    planned_sequence* const sequences = p.sequences + layer * p.workspace_sequences;
#pragma unroll 1
    for (std::uint32_t s = p.num_heads.quotient(begin + heads - 1) + thread; s * heads < end;
         s += blockDim.x) {
      sequences[s] = rows.plan_sequence(s);
    }
  }

  //! A page of the layer.
  struct page_place {
    std::uint32_t index       = 0;  //!< of its row in the launch
    std::uint32_t own         = 0;  //!< within the row
    std::uint32_t page        = 0;  //!< within the layer
    std::uint32_t early       = 0;  //!< see warp_range
    std::uint32_t counted_row = 0;  //!< its row among the counted ones
  };
  //! The page that `cost`, among the counted rows, lies in.
  //! @param before  pages in front of the counted rows
  [[nodiscard]] __device__ page_place find(counted_rows const& counted, std::uint32_t before,
                                           std::uint32_t cost) const
  {
    std::uint32_t const i     = rows.row_at(counted.count, cost);
    page_count const in_front = i == 0 ? page_count{} : rows.counted.ends[i - 1];
    planned_row const row     = rows.counted.rows[i];
    page_place place;
    place.counted_row  = i;
    row_cost of_pass   = rows.cost_of(row, row.catches_up != 0);
    std::uint32_t left = cost - in_front.cost;
    std::uint32_t pass = 0;
    if (p.passes > 1 && left >= of_pass.total()) {
      left -= of_pass.total();
      of_pass = rows.cost_of(row, false);
      pass    = 1 + left / of_pass.total();
      left %= of_pass.total();
    }
    place.own   = of_pass.page_at(left);
    place.early = left - of_pass.begin_of(place.own);
    place.index = (counted.first + i) * p.passes + pass;
    place.page  = before + in_front.pages + pass * of_pass.pages() + place.own;
    return place;
  }
  //! The range that begins there.
  [[nodiscard]] __device__ warp_range range_at(page_place const& place) const
  {
    std::uint16_t const appends_after =
      warp_range::pages_to(rows.counted.append_pages[place.counted_row], place.own);
    return {rows.counted.rows[place.counted_row],   place.index, place.own, 0, appends_after,
            static_cast<std::uint16_t>(place.early)};
  }

  //! The part's ranges, as far as they begin or end in the counted rows; with the first rows also those of
  //! a layer without pages. A lane finds where a range begins, which is where the one before ends: the last
  //! lane of a warp has none of its own.
  //! @param before  what lies in front of the counted rows
  //! @param total   of the layer
  __device__ void write_ranges(counted_rows const& counted, page_count const& before,
                               page_count const& total) const
  {
    page_shares const& shares     = rows.shared.shares;
    std::uint32_t const num_warps = p.grid.num_warps();
    warp_range* const ranges      = p.ranges + std::size_t{rows.layer} * num_warps;
    std::uint32_t const last      = min(num_warps, (part + 1) * p.ranges_of_part);
    std::uint32_t const has       = counted.sum.cost;
    bool const has_last           = has > 0 && before.cost + has == total.cost;
    std::uint32_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (std::uint32_t from = part * p.ranges_of_part + warp * 31; from < last;
         from += blockDim.x / 32 * 31) {
      std::uint32_t const w   = min(from + lane, last);
      std::uint32_t const cta = p.warps_of_cta.quotient(w);
      // Among the counted rows; beyond them where it lies in front.
      std::uint32_t const at = shares.begin_of_warp(cta, w - cta * p.grid.warps) - before.cost;
      bool const begins      = at < has;
      bool const is_end      = begins || (has_last && at == has);
      page_place place;
      place.page = total.pages;
      if (begins) { place = find(counted, before.pages, at); }
      std::uint32_t const end = __shfl_down_sync(0xFFFF'FFFFu, place.page, 1);
      bool const ends         = __shfl_down_sync(0xFFFF'FFFFu, is_end ? 1 : 0, 1) != 0;
      if (lane == 31 || w >= last) { continue; }
      if (!begins && (is_end || !ends)) {
        // Warps without a share, behind the last page; or all of a layer without pages.
        if (is_end || (total.cost == 0 && counted.first == 0)) { ranges[w] = {}; }
        continue;
      }
      warp_range range{};
      if (begins) {
        range           = range_at(place);
        range.num_pages = 0u - place.page;  // until the end is known
      } else {
        range = ranges[w];
      }
      if (ends) {
        range.num_pages += end;
        if (range.num_pages == 0) { range = {}; }
      }
      ranges[w] = range;
    }
  }

  //! All rows are counted at one time.
  __device__ void plan_at_once() const
  {
    counted_rows const counted = rows.count_from(0, true);
    write_ranges(counted, {}, counted.sum);
    write_total();
    write_rows(counted);
  }
  //! Rows are counted twice: all of them for the total, then some at a time.
  __device__ void plan_by_turns() const
  {
    page_count const total = rows.count_all();
    page_count before{};
    for (std::uint32_t first = 0; first < max(rows.num_rows, 1u); first += rows.at_a_time()) {
      counted_rows const counted = rows.count_from(first, false);
      write_ranges(counted, before, total);
      write_rows(counted);
      before += counted.sum;
      __syncthreads();
    }
    write_total();
  }
  //! @pre all rows were counted
  __device__ void write_total() const
  {
    if (part != 0 || threadIdx.x >= 32) { return; }
    std::uint32_t const of_warp =
      threadIdx.x < blockDim.x / 32 ? rows.shared.kinds_of_warp[threadIdx.x] : 0;
    std::uint32_t const kinds = __reduce_or_sync(0xFFFF'FFFFu, of_warp);
    if (threadIdx.x == 0) {
      page_shares const& shares = rows.shared.shares;
      p.totals[rows.layer]      = {shares.total,
                                   rows.shared.empty_rows,
                                   rows.num_rows * p.passes,
                                   rows_of_kinds((kinds & 2u) != 0, (kinds & 1u) != 0),
                                   shares.sharing,
                                   {}};
    }
  }
};

template <class Layouts, class Tuning, bool AtOnce>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  plan_decode_kernel(__grid_constant__ decode_plan_params const p)
{
  static_assert(Tuning::rows * counted_arrays::bytes_of_row <= 96 * 1024,
                "the rows must fit the shared memory of any GPU, beside what is static");
  __shared__ decode_plan_shared shared;
  extern __shared__ __align__(16) std::byte counted[];
  std::uint32_t const layer = blockIdx.x / p.parts;
  std::uint32_t const part  = blockIdx.x % p.parts;
  wait_for_previous_alone();  // attention reads its plan before it waits
  // Beside the size of the batch.
  std::uint32_t const first_slot = p.first_decides ? p.slots[0] : 0;
  std::uint32_t const num_rows   = p.batch_size() * p.num_heads.divisor;
  auto const arrays              = counted_arrays::in(counted, blockDim.x * p.rows_of_thread);
  plan_block<Layouts> const block{p, {p, shared, arrays, layer, num_rows, first_slot}, part};
  if constexpr (AtOnce) {
    block.plan_at_once();
  } else {
    block.plan_by_turns();
  }
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < p.grid.ctas; i += blockDim.x) { p.arrivals[i] = 0; }
  }
  __threadfence();
}

//! How many CTAs share a layer, and what each thread of them counts at a time.
struct plan_launch {
  std::uint32_t parts;
  std::uint32_t threads;
  std::uint32_t rows_of_thread;

  [[nodiscard]] std::size_t at_a_time() const noexcept
  {
    return std::size_t{threads} * rows_of_thread;
  }
  template <class Tuning>
  [[nodiscard]] static plan_launch of(std::uint32_t layers, std::uint32_t most_rows) noexcept
  {
    std::uint32_t const rows = min_of(most_rows, Tuning::rows);
    std::uint32_t const threads =
      min_of(Tuning::threads, max_of(Tuning::least, round_up(rows, 32u)));
    return {max_of(1u, min_of(Tuning::parts, Tuning::ctas / layers)), threads,
            max_of(1u, ceil_div(rows, threads))};
  }
};

//! @pre layers.count > 0
[[nodiscard]] inline decode_plan_params make_plan_params(cache_ref const& cache,
                                                         batch_ref const& batch, layer_range layers,
                                                         decode_workspace_ref const& work,
                                                         plan_launch const& shape) noexcept
{
  std::size_t const l = work.index_of(layers.first);
  decode_plan_params p{};
  p.slots               = batch.slots;
  p.count               = batch.count;
  p.rows                = cache.state.rows;
  p.layers              = cache.state.layers;
  p.ranges              = work.ranges + l * work.grid.num_warps();
  p.planned_rows        = work.rows + l * work.num_rows;
  p.sequences           = work.sequences + l * work.capacity;
  p.totals              = work.totals + l;
  p.arrivals            = work.arrivals;
  p.num_heads           = divider::by(cache.shape.num_heads);
  p.warps_of_cta        = divider::by(work.grid.warps);
  p.grid                = work.grid;
  p.aligned_ctas        = work.grid.ctas_for(batch.capacity * cache.shape.num_heads);
  p.capacity            = batch.capacity;
  p.num_layers          = cache.shape.num_layers;
  p.first_layer         = layers.first;
  p.score_every         = cache.shape.score_every;
  p.first_decides       = cache.shape.first_decides() && batch.capacity > 0;
  p.passes              = work.grid.passes;
  p.workspace_rows      = work.num_rows;
  p.workspace_sequences = work.capacity;
  p.parts               = shape.parts;
  p.ranges_of_part      = ceil_div(work.grid.num_warps(), shape.parts);
  p.rows_of_part        = ceil_div(batch.capacity * cache.shape.num_heads, shape.parts);
  p.rows_of_thread      = shape.rows_of_thread;
  return p;
}

}  // namespace detail

//! Plans the decode attention of a batch in some layers, once a step, after `step` and before the first
//! of these layers runs: equals host::plan_decode. Lengths are read on the device, so a captured graph
//! serves others.
//! @tparam Config  static_config; expect_config refuses other handles
//! @param cache    handles in device memory
//! @param batch    different slots (device memory: not checked); an empty one gives an empty plan. Its first
//!                 sequence decides when all catch up (catch_up_schedule): padding belongs at its end
//! @param layers   within those of the workspace; its other layers keep their plans
//! @param work     of make_decode_workspace, for at least `batch.capacity` sequences
//! @throws invalid_argument for handles of another configuration or workspace, before any launch;
//!         cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   O(rows + warps), no allocation
template <class Config>
void plan_decode(cache_ref const& cache, batch_ref const& batch, layer_range layers,
                 decode_workspace_ref const& work, cudaStream_t stream)
{
  using tuning = decode_plan_tuning_sm90;
  expect_config<Config>(cache);
  detail::expect_plannable(cache, batch, layers, work);
  if (layers.count == 0) { return; }
  using layouts            = typename Config::layouts;
  std::uint32_t const most = batch.capacity * cache.shape.num_heads;
  auto const shape         = detail::plan_launch::of<tuning>(layers.count, most);
  std::uint64_t const grid = std::uint64_t{shape.parts} * layers.count;
  DIFFKV_EXPECTS(grid <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
                 "layers: " + std::to_string(layers.count) + " are more than one launch can take");
  auto* const kernel = most <= shape.at_a_time()
                         ? detail::plan_decode_kernel<layouts, tuning, true>
                         : detail::plan_decode_kernel<layouts, tuning, false>;
  device_guard const guard{stream};
  detail::launch_shape const launched{static_cast<unsigned>(grid), shape.threads,
                                      shape.at_a_time() * detail::counted_arrays::bytes_of_row,
                                      true};
  // The limit is one for all calls, those of other threads and of captured graphs among them: the
  // most of any.
  detail::launch_shape most_shared{launched};
  most_shared.shared_bytes = tuning::rows * detail::counted_arrays::bytes_of_row;
  detail::allow_shared_memory(kernel, most_shared, stream);
  detail::launch(kernel, launched, stream,
                 detail::make_plan_params(cache, batch, layers, work, shape));
}

}  // namespace diffkv
