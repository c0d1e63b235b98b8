// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Pages of planned prompts are put in place: high ones stay at the left end of their row, low ones go
//! to the right end, the surplus goes back to the ring.
//! Read before this: compaction/prompt_plan.cuh, pool/held_pages.cuh.
//! Read next: compaction/row_encoder.cuh.
#include <diffkv/compaction/prompt_plan.cuh>
#include <diffkv/pool/held_pages.cuh>

namespace diffkv::detail {

//! CTAs that put the pages of one (prompt, layer) in place: each has one row or all rows, and a slice of
//! the pages of each.
struct page_ctas {
  std::uint32_t of_rows = 1;  //!< 1, or one per row
  std::uint32_t slices  = 1;

  //! Enough for each to be done soon; but each sums the surplus of all rows before its own, so many rows
  //! have fewer.
  [[nodiscard]] static page_ctas of(std::uint64_t rows, std::uint32_t num_heads,
                                    std::uint32_t max_pages) noexcept
  {
    constexpr std::uint64_t many_rows   = 2048;
    constexpr std::uint32_t slice_pages = 512;
    return {rows <= many_rows ? num_heads : 1u, ceil_div(max_pages, slice_pages)};
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t count() const noexcept
  {
    return of_rows * slices;
  }
};

//! What the plan has left. Rows as in prompt_plan.cuh.
struct planned_prompts {
  cache_ref cache;
  batch_ref batch;
  layer_range layers;
  std::uint32_t items;  //!< (prompt, layer)
  page_ctas ctas;       //!< of each of them
  std::uint32_t max_pages;
  std::int32_t max_tokens;
  std::uint64_t const* tail;     //!< of the ring, before anything is given back
  prompt_row const* rows;        //!< [rows]
  std::uint32_t const* surplus;  //!< [rows] pages to give back
  page_id const* pages;          //!< [rows, max_pages] those that the row has
  std::int32_t const* lists;     //!< [rows, max_tokens] high from the left, low from the right
};

//! Sum of values[0 .. count).  @threads one CTA; result valid in all threads
template <unsigned Threads>
[[nodiscard]] __device__ std::uint64_t block_sum(std::uint32_t const* values, std::uint32_t count)
{
  __shared__ std::uint64_t of_warp[Threads / 32];
  std::uint64_t sum = 0;
  for (std::uint32_t i = threadIdx.x; i < count; i += Threads) { sum += values[i]; }
  for (int o = 16; o > 0; o /= 2) { sum += __shfl_xor_sync(0xFFFF'FFFFu, sum, o); }
  if (threadIdx.x % 32 == 0) { of_warp[threadIdx.x / 32] = sum; }
  __syncthreads();
  sum = 0;
  for (unsigned w = 0; w < Threads / 32; ++w) { sum += of_warp[w]; }
  return sum;
}

//! Pages of one (prompt, layer); the surplus of a row goes behind that of all rows before.
//! @param part  of the (prompt, layer)'s CTAs
//! @threads one CTA
template <unsigned Threads>
__device__ void place_pages(planned_prompts const& p, std::uint32_t item, std::uint32_t part)
{
  cache_ref const& cache    = p.cache;
  std::uint32_t const heads = cache.shape.num_heads;
  std::uint32_t const begin = part % p.ctas.of_rows;
  std::uint32_t const end   = p.ctas.of_rows == 1 ? heads : begin + 1;
  std::uint32_t const first = part / p.ctas.of_rows * Threads + threadIdx.x;
  std::uint32_t const step  = p.ctas.slices * Threads;
  std::uint64_t place       = *p.tail + block_sum<Threads>(p.surplus, item * heads + begin);
  for (std::uint32_t h = begin; h < end; ++h) {
    std::uint32_t const r = item * heads + h;
    prompt_row const plan = p.rows[r];
    if (plan.num_tokens == 0) { continue; }
    std::size_t const row         = row_place::of(cache, p.batch, p.layers, r).row;
    page_id const* const pages    = p.pages + std::size_t{r} * p.max_pages;
    std::uint32_t const first_low = cache.table.row_entries - plan.pages.low;
    for (std::uint32_t i = first; i < plan.pages.low; i += step) {
      cache.table.entry(row, tier::low, i) = pages[plan.pages.high + i];
    }
    for (std::uint32_t i = plan.pages.high + first; i < plan.claimed; i += step) {
      if (i < first_low) { cache.table.entry(row, tier::high, i) = no_page; }
      if (i < plan.pages.sum()) { continue; }
      static_cast<void>(strike_off(cache.ring, pages[i]));
      cache.ring.cell(place + i - plan.pages.sum()) = pages[i];
    }
    if (first == 0) {
      cache.state.rows[row].tokens = plan.tokens;
      cache.state.rows[row].pages  = plan.pages;
    }
    place += plan.claimed - plan.pages.sum();
  }
  if (item == p.items - 1 && end == heads && first == 0) { *cache.ring.tail = place; }
}

}  // namespace diffkv::detail
