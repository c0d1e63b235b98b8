// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Makes the work plan of a step on the device: one launch for all layers, without a list of pages.
//! Read before this: attention/decode_workspace.hpp.  Read next: attention/tensor_core.cuh.
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/core/launch.cuh>
#include <diffkv/table/static_config.hpp>

#include <cub/warp/warp_scan.cuh>

#include <limits>

namespace diffkv {

//! Measured on an H200, where most of the time is loads that wait for loads: half the threads are no
//! faster, a layer in one CTA takes twice as long as in four.
struct plan_tuning_sm90 {
  static constexpr unsigned threads = 1024;  //!< of a CTA, at most
  static constexpr unsigned least   = 256;   //!< of a CTA, at least
  static constexpr unsigned ctas    = 264;   //!< of a launch, where layers are few: two per SM
  static constexpr unsigned parts   = 4;     //!< CTAs of a layer, at most
  static constexpr unsigned rows    = 8192;  //!< of a layer that are counted at a time
};

namespace detail {

//! Division by a number that the host knows: floor(n / d) = (n * magic) >> 63, as n * d < 2^63.
struct divider {
  std::uint32_t divisor = 1;
  std::uint64_t magic   = 0;

  //! @pre 0 < d < 2^31
  [[nodiscard]] static divider by(std::uint32_t d) noexcept
  {
    return {d, (std::uint64_t{1} << 63) / d + 1};
  }
  [[nodiscard]] __device__ std::uint32_t quotient(std::uint32_t n) const noexcept
  {
    return static_cast<std::uint32_t>(__umul64hi(magic, std::uint64_t{n} << 1));
  }
};

//! What of a cache, a batch and a workspace a plan needs, with the first layer planned as layer 0 of
//! the arrays of the workspace. Every constant that a kernel reads first costs it a miss.
struct plan_params {
  std::uint32_t const* slots;
  std::uint32_t const* count;
  row_state const* rows;
  layer_state const* layers;
  page_table_ref table;
  warp_range* ranges;
  planned_row* planned_rows;
  planned_sequence* sequences;
  planned_layer* totals;
  std::uint32_t* arrivals;
  divider num_heads;
  divider num_warps;
  std::uint32_t capacity;  //!< of the batch
  std::uint32_t num_layers;
  std::uint32_t first_layer;
  std::int32_t score_every;
  std::uint32_t passes;
  std::uint32_t num_ctas;             //!< of attention
  std::uint32_t workspace_rows;       //!< of a layer
  std::uint32_t workspace_sequences;  //!< of a layer
  std::uint32_t parts;                //!< CTAs of a layer: each counts all rows and writes its part
  std::uint32_t ranges_of_part;       //!< at most
  std::uint32_t rows_of_part;         //!< at most
  std::uint32_t rows_of_thread;       //!< counted at a time

  [[nodiscard]] __device__ std::uint32_t batch_size() const
  {
    return batch_ref{slots, count, capacity}.size();
  }
};

//! Shared memory of known size; behind it lie the ends of the rows that are counted at a time.
struct plan_shared {
  std::uint32_t pages_of_warp[32];
  std::uint32_t empty_of_warp[32];
};

//! Pages that `tokens` tokens fill.
template <class Layout>
[[nodiscard]] __device__ std::uint32_t pages_filled_by(std::uint32_t tokens) noexcept
{
  return ceil_div(tokens, static_cast<std::uint32_t>(Layout::tokens_per_page));
}

//! Pages, and rows without any; all passes.
struct page_sum {
  std::uint32_t pages = 0;
  std::uint32_t empty = 0;
};

//! A row of the layer that a CTA plans.
struct layer_row {
  std::uint32_t sequence;  //!< index into the batch
  std::uint32_t head;
  std::uint32_t slot;
  std::uint32_t item;  //!< index of (slot, layer)
  std::uint32_t row;   //!< of the cache
};

//! A row with all that a plan reads of it.
struct found_row {
  layer_row at;
  tier_counts tokens;
  slot_index append_slot;
  layer_state state;
};

//! A CTA that plans its part of one layer. Rows of the layer are numbered sequence * num_heads + head.
template <class Layouts>
struct plan_block {
  plan_params const& p;
  plan_shared& shared;
  std::uint32_t* ends;  //!< pages of the counted rows up to each of them, all passes
  std::uint32_t layer;  //!< of those planned
  std::uint32_t part;
  std::uint32_t num_rows = 0;  //!< of the batch in the layer, one pass

  //! @pre row `r` is one of a batch of `capacity` sequences; behind its size the slot is anything
  [[nodiscard]] __device__ layer_row locate(std::uint32_t r) const
  {
    layer_row at{};
    at.sequence = p.num_heads.quotient(r);
    at.head     = r - at.sequence * p.num_heads.divisor;
    at.slot     = p.slots[at.sequence];
    at.item     = at.slot * p.num_layers + p.first_layer + layer;
    at.row      = at.item * p.num_heads.divisor + at.head;
    return at;
  }
  //! Pages of row `r`, all passes.
  [[nodiscard]] __device__ page_sum count(std::uint32_t r) const
  {
    if (r >= p.capacity * p.num_heads.divisor) { return {}; }
    layer_row const at = locate(r);  // beside the size of the batch
    if (r >= num_rows) { return {}; }
    tier_counts const tokens  = p.rows[at.row].tokens;
    std::uint32_t const pages = pages_filled_by<typename Layouts::high>(tokens.high) +
                                pages_filled_by<typename Layouts::low>(tokens.low);
    return {pages * p.passes, pages == 0 ? p.passes : 0};
  }

  //! Sums what the threads have.  @param before  out: pages of the threads in front
  //! @threads the CTA; result valid in all threads
  [[nodiscard]] __device__ page_sum sum(page_sum mine, std::uint32_t& before) const
  {
    using scan = cub::WarpScan<std::uint32_t>;
    typename scan::TempStorage unused;
    std::uint32_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::uint32_t end = 0;
    scan{unused}.InclusiveSum(mine.pages, end);
    std::uint32_t const empty = __reduce_add_sync(0xFFFF'FFFFu, mine.empty);
    if (lane == 31) {
      shared.pages_of_warp[warp] = end;
      shared.empty_of_warp[warp] = empty;
    }
    __syncthreads();
    bool const is_warp        = lane < blockDim.x / 32;
    std::uint32_t const pages = is_warp ? shared.pages_of_warp[lane] : 0;
    std::uint32_t of_warps    = 0;
    scan{unused}.InclusiveSum(pages, of_warps);
    before = __shfl_sync(0xFFFF'FFFFu, of_warps - pages, static_cast<int>(warp)) + end - mine.pages;
    return {__shfl_sync(0xFFFF'FFFFu, of_warps, 31),
            __reduce_add_sync(0xFFFF'FFFFu, is_warp ? shared.empty_of_warp[lane] : 0)};
  }

  //! Pages of all rows; only where they are not counted at one time.
  [[nodiscard]] __device__ std::uint32_t count_all() const
  {
    page_sum mine{};
#pragma unroll 4
    for (std::uint32_t r = threadIdx.x; r < num_rows; r += blockDim.x) {
      page_sum const row = count(r);
      mine               = {mine.pages + row.pages, mine.empty + row.empty};
    }
    std::uint32_t before    = 0;
    std::uint32_t const all = sum(mine, before).pages;
    __syncthreads();
    return all;
  }

  //! Fills `ends` for rows first, first + 1, ...: a thread takes some that follow each other.
  [[nodiscard]] __device__ page_sum count_from(std::uint32_t first) const
  {
    std::uint32_t const begin = threadIdx.x * p.rows_of_thread;
    page_sum mine{};
#pragma unroll 2
    for (std::uint32_t i = 0; i < p.rows_of_thread; ++i) {
      page_sum const row = count(first + begin + i);
      mine               = {mine.pages + row.pages, mine.empty + row.empty};
      ends[begin + i]    = mine.pages;
    }
    std::uint32_t before = 0;
    page_sum const all   = sum(mine, before);
#pragma unroll 1
    for (std::uint32_t i = 0; i < p.rows_of_thread; ++i) { ends[begin + i] += before; }
    __syncthreads();
    return all;
  }

  [[nodiscard]] __device__ found_row find(std::uint32_t r) const
  {
    layer_row const at   = locate(r);
    row_state const& row = p.rows[at.row];
    found_row const found{at, row.tokens, row.append_slot, p.layers[at.item]};
    // All loads in front: those moved to where they are used would wait one after the other.
    asm volatile("" ::: "memory");
    return found;
  }
  [[nodiscard]] __device__ due_queries due_in(layer_state const& state) const
  {
    bool const begun = state.num_tokens > 0;
    return queries_due(begun ? state.num_tokens - 1 : 0, p.first_layer + layer,
                       begun ? p.score_every : 0, state.queries);
  }
  [[nodiscard]] static __device__ planned_row plan_row(found_row const& found, bool catches_up)
  {
    bool const stored = found.append_slot != no_slot;
    return {found.at.row, found.tokens.high, found.tokens.low,
            static_cast<std::uint16_t>(stored ? 1 : 0),
            static_cast<std::uint16_t>(stored && catches_up ? 1 : 0)};
  }

  //! The part's rows and sequences; from the last thread on, as the first ones have ranges to write.
  __device__ void write_rows() const
  {
    std::uint32_t const begin = part * p.rows_of_part;
    std::uint32_t const end   = min(num_rows, begin + p.rows_of_part);
#pragma unroll 1
    for (std::uint32_t r = begin + blockDim.x - 1 - threadIdx.x; r < end; r += blockDim.x) {
      found_row const found    = find(r);
      layer_state const& state = found.state;
      due_queries const due    = due_in(state);
      if (found.at.head == 0) {
        p.sequences[std::size_t{layer} * p.workspace_sequences + found.at.sequence] = {
          found.at.slot, state.num_tokens, state.queries, due.first, due.last, 0};
      }
      planned_row const row = plan_row(found, due.catches_up);
      planned_row* const to =
        p.planned_rows + std::size_t{layer} * p.workspace_rows + std::size_t{r} * p.passes;
#pragma unroll 1
      for (std::uint32_t pass = 0; pass < p.passes; ++pass) { to[pass] = row; }
    }
  }

  //! The range that begins with page `page` of the counted rows, of which there are `rows` from `first`.
  //! @pre page < ends[rows - 1]
  [[nodiscard]] __device__ warp_range range_at(std::uint32_t first, std::uint32_t rows,
                                               std::uint32_t page, std::uint32_t num_pages) const
  {
    std::uint32_t r = 0;  // the first row that ends behind the page
#pragma unroll 1
    for (std::uint32_t last = rows - 1; r < last;) {
      std::uint32_t const middle = (r + last) / 2;
      bool const is_behind       = ends[middle] <= page;
      r                          = is_behind ? middle + 1 : r;
      last                       = is_behind ? last : middle;
    }
    found_row const found     = find(first + r);
    std::uint32_t const begin = r == 0 ? 0 : ends[r - 1];
    std::uint32_t own         = page - begin;
    std::uint32_t index       = first + r;
    if (p.passes > 1) {
      std::uint32_t const of_pass = (ends[r] - begin) / p.passes;
      index                       = index * p.passes + own / of_pass;
      own %= of_pass;
    }
    std::uint32_t const high = pages_filled_by<typename Layouts::high>(found.tokens.high);
    page_id const id         = own < high ? p.table.entry(found.at.row, tier::high, own)
                                          : p.table.entry(found.at.row, tier::low, own - high);
    return {plan_row(found, due_in(found.state).catches_up), index, own, num_pages, id};
  }

  //! Ranges of the part that begin in pages begin .. end - 1 of the layer, those of the counted rows;
  //! with the first rows also those without pages.
  __device__ void write_ranges(std::uint32_t first, std::uint32_t rows, std::uint32_t begin,
                               std::uint32_t end, std::uint32_t total) const
  {
    // share_begin in two parts: the whole pages that every warp gets, and its share of the rest.
    std::uint32_t const num_warps = p.num_warps.divisor;
    std::uint32_t const all_get   = p.num_warps.quotient(total);
    std::uint32_t const rest      = total - all_get * num_warps;
    warp_range* const ranges      = p.ranges + std::size_t{layer} * num_warps;
    std::uint32_t const last      = min(num_warps, (part + 1) * p.ranges_of_part);
#pragma unroll 1
    for (std::uint32_t w = part * p.ranges_of_part + threadIdx.x; w < last; w += blockDim.x) {
      std::uint32_t const of_rest = p.num_warps.quotient(rest * w);
      std::uint32_t const page    = all_get * w + of_rest;
      std::uint32_t const pages   = all_get + p.num_warps.quotient(rest * (w + 1)) - of_rest;
      if (pages == 0) {
        if (first == 0) { ranges[w] = {}; }
      } else if (page >= begin && page < end) {
        ranges[w] = range_at(first, rows, page - begin, pages);
      }
    }
  }

  __device__ void plan() const
  {
    std::uint32_t const at_a_time = blockDim.x * p.rows_of_thread;
    bool const at_once            = p.capacity * p.num_heads.divisor <= at_a_time;
    std::uint32_t total           = at_once ? 0 : count_all();
    std::uint32_t begin = 0, empty = 0, first = 0;
    while (true) {
      page_sum const counted = count_from(first);
      if (at_once) { total = counted.pages; }
      write_ranges(first, min(num_rows - first, at_a_time), begin, begin + counted.pages, total);
      begin += counted.pages;
      empty += counted.empty;
      first += at_a_time;
      if (at_once || first >= num_rows) { break; }
      __syncthreads();
    }
    write_rows();
    if (part == 0 && threadIdx.x == 0) { p.totals[layer] = {total, empty, num_rows * p.passes, 0}; }
  }
};

template <class Layouts, class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  plan_decode_kernel(__grid_constant__ plan_params const p)
{
  __shared__ plan_shared shared;
  extern __shared__ std::uint32_t plan_ends[];
  plan_block<Layouts> block{p, shared, plan_ends, blockIdx.x / p.parts, blockIdx.x % p.parts};
  wait_for_previous();
  block.num_rows = p.batch_size() * p.num_heads.divisor;
  block.plan();
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < p.num_ctas; i += blockDim.x) { p.arrivals[i] = 0; }
  }
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
    detail::max_of(1u, detail::min_of(tuning::parts, tuning::ctas / layers.count));
  std::uint64_t const grid = std::uint64_t{parts} * layers.count;
  DIFFKV_EXPECTS(grid <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
                 "layers: " + std::to_string(layers.count) + " are more than one launch can take");
  std::uint32_t const rows = detail::min_of(batch.capacity * cache.shape.num_heads, tuning::rows);
  std::uint32_t const threads =
    detail::min_of(tuning::threads, detail::max_of(tuning::least, detail::round_up(rows, 32u)));
  std::uint32_t const rows_of_thread = detail::max_of(1u, detail::ceil_div(rows, threads));
  std::size_t const l                = work.index_of(layers.first);
  detail::plan_params p{};
  p.slots               = batch.slots;
  p.count               = batch.count;
  p.rows                = cache.state.rows;
  p.layers              = cache.state.layers;
  p.table               = cache.table;
  p.ranges              = work.ranges + l * work.grid.num_warps();
  p.planned_rows        = work.rows + l * work.num_rows;
  p.sequences           = work.sequences + l * work.capacity;
  p.totals              = work.totals + l;
  p.arrivals            = work.arrivals;
  p.num_heads           = detail::divider::by(cache.shape.num_heads);
  p.num_warps           = detail::divider::by(work.grid.num_warps());
  p.capacity            = batch.capacity;
  p.num_layers          = cache.shape.num_layers;
  p.first_layer         = layers.first;
  p.score_every         = cache.shape.score_every;
  p.passes              = work.grid.passes;
  p.num_ctas            = work.grid.ctas;
  p.workspace_rows      = work.num_rows;
  p.workspace_sequences = work.capacity;
  p.parts               = parts;
  p.ranges_of_part      = detail::ceil_div(work.grid.num_warps(), parts);
  p.rows_of_part        = detail::ceil_div(batch.capacity * cache.shape.num_heads, parts);
  p.rows_of_thread      = rows_of_thread;
  detail::launch(detail::plan_decode_kernel<typename Config::layouts, tuning>,
                 {static_cast<unsigned>(grid), threads,
                  std::size_t{threads} * rows_of_thread * sizeof(std::uint32_t), true},
                 stream, p);
}

}  // namespace diffkv
