// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The rows of a layer as the work plan counts and reads them.
//! Read before this: attention/page_shares.cuh.  Read next: attention/decode_plan.cuh.
#include <diffkv/attention/page_shares.cuh>
#include <diffkv/attention/score_update.hpp>  // catch_up_turn
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
  divider warps_of_cta;
  decode_grid grid;
  std::uint32_t aligned_ctas;  //!< decode_grid::ctas_for of a full batch
  std::uint32_t capacity;      //!< of the batch
  std::uint32_t num_layers;
  std::uint32_t first_layer;
  std::int32_t score_every;
  bool first_decides;  //!< catch_up_turn::tokens are those of the batch's first sequence
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

//! Shared memory of known size; behind it lie the rows that are counted at a time (counted_arrays).
struct decode_plan_shared {
  page_count sum_of_warp[32];
  std::uint32_t empty_rows;
  //! Of the rows that a warp has counted: bit 0, 1: one with pages does not catch up, does.
  std::uint32_t kinds_of_warp[32];
  std::uint32_t least_of_warp[32];  //!< cost of one of them, all passes
  std::uint32_t most_of_warp[32];
  page_shares shares;  //!< of the layer
};

//! What threads have met among the rows that they count.
struct met_rows {
  std::uint32_t empty = 0;
  std::uint32_t kinds = 0;    //!< as decode_plan_shared::kinds_of_warp
  std::uint32_t least = ~0u;  //!< cost of one
  std::uint32_t most  = 0;
};

//! Pages that `tokens` tokens fill.
template <class Layout>
[[nodiscard]] __device__ std::uint32_t pages_filled_by(std::uint32_t tokens) noexcept
{
  return ceil_div(tokens, static_cast<std::uint32_t>(Layout::tokens_per_page));
}

//! Rows that lie in shared memory.
struct counted_rows {
  std::uint32_t first = 0;  //!< of the layer
  std::uint32_t count = 0;
  page_count sum{};  //!< all passes
};

//! What is known of the counted rows: all that ranges need, so that these load nothing again.
struct counted_arrays {
  planned_row* rows;
  page_count* ends;             //!< of the counted rows up to each of them, all passes
  std::uint32_t* append_pages;  //!< where the step's token goes; without one far away

  static constexpr std::size_t bytes_of_row =
    sizeof(planned_row) + sizeof(page_count) + sizeof(std::uint32_t);

  //! @param shared  memory for `count` rows
  [[nodiscard]] static __device__ counted_arrays in(std::byte* shared, std::uint32_t count) noexcept
  {
    auto* const rows = reinterpret_cast<planned_row*>(shared);
    auto* const ends = reinterpret_cast<page_count*>(rows + count);
    return {rows, ends, reinterpret_cast<std::uint32_t*>(ends + count)};
  }
};

//! A row of the layer that a CTA plans.
struct layer_row {
  std::uint32_t sequence;  //!< index into the batch
  std::uint32_t slot;
  std::uint32_t item;  //!< index of (slot, layer)
  std::uint32_t row;   //!< of the cache
};

//! Rows of one layer, numbered sequence * num_heads + head, as a CTA looks at them.
template <class Layouts>
struct plan_rows {
  decode_plan_params const& p;
  decode_plan_shared& shared;
  counted_arrays counted;
  std::uint32_t layer;       //!< of those planned
  std::uint32_t num_rows;    //!< of the batch, one pass
  std::uint32_t first_slot;  //!< of the batch, if that decides; read early

  //! @pre row `r` is one of a batch of `capacity` sequences; behind its size the slot is anything
  [[nodiscard]] __device__ layer_row locate(std::uint32_t r) const
  {
    layer_row at{};
    at.sequence              = p.num_heads.quotient(r);
    std::uint32_t const head = r - at.sequence * p.num_heads.divisor;
    at.slot                  = p.slots[at.sequence];
    at.item                  = at.slot * p.num_layers + p.first_layer + layer;
    at.row                   = at.item * p.num_heads.divisor + head;
    return at;
  }
  //! Pages of row `r`, all passes.
  //! @param keep(row, append_page)  is given what is known of it
  template <class Keep>
  [[nodiscard]] __device__ page_count count(std::uint32_t r, met_rows& met, Keep const& keep) const
  {
    if (r >= p.capacity * p.num_heads.divisor) { return {}; }
    layer_row const at = locate(r);  // beside the size of the batch
    if (r >= num_rows) { return {}; }
    row_state const& state       = p.rows[at.row];
    slot_index const append_slot = state.append_slot;
    layer_state const sequence   = p.score_every > 0 ? p.layers[at.item] : layer_state{};
    catch_up_turn const turn     = turn_of_layer();
    planned_row row{at.row, state.tokens.high, state.tokens.low, 0, 0};
    if (append_slot != no_slot) {
      row.stored     = stored_at(sequence.num_tokens, p.score_every);
      row.catches_up = sequence.num_tokens > 0 && turn.queries_due(sequence).catches_up ? 1 : 0;
    }
    constexpr auto in_page = static_cast<std::uint32_t>(Layouts::high::tokens_per_page);
    keep(row, append_slot / in_page);
    row_cost const plain = cost_of(row, false);
    if (plain.pages() == 0) {
      met.empty += p.passes;
      met.least = 0;
      return {};
    }
    // A row catches up in its first pass.
    bool const catches_up = row.catches_up != 0;
    met.kinds |= !catches_up ? 1u : p.passes > 1 ? 3u : 2u;
    std::uint32_t const total = plain.total();
    std::uint32_t const cost =
      (catches_up ? page_cost::scored(total) : total) + (p.passes - 1) * total;
    met.least = min(met.least, cost);
    met.most  = max(met.most, cost);
    return {cost, plain.pages() * p.passes};
  }
  //! Of one pass.
  [[nodiscard]] static __device__ row_cost cost_of(planned_row const& row, bool catches_up)
  {
    using high = typename Layouts::high;
    using low  = typename Layouts::low;
    return {pages_filled_by<high>(row.high), pages_filled_by<low>(row.low),
            page_cost::of_layouts<Layouts>(catches_up)};
  }

  //! Leaves what the threads have met, of all rows, for `choose_shares`.
  __device__ void leave(met_rows const& met) const
  {
    std::uint32_t const least = __reduce_min_sync(0xFFFF'FFFFu, met.least);
    std::uint32_t const most  = __reduce_max_sync(0xFFFF'FFFFu, met.most);
    if (threadIdx.x % 32 == 0) {
      shared.least_of_warp[threadIdx.x / 32] = least;
      shared.most_of_warp[threadIdx.x / 32]  = most;
    }
  }
  //! @param cost  of all rows
  //! @pre    all have left what they met; followed by __syncthreads
  //! @threads one warp
  __device__ void choose_shares(std::uint32_t cost) const
  {
    std::uint32_t const lane  = threadIdx.x % 32;
    bool const exists         = lane < blockDim.x / 32;
    std::uint32_t const least = exists ? shared.least_of_warp[lane] : ~0u;
    std::uint32_t const most  = exists ? shared.most_of_warp[lane] : 0u;
    bool const are_alike =
      __reduce_min_sync(0xFFFF'FFFFu, least) >= __reduce_max_sync(0xFFFF'FFFFu, most);
    std::uint32_t ctas = p.grid.ctas;
    if (are_alike) {
      bool const is_full = num_rows == p.capacity * p.num_heads.divisor;
      ctas               = is_full ? p.aligned_ctas : p.grid.ctas_for(num_rows);
    }
    if (lane == 0) { shared.shares = page_shares::of(p.grid.sharing(cost, ctas), cost); }
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

  //! Cost and pages of all rows, and the shares; only where they are not counted at one time.
  [[nodiscard]] __device__ page_count count_all() const
  {
    page_count mine{}, before{};
    met_rows met{};
#pragma unroll 4
    for (std::uint32_t r = threadIdx.x; r < num_rows; r += blockDim.x) {
      mine += count(r, met, [](planned_row const&, std::uint32_t) {});
    }
    leave(met);
    page_count const all = sum(mine, before);
    if (threadIdx.x < 32) { choose_shares(all.cost); }
    __syncthreads();
    return all;
  }

  [[nodiscard]] __device__ std::uint32_t at_a_time() const { return blockDim.x * p.rows_of_thread; }
  //! Fills `counted` with rows first, first + 1, ...: a thread takes some that follow each other.
  //! @param are_all  these are all; then the shares are made, too
  [[nodiscard]] __device__ counted_rows count_from(std::uint32_t first, bool are_all) const
  {
    std::uint32_t const begin = threadIdx.x * p.rows_of_thread;
    page_count mine{}, before{};
    met_rows met{};
    if (first == 0 && threadIdx.x == 0) { shared.empty_rows = 0; }
#pragma unroll 2
    for (std::uint32_t i = 0; i < p.rows_of_thread; ++i) {
      std::uint32_t const own = begin + i;
      if (i > 0) { counted.ends[own - 1] = mine; }
      mine += count(first + own, met, [&](planned_row const& row, std::uint32_t append_page) {
        counted.rows[own]         = row;
        counted.append_pages[own] = append_page;
      });
    }
    if (are_all) { leave(met); }
    page_count const all = sum(mine, before);
    if (are_all && threadIdx.x < 32) { choose_shares(all.cost); }
    if (met.empty > 0) { atomicAdd(&shared.empty_rows, met.empty); }
    std::uint32_t const kinds = __reduce_or_sync(0xFFFF'FFFFu, met.kinds);
    if (threadIdx.x % 32 == 0) {
      std::uint32_t& of_warp = shared.kinds_of_warp[threadIdx.x / 32];
      of_warp                = first == 0 ? kinds : of_warp | kinds;
    }
#pragma unroll 1
    for (std::uint32_t i = 0; i + 1 < p.rows_of_thread; ++i) { counted.ends[begin + i] += before; }
    counted.ends[begin + p.rows_of_thread - 1] = mine + before;
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
      bool const is_behind       = counted.ends[middle].cost <= cost;
      i                          = is_behind ? middle + 1 : i;
      last                       = is_behind ? last : middle;
    }
    return i;
  }

  //! @pre num_rows > 0
  [[nodiscard]] __device__ catch_up_turn turn_of_layer() const
  {
    std::uint32_t const of = p.first_layer + layer;
    return {of, p.score_every,
            p.first_decides ? p.layers[first_slot * p.num_layers + of].num_tokens : 0};
  }
  [[nodiscard]] __device__ planned_sequence plan_sequence(std::uint32_t s) const
  {
    layer_row const at      = locate(s * p.num_heads.divisor);
    layer_state const state = p.layers[at.item];
    planned_sequence plan{at.slot, state.num_tokens, state.queries, 0, 0, 0};
    if (state.num_tokens > 0) {
      due_queries const due = turn_of_layer().queries_due(state);
      plan.first_query      = due.first;
      plan.last_query       = due.last;
    }
    return plan;
  }
};

}  // namespace diffkv::detail
