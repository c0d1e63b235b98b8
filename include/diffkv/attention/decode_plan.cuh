// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Makes the work plan of a step on the device: one launch for all layers, without a list of pages.
//! Read before this: attention/decode_workspace.hpp.  Read next: host/page_codec.hpp.
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/core/launch.cuh>
#include <diffkv/table/static_config.hpp>

#include <cub/block/block_scan.cuh>

#include <limits>

namespace diffkv {

struct plan_tuning_sm90 {
  static constexpr unsigned threads    = 1024;  //!< of a CTA, each for a row at a time
  static constexpr unsigned ctas       = 128;   //!< of a launch, if there are so few layers
  static constexpr unsigned most_parts = 4;     //!< CTAs of a layer
};

namespace detail {

struct plan_params {
  cache_ref cache;
  batch_ref batch;
  layer_range layers;
  decode_workspace_ref work;
  std::uint32_t parts;  //!< CTAs of a layer: each counts all rows and writes its part of the plan
};

//! A row of the cache with what a plan needs of it.
struct counted_row {
  planned_row row{};
  std::uint32_t num_pages = 0;
  bool exists             = false;
};

//! Pages that `tokens` tokens fill.
template <class Layout>
[[nodiscard]] __device__ std::uint32_t pages_filled_by(std::uint32_t tokens) noexcept
{
  return ceil_div(tokens, static_cast<std::uint32_t>(Layout::tokens_per_page));
}

template <class Tuning>
struct plan_shared {
  using scan = cub::BlockScan<std::uint32_t, Tuning::threads, cub::BLOCK_SCAN_WARP_SCANS>;
  typename scan::TempStorage scanned;
  planned_row rows[Tuning::threads];    //!< of a tile
  std::uint32_t ends[Tuning::threads];  //!< pages of the tile's rows up to this one, all passes
};

//! A CTA that plans its part of one layer. Rows are taken in tiles of one per thread.
template <class Layouts, class Tuning>
struct plan_block {
  plan_params const& p;
  plan_shared<Tuning>& shared;
  std::uint32_t layer;
  std::uint32_t part;
  std::uint32_t thread;

  //! Row `r` = sequence * num_heads + head of the layer; what it is of a sequence goes out here.
  //! @param writes  whether the plan of the sequence is written
  [[nodiscard]] __device__ counted_row count(std::uint32_t r, bool writes) const
  {
    cache_ref const& cache       = p.cache;
    std::uint32_t const sequence = r / cache.shape.num_heads;
    std::uint32_t const head     = r % cache.shape.num_heads;
    counted_row counted{};
    if (sequence >= p.batch.capacity) { return counted; }
    std::uint32_t const slot = p.batch.slots[sequence];  // read beside the size of the batch
    if (sequence >= p.batch.size()) { return counted; }
    std::size_t const row    = cache.shape.row(slot, layer, head);
    tier_counts const tokens = cache.state.rows[row].tokens;
    bool const stored        = cache.state.rows[row].append_slot != no_slot;
    layer_state const state  = cache.layer(slot, layer);
    due_queries due{};
    if (state.num_tokens > 0) {
      due = queries_due(state.num_tokens - 1, layer, cache.shape.score_every, state.queries);
    }
    if (writes && head == 0) {
      p.work.sequences[p.work.index_of(layer) * p.work.capacity + sequence] = {
        slot, state.num_tokens, state.queries, due.first, due.last, 0};
    }
    counted.row       = {static_cast<std::uint32_t>(row), tokens.high, tokens.low,
                         static_cast<std::uint16_t>(stored ? 1 : 0),
                         static_cast<std::uint16_t>(stored && due.catches_up ? 1 : 0)};
    counted.num_pages = pages_filled_by<typename Layouts::high>(tokens.high) +
                        pages_filled_by<typename Layouts::low>(tokens.low);
    counted.exists = true;
    return counted;
  }

  //! Rows of the layer, if the batch is as large as it may be.
  [[nodiscard]] __device__ std::uint32_t most_rows() const
  {
    return p.batch.capacity * p.cache.shape.num_heads;
  }

  //! Pages of all rows; only where they are more than one tile.
  //! @threads the CTA; result valid in all threads
  [[nodiscard]] __device__ std::uint32_t sum_pages() const
  {
    std::uint32_t sum = 0, all = 0;
    for (std::uint32_t r = thread; r < most_rows(); r += Tuning::threads) {
      sum += count(r, false).num_pages * p.work.grid.passes;
    }
    typename plan_shared<Tuning>::scan{shared.scanned}.InclusiveSum(sum, sum, all);
    __syncthreads();
    return all;
  }

  __device__ void write_row(std::uint32_t r, planned_row const& row) const
  {
    std::uint32_t const passes = p.work.grid.passes;
    planned_row* const to =
      p.work.rows + p.work.index_of(layer) * p.work.num_rows + std::size_t{r} * passes;
    for (std::uint32_t pass = 0; pass < passes; ++pass) { to[pass] = row; }
  }

  //! The range that begins with page `page` of the tile whose first row is `first`.
  //! @pre page is one of the tile's
  [[nodiscard]] __device__ warp_range range_at(std::uint32_t first, std::uint32_t page,
                                               std::uint32_t num_pages) const
  {
    std::uint32_t r = 0;  // the first row that ends behind the page
    for (std::uint32_t step = Tuning::threads / 2; step > 0; step /= 2) {
      if (shared.ends[r + step - 1] <= page) { r += step; }
    }
    planned_row const row      = shared.rows[r];
    std::uint32_t const passes = p.work.grid.passes;
    std::uint32_t const begin  = r == 0 ? 0 : shared.ends[r - 1];
    std::uint32_t own          = page - begin;
    std::uint32_t index        = first + r;
    if (passes > 1) {
      std::uint32_t const of_pass = (shared.ends[r] - begin) / passes;
      index                       = index * passes + own / of_pass;
      own %= of_pass;
    }
    std::uint32_t const high = pages_filled_by<typename Layouts::high>(row.high);
    page_id const id         = own < high ? p.cache.table.entry(row.row, tier::high, own)
                                          : p.cache.table.entry(row.row, tier::low, own - high);
    return {row, index, own, num_pages, id};
  }

  //! Ranges of this part that begin in pages begin .. end - 1 of the layer, which are those of the tile
  //! in shared memory; the first tile also has those without pages.
  __device__ void write_ranges(std::uint32_t first, std::uint32_t begin, std::uint32_t end,
                               std::uint32_t total) const
  {
    std::uint32_t const num_warps = p.work.grid.num_warps();
    warp_range* const ranges      = p.work.ranges + p.work.index_of(layer) * num_warps;
    for (std::uint32_t w = part * Tuning::threads + thread; w < num_warps;
         w += p.parts * Tuning::threads) {
      std::uint32_t const page  = share_begin(total, w, num_warps);
      std::uint32_t const pages = share_begin(total, w + 1, num_warps) - page;
      if (pages == 0) {
        if (first == 0) { ranges[w] = {}; }
      } else if (page >= begin && page < end) {
        ranges[w] = range_at(first, page - begin, pages);
      }
    }
  }

  __device__ void plan() const
  {
    bool const one_tile     = most_rows() <= Tuning::threads;
    std::uint32_t total     = one_tile ? 0 : sum_pages();
    std::uint32_t num_empty = 0;
    std::uint32_t begin     = 0;  // pages in front of the tile
    bool const writes       = thread / 32 % p.parts == part;
    std::uint32_t first     = 0;
    do {
      counted_row const counted = count(first + thread, writes);
      std::uint32_t end = 0, in_tile = 0;
      typename plan_shared<Tuning>::scan{shared.scanned}.InclusiveSum(
        counted.num_pages * p.work.grid.passes, end, in_tile);
      shared.ends[thread] = end;
      shared.rows[thread] = counted.row;
      if (writes && counted.exists) { write_row(first + thread, counted.row); }
      num_empty +=
        static_cast<std::uint32_t>(__syncthreads_count(counted.exists && counted.num_pages == 0));
      if (one_tile) { total = in_tile; }
      write_ranges(first, begin, begin + in_tile, total);
      begin += in_tile;
      first += Tuning::threads;
      if (first >= most_rows()) { break; }
      __syncthreads();
    } while (true);
    if (part == 0 && thread == 0) {
      p.work.totals[p.work.index_of(layer)] = {total, num_empty * p.work.grid.passes};
    }
  }
};

template <class Layouts, class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  plan_decode_kernel(__grid_constant__ plan_params const p)
{
  __shared__ plan_shared<Tuning> shared;
  wait_for_previous();
  plan_block<Layouts, Tuning> const block{p, shared, p.layers.first + blockIdx.x / p.parts,
                                          blockIdx.x % p.parts, threadIdx.x};
  if (blockIdx.x == 0) {
    for (std::uint32_t i = threadIdx.x; i < p.work.grid.ctas; i += Tuning::threads) {
      p.work.arrivals[i] = 0;
    }
  }
  block.plan();
}

}  // namespace detail

//! Plans the decode attention of a batch in some layers, once a step, after `step` and before the first
//! of these layers runs: equals host::plan_decode. Lengths are read on the device, so a captured graph
//! serves others.
//! @tparam Config  static_config; expect_config refuses other handles
//! @param cache    handles in device memory
//! @param batch    different slots (device memory: not checked); an empty one gives an empty plan
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
  using tuning = plan_tuning_sm90;
  expect_config<Config>(cache);
  detail::expect_plannable(cache, batch, layers, work);
  if (layers.count == 0) { return; }
  std::uint32_t const parts =
    detail::max_of(1u, detail::min_of(tuning::most_parts, tuning::ctas / layers.count));
  std::uint64_t const grid = std::uint64_t{parts} * layers.count;
  DIFFKV_EXPECTS(grid <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
                 "layers: " + std::to_string(layers.count) + " are more than one launch can take");
  detail::launch(detail::plan_decode_kernel<typename Config::layouts, tuning>,
                 {static_cast<unsigned>(grid), tuning::threads, 0, true}, stream,
                 detail::plan_params{cache, batch, layers, work, parts});
}

}  // namespace diffkv
