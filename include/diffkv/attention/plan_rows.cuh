// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The rows of a layer as the work plan counts and reads them.
//! Read before this: attention/page_shares.cuh.  Read next: attention/decode_plan.cuh.
#include <diffkv/attention/page_shares.cuh>
#include <diffkv/attention/score_update.hpp>  // queries_due
#include <diffkv/detail/arithmetic.hpp>
#include <diffkv/table/row_state.hpp>

#include <cub/warp/warp_scan.cuh>

#include <cstdint>

namespace diffkv::detail {

//! What of a cache, a batch and a workspace a plan needs, with the first layer planned as layer 0 of
//! the arrays of the workspace. Every constant that a kernel reads first costs it a miss.
struct decode_plan_params {
  std::uint32_t const* slots;
  std::uint32_t const* count;
  row_state const* rows;
  layer_state const* layers;
  warp_range* ranges;
  planned_row* planned_rows;
  planned_sequence* sequences;
  planned_layer* totals;
  std::uint32_t* arrivals;
  divider num_heads;
  shared_grid grid;
  std::uint32_t capacity;  //!< of the batch
  std::uint32_t num_layers;
  std::uint32_t first_layer;
  std::int32_t score_every;
  std::uint32_t passes;
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

//! Pages that follow each other, of one row or of many.
struct page_count {
  std::uint32_t cost  = 0;  //!< page_cost
  std::uint32_t pages = 0;

  __device__ page_count& operator+=(page_count const& other) noexcept
  {
    cost += other.cost;
    pages += other.pages;
    return *this;
  }
  [[nodiscard]] friend __device__ page_count operator+(page_count a, page_count const& b) noexcept
  {
    return a += b;
  }
};

//! Shared memory of known size; behind it lie the ends of the rows that are counted at a time.
struct decode_plan_shared {
  page_count sum_of_warp[32];
  std::uint32_t empty_rows;
  //! Of the rows that a warp has counted: bit 0, 1: one with pages does not catch up, does.
  std::uint32_t kinds_of_warp[32];
};

//! What threads have met among the rows that they count.
struct met_rows {
  std::uint32_t empty = 0;
  std::uint32_t kinds = 0;  //!< as decode_plan_shared::kinds_of_warp
};

//! Pages that `tokens` tokens fill.
template <class Layout>
[[nodiscard]] __device__ std::uint32_t pages_filled_by(std::uint32_t tokens) noexcept
{
  return ceil_div(tokens, static_cast<std::uint32_t>(Layout::tokens_per_page));
}

//! Rows whose ends lie in shared memory.
struct counted_rows {
  std::uint32_t first = 0;  //!< of the layer
  std::uint32_t count = 0;
  page_count sum{};  //!< all passes
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
  bool catches_up;  //!< in its first pass
};

//! Rows of one layer, numbered sequence * num_heads + head, as a CTA looks at them.
template <class Layouts>
struct plan_rows {
  decode_plan_params const& p;
  decode_plan_shared& shared;
  page_count* ends;        //!< of the counted rows up to each of them, all passes
  std::uint32_t layer;     //!< of those planned
  std::uint32_t num_rows;  //!< of the batch, one pass

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
  [[nodiscard]] __device__ page_count count(std::uint32_t r, met_rows& met) const
  {
    if (r >= p.capacity * p.num_heads.divisor) { return {}; }
    layer_row const at = locate(r);  // beside the size of the batch
    if (r >= num_rows) { return {}; }
    row_state const& row = p.rows[at.row];
    bool catches_up      = false;
    if (p.score_every > 0) {
      catches_up = row.append_slot != no_slot && catches_up_at(p.layers[at.item].num_tokens);
    }
    row_cost const plain = cost_of(row.tokens, false);
    if (plain.pages() == 0) {
      met.empty += p.passes;
      return {};
    }
    // A row catches up in its first pass.
    met.kinds |= !catches_up ? 1u : p.passes > 1 ? 3u : 2u;
    std::uint32_t const total = plain.total();
    return {(catches_up ? page_cost::scored(total) : total) + (p.passes - 1) * total,
            plain.pages() * p.passes};
  }
  //! Of one pass.
  [[nodiscard]] static __device__ row_cost cost_of(tier_counts const& tokens, bool catches_up)
  {
    using high = typename Layouts::high;
    using low  = typename Layouts::low;
    return {pages_filled_by<high>(tokens.high), pages_filled_by<low>(tokens.low),
            page_cost::of_layouts<Layouts>(catches_up)};
  }

  //! Sums what the threads have.  @param before  out: the sum of the threads in front
  //! @threads the CTA; result valid in all threads
  [[nodiscard]] __device__ page_count sum(page_count mine, page_count& before) const
  {
    using scan = cub::WarpScan<std::uint32_t>;
    typename scan::TempStorage unused;
    std::uint32_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    page_count end{};
    scan{unused}.InclusiveSum(mine.cost, end.cost);
    scan{unused}.InclusiveSum(mine.pages, end.pages);
    if (lane == 31) { shared.sum_of_warp[warp] = end; }
    __syncthreads();
    page_count const of_warp = lane < blockDim.x / 32 ? shared.sum_of_warp[lane] : page_count{};
    page_count of_warps{};
    scan{unused}.InclusiveSum(of_warp.cost, of_warps.cost);
    scan{unused}.InclusiveSum(of_warp.pages, of_warps.pages);
    auto const from = [](std::uint32_t x, std::uint32_t of_lane) {
      return __shfl_sync(0xFFFF'FFFFu, x, static_cast<int>(of_lane));
    };
    before = {from(of_warps.cost - of_warp.cost, warp) + end.cost - mine.cost,
              from(of_warps.pages - of_warp.pages, warp) + end.pages - mine.pages};
    return {from(of_warps.cost, 31), from(of_warps.pages, 31)};
  }

  //! Of all rows; only where they are not counted at one time.
  [[nodiscard]] __device__ page_count count_all() const
  {
    page_count mine{}, before{};
    met_rows met{};
#pragma unroll 4
    for (std::uint32_t r = threadIdx.x; r < num_rows; r += blockDim.x) { mine += count(r, met); }
    page_count const all = sum(mine, before);
    __syncthreads();
    return all;
  }

  [[nodiscard]] __device__ std::uint32_t at_a_time() const { return blockDim.x * p.rows_of_thread; }
  //! Fills `ends` for rows first, first + 1, ...: a thread takes some that follow each other.
  [[nodiscard]] __device__ counted_rows count_from(std::uint32_t first) const
  {
    std::uint32_t const begin = threadIdx.x * p.rows_of_thread;
    page_count mine{}, before{};
    met_rows met{};
    if (first == 0 && threadIdx.x == 0) { shared.empty_rows = 0; }
#pragma unroll 2
    for (std::uint32_t i = 0; i < p.rows_of_thread; ++i) {
      if (i > 0) { ends[begin + i - 1] = mine; }
      mine += count(first + begin + i, met);
    }
    page_count const all = sum(mine, before);
    if (met.empty > 0) { atomicAdd(&shared.empty_rows, met.empty); }
    std::uint32_t const kinds = __reduce_or_sync(0xFFFF'FFFFu, met.kinds);
    if (threadIdx.x % 32 == 0) {
      std::uint32_t& of_warp = shared.kinds_of_warp[threadIdx.x / 32];
      of_warp                = first == 0 ? kinds : of_warp | kinds;
    }
#pragma unroll 1
    for (std::uint32_t i = 0; i + 1 < p.rows_of_thread; ++i) { ends[begin + i] += before; }
    ends[begin + p.rows_of_thread - 1] = mine + before;
    __syncthreads();
    return {first, min(num_rows - first, at_a_time()), all};
  }
  //! Index among the counted rows of the one that has a part of their cost.
  //! @pre cost < ends[count - 1].cost
  [[nodiscard]] __device__ std::uint32_t row_at(std::uint32_t count, std::uint32_t cost) const
  {
    std::uint32_t i = 0;  // the first row that ends behind it
#pragma unroll 1
    for (std::uint32_t last = count - 1; i < last;) {
      std::uint32_t const middle = (i + last) / 2;
      bool const is_behind       = ends[middle].cost <= cost;
      i                          = is_behind ? middle + 1 : i;
      last                       = is_behind ? last : middle;
    }
    return i;
  }

  [[nodiscard]] __device__ found_row find(std::uint32_t r) const
  {
    layer_row const at   = locate(r);
    row_state const& row = p.rows[at.row];
    found_row found{at, row.tokens, row.append_slot, p.layers[at.item], false};
    // All loads in front: those moved to where they are used would wait one after the other.
    asm volatile("" ::: "memory");
    found.catches_up = found.append_slot != no_slot && catches_up_at(found.state.num_tokens);
    return found;
  }
  [[nodiscard]] __device__ bool catches_up_at(std::int32_t num_tokens) const
  {
    return num_tokens > 0 &&
           queries_due(num_tokens - 1, p.first_layer + layer, p.score_every, {}).catches_up;
  }
  [[nodiscard]] __device__ due_queries due_in(layer_state const& state) const
  {
    bool const begun = state.num_tokens > 0;
    return queries_due(begun ? state.num_tokens - 1 : 0, p.first_layer + layer,
                       begun ? p.score_every : 0, state.queries);
  }
  [[nodiscard]] __device__ planned_row plan(found_row const& found) const
  {
    bool const stored = found.append_slot != no_slot;
    return {found.at.row, found.tokens.high, found.tokens.low,
            stored ? stored_at(found.state.num_tokens, p.score_every) : std::uint16_t{0},
            static_cast<std::uint16_t>(found.catches_up ? 1 : 0)};
  }
};

}  // namespace diffkv::detail
