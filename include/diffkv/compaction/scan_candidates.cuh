// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The tokens that may leave, from the scores as they are: after a prompt, and before each step where
//! score_every = 0.
//! Read before this: compaction/prompt.cuh.  Read next: compaction/calibrate.cuh.
#include <diffkv/core/launch.cuh>
#include <diffkv/table/row_place.hpp>
#include <diffkv/table/row_state.hpp>  // may_leave
#include <diffkv/table/row_view.hpp>
#include <diffkv/table/static_config.hpp>

#include <limits>

namespace diffkv {

struct scan_tuning_sm90 {
  static constexpr unsigned warps = 8;  //!< of a CTA, which scans a row
};

namespace detail {

template <class Policy>
struct scan_params {
  cache_ref cache;
  batch_ref batch;
  layer_range layers;
  Policy policy;
};

//! A row being scanned.
template <class Policy>
struct scanned_row {
  scan_params<Policy> const& p;
  std::size_t row;
  query_span queries;
  std::int32_t num_tokens;
};

//! The token of the page that has place `place` in scores and positions: token_place turned round.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int token_at_place(int place) noexcept
{
  int const in_block = place % block_tokens;
  return place - in_block + in_block / 2 + 8 * (in_block % 2);
}
static_assert(token_at_place(token_place(13)) == 13 && token_at_place(token_place(24)) == 24);

//! Whichever goes first of what the lanes of a warp have; positions differ, so there is one answer.
[[nodiscard]] __device__ inline candidate first_of_warp(candidate c) noexcept
{
  for (int mask = 16; mask > 0; mask /= 2) {
    candidate const other{__shfl_xor_sync(0xFFFF'FFFFu, c.position, mask),
                          __shfl_xor_sync(0xFFFF'FFFFu, c.slot, mask),
                          __shfl_xor_sync(0xFFFF'FFFFu, c.priority, mask)};
    if (other.before(c)) { c = other; }
  }
  return c;
}

//! A warp looks at every warps-th page of a tier, which are all of one ordinal mod candidates_per_tier.
//! @threads one warp; result valid in all lanes
template <class Layout, class Policy>
[[nodiscard]] __device__ candidate scan_pages(scanned_row<Policy> const& s, tier t)
{
  constexpr page_geometry geometry = Layout::geometry;
  constexpr auto tokens_per_page   = static_cast<std::uint32_t>(Layout::tokens_per_page);
  cache_ref const& cache           = s.p.cache;
  std::uint32_t const tokens       = cache.state.rows[s.row].tokens.of(t);
  std::uint32_t const pages        = ceil_div(tokens, tokens_per_page);
  std::uint32_t const warp         = threadIdx.x / 32;
  candidate best{};
  for (std::uint32_t ordinal = warp; ordinal < pages; ordinal += scan_tuning_sm90::warps) {
    page_view const page{cache.pool.page(cache.table.entry(s.row, t, ordinal)), &geometry};
    for (std::uint32_t place = threadIdx.x % 32; place < tokens_per_page; place += 32) {
      int const token       = token_at_place(static_cast<int>(place));
      slot_index const slot = ordinal * tokens_per_page + static_cast<std::uint32_t>(token);
      if (slot >= tokens) { continue; }
      std::int32_t const position = page.position(token);
      std::int32_t const count    = s.queries.count(position + 1);
      if (!may_leave(t, position, s.num_tokens - 1, cache.shape.window, count)) { continue; }
      float const importance = importance_of(page.score(token), count);
      if (is_nan(importance)) { continue; }
      candidate const c{position, slot,
                        s.p.policy.priority(importance, position + 1, s.num_tokens)};
      if (c.before(best)) { best = c; }
    }
  }
  return first_of_warp(best);
}

template <class Config>
DIFFKV_KERNEL void __launch_bounds__(scan_tuning_sm90::warps * 32)
  scan_candidates_kernel(__grid_constant__ scan_params<typename Config::policy_type> const p)
{
  using layouts = typename Config::layouts;
  static_assert(scan_tuning_sm90::warps % max_score_every == 0,
                "the pages of a warp must have one ordinal mod candidates_per_tier");
  __shared__ candidate of_warp[num_stored_tiers][scan_tuning_sm90::warps];
  wait_for_previous();
  cache_ref const& cache = p.cache;
  if (blockIdx.x / (cache.shape.num_heads * p.layers.count) >= p.batch.size()) { return; }
  auto const place         = row_place::of(cache, p.batch, p.layers, blockIdx.x);
  layer_state const& state = cache.layer(place.slot, place.layer);
  scanned_row<typename Config::policy_type> const row{p, place.row, state.queries,
                                                      state.num_tokens};
  std::uint32_t const warp = threadIdx.x / 32;
  candidate const high     = scan_pages<typename layouts::high>(row, tier::high);
  candidate low{};
  if constexpr (layouts::has_low) { low = scan_pages<typename layouts::low>(row, tier::low); }
  if (threadIdx.x % 32 == 0) {
    of_warp[0][warp] = high;
    of_warp[1][warp] = low;
  }
  __syncthreads();
  std::uint32_t const places = cache.state.candidates_per_tier;
  if (threadIdx.x >= num_stored_tiers * places) { return; }
  std::uint32_t const t = threadIdx.x / places;
  candidate best{};
  for (std::uint32_t w = threadIdx.x % places; w < scan_tuning_sm90::warps; w += places) {
    if (of_warp[t][w].before(best)) { best = of_warp[t][w]; }
  }
  cache.state.candidates_of(place.row, t == 0 ? tier::high : tier::low)[threadIdx.x % places] =
    best;
}

}  // namespace detail

//! Makes the candidates of all rows of a batch and some layers anew: equals host::scan_candidates.
//! @tparam Config  static_config (table/static_config.hpp)
//! @param  cache   handles in device memory
//! @throws invalid_argument for layers that the cache has not or handles of another configuration,
//!         before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   reads score and position of every token; no allocation
template <class Config>
void scan_candidates(cache_ref const& cache, batch_ref const& batch, layer_range layers,
                     typename Config::policy_type const& policy, cudaStream_t stream)
{
  expect_config<Config>(cache);
  validate(layers, cache.shape);
  std::uint64_t const rows = std::uint64_t{batch.capacity} * layers.count * cache.shape.num_heads;
  DIFFKV_EXPECTS(rows <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
                 "batch: " + std::to_string(rows) + " rows are more than one launch can take");
  detail::launch(detail::scan_candidates_kernel<Config>,
                 {static_cast<unsigned>(rows), scan_tuning_sm90::warps * 32, 0, true}, stream,
                 detail::scan_params<typename Config::policy_type>{cache, batch, layers, policy});
}

}  // namespace diffkv
