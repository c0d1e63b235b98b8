// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which token of a prompt goes where: tiers, counts, and per tier the list of tokens, oldest first.
//! Read before this: policy/block_prepare.cuh, compaction/encode_block.cuh.
//! Read next: compaction/prompt_pages.cuh.
//!
//! A CTA plans a chunk of a row. Rows of more than one chunk are counted first, by a launch of its own;
//! then each CTA sums the counts before its chunk. No sort, no atomics, no order of CTAs.
#include <diffkv/core/vectors.hpp>
#include <diffkv/policy/block_prepare.cuh>
#include <diffkv/policy/prompt_tiers.hpp>
#include <diffkv/table/row_place.hpp>

#include <cstddef>  // byte
#include <new>

namespace diffkv {

//! The vectors and importances of some prompts, in device memory. Token j of prompt s is token
//! first_tokens[s] + j of key, value and importances.
//! @tparam T  float, __half or __nv_bfloat16
template <class T>
struct prompt_source {
  vectors<T const> key{};  //!< of the first layer of the range, rotary embedding applied
  vectors<T const> value{};
  std::ptrdiff_t key_layer_stride   = 0;  //!< elements from one layer of the range to the next
  std::ptrdiff_t value_layer_stride = 0;
  //! [layers, num_heads, tokens]: those of the window do not decide its tier, but are the scores with
  //! which its tokens leave it. Never null: zeros where the policy looks at none.
  float const* importances               = nullptr;
  std::ptrdiff_t importance_layer_stride = 0;
  std::ptrdiff_t importance_head_stride  = 0;
  std::int64_t const* first_tokens       = nullptr;  //!< [batch]; null: 0, for a batch of one
  //! Longest prompt of any batch that this launch (or the replays of its graph) may be for; rows of a
  //! longer one are left as they are.
  std::int32_t max_tokens = 0;
};

namespace detail {

//! What the plan of a row says.
struct prompt_row {
  std::int32_t num_tokens = 0;  //!< 0: there is nothing to store
  std::uint32_t claimed   = 0;  //!< pages that it has
  tier_counts tokens{};
  tier_counts pages{};
};

struct plan_tuning_sm90 {
  static constexpr unsigned threads      = 1024;
  static constexpr int tokens_per_thread = 4;
  static constexpr std::int32_t chunk    = threads * tokens_per_thread;
};

//! Rows are numbered as in table/row_place.hpp, prompts as sequences.
template <class Policy>
struct plan_params {
  cache_ref cache;
  batch_ref batch;
  layer_range layers;
  Policy policy;
  float const* importances               = nullptr;
  std::ptrdiff_t importance_layer_stride = 0;
  std::ptrdiff_t importance_head_stride  = 0;
  std::int64_t const* first_tokens       = nullptr;
  std::int32_t max_tokens                = 0;
  std::uint32_t max_pages                = 0;        //!< most_pages(max_tokens)
  std::uint32_t chunks                   = 0;        //!< of the longest prompt
  std::uint64_t* tail                    = nullptr;  //!< of the ring, before anything is given back
  prompt_row* rows                       = nullptr;  //!< [rows]
  std::uint32_t* surplus                 = nullptr;  //!< [rows] pages to give back
  tier_counts* counts                    = nullptr;  //!< [rows, chunks]
  page_id* pages                         = nullptr;  //!< [rows, max_pages] those that the row has
  std::int32_t* lists = nullptr;  //!< [rows, max_tokens] high from the left, low from the right
  typename Policy::row_parameters* parameters = nullptr;  //!< [rows]
};

//! A row before it is planned; num_tokens = 0 where no prompt waits to be stored.
template <class Policy>
struct waiting_row {
  row_place place{};
  prompt_view view{};
  query_span queries{};
  std::uint32_t claimed = 0;

  [[nodiscard]] static __device__ waiting_row of(plan_params<Policy> const& p, std::uint32_t r)
  {
    waiting_row w{};
    cache_ref const& cache = p.cache;
    if (r / (cache.shape.num_heads * p.layers.count) >= p.batch.size()) { return w; }
    w.place                = row_place::of(cache, p.batch, p.layers, r);
    w.queries              = cache.layer(w.place.slot, w.place.layer).queries;
    std::int32_t const n   = w.queries.prompt_tokens;
    row_state const& state = cache.state.rows[w.place.row];
    w.claimed              = state.pages.high;
    bool const waits =
      n > 0 && n <= p.max_tokens && state.tokens.sum() == 0 &&
      state.pages == tier_counts{cache.tiers.most_pages(static_cast<std::uint32_t>(n)), 0};
    float const* const importances =
      p.importances + w.place.layer_in_range * p.importance_layer_stride +
      w.place.head * p.importance_head_stride +
      (p.first_tokens == nullptr ? 0 : p.first_tokens[w.place.sequence]);
    w.view = {importances, waits ? n : 0, cache.shape.window,
              cache.limits.of(w.place.slot, w.place.layer, w.place.head), cache.tiers.has_low};
    return w;
  }
};

//! First launch of a policy that must see the whole row: CTA per row.
template <class Policy>
DIFFKV_KERNEL void __launch_bounds__(prepare_threads)
  prompt_prepare_kernel(__grid_constant__ plan_params<Policy> const p)
{
  __shared__ prepare_shared shared;
  auto const row = waiting_row<Policy>::of(p, blockIdx.x);
  if (row.view.num_tokens == 0) { return; }
  block_prepare(p.policy, row.view, shared, p.parameters[blockIdx.x]);
}

//! The tiers of 128 tokens that follow each other, as a warp sees them: bit l of word k is token 32 k + l.
struct tier_masks {
  unsigned high[plan_tuning_sm90::tokens_per_thread];
  unsigned low[plan_tuning_sm90::tokens_per_thread];

  //! Tokens of the high tier, and those of the low tier in the upper half.
  [[nodiscard]] __device__ std::uint32_t packed_counts() const noexcept
  {
    std::uint32_t counts = 0;
#pragma unroll
    for (int k = 0; k < plan_tuning_sm90::tokens_per_thread; ++k) {
      counts += static_cast<std::uint32_t>(__popc(high[k])) +
                (static_cast<std::uint32_t>(__popc(low[k])) << 16);
    }
    return counts;
  }
};
[[nodiscard]] __device__ inline tier_counts unpack(std::uint32_t counts) noexcept
{
  return {counts & 0xFFFFu, counts >> 16};
}

//! @param first  token of the warp's first bit
//! @threads one warp; result valid in all lanes
template <class Policy>
[[nodiscard]] __device__ tier_masks classify_tokens(plan_params<Policy> const& p,
                                                    waiting_row<Policy> const& row, std::uint32_t r,
                                                    std::int32_t first)
{
  auto const parameters = [&] {
    if constexpr (prepares_nothing<Policy>) {
      return no_parameters{};
    } else {
      return p.parameters[r];
    }
  }();
  constexpr int count           = plan_tuning_sm90::tokens_per_thread;
  std::int32_t const first_mine = first + static_cast<std::int32_t>(threadIdx.x % 32);
  float importances[count];  // all asked for before the first is looked at
#pragma unroll
  for (int k = 0; k < count; ++k) {
    std::int32_t const token = first_mine + 32 * k;
    importances[k]           = token < row.view.num_tokens ? row.view.importances[token] : 0.0f;
  }
  tier_masks masks;
#pragma unroll
  for (int k = 0; k < count; ++k) {
    std::int32_t const number = first_mine + 32 * k + 1;
    tier t                    = tier::pruned;
    if (number <= row.view.num_tokens) {
      t = prompt_tier(p.policy, row.view, parameters, number, row.queries.count(number),
                      importances[k]);
    }
    masks.high[k] = __ballot_sync(0xFFFF'FFFFu, t == tier::high);
    masks.low[k]  = __ballot_sync(0xFFFF'FFFFu, t == tier::low);
  }
  return masks;
}

template <class Policy>
struct plan_shared {
  std::uint32_t of_warp[plan_tuning_sm90::threads / 32];
  alignas(waiting_row<Policy>) std::byte row[sizeof(waiting_row<Policy>)];

  //! The row as one thread finds it: its place takes divisions, its state loads after loads.
  //! @threads one CTA
  [[nodiscard]] __device__ waiting_row<Policy> const& find_row(plan_params<Policy> const& p,
                                                               std::uint32_t r)
  {
    if (threadIdx.x == 0) { new (row) waiting_row<Policy>(waiting_row<Policy>::of(p, r)); }
    __syncthreads();
    return *reinterpret_cast<waiting_row<Policy> const*>(row);
  }
};

//! Counts of the warps before this one and of all; packed, as a chunk has at most 4096 tokens.
//! @threads one CTA
template <class Policy>
__device__ void sum_over_warps(std::uint32_t mine, plan_shared<Policy>& shared,
                               std::uint32_t& before, std::uint32_t& all)
{
  static_assert(plan_tuning_sm90::threads == 1024 && plan_tuning_sm90::chunk < 65536,
                "a warp sums the counts of 32 warps, packed in 16 bits");
  unsigned const lane = threadIdx.x % 32;
  unsigned const warp = threadIdx.x / 32;
  if (lane == 0) { shared.of_warp[warp] = mine; }
  __syncthreads();
  std::uint32_t const other = shared.of_warp[lane];
  before                    = __reduce_add_sync(0xFFFF'FFFFu, lane < warp ? other : 0u);
  all                       = __reduce_add_sync(0xFFFF'FFFFu, other);
}

//! First token of a warp.
[[nodiscard]] __device__ inline std::int32_t first_of_warp(std::uint32_t chunk) noexcept
{
  constexpr std::int32_t per_warp = 32 * plan_tuning_sm90::tokens_per_thread;
  return static_cast<std::int32_t>(chunk) * plan_tuning_sm90::chunk +
         static_cast<std::int32_t>(threadIdx.x / 32) * per_warp;
}

//! Second launch, where a row may have several chunks: CTA per (row, chunk).
template <class Policy>
DIFFKV_KERNEL void __launch_bounds__(plan_tuning_sm90::threads)
  prompt_count_kernel(__grid_constant__ plan_params<Policy> const p)
{
  __shared__ plan_shared<Policy> shared;
  std::uint32_t const r     = p.chunks == 1 ? blockIdx.x : blockIdx.x / p.chunks;
  std::uint32_t const chunk = blockIdx.x - r * p.chunks;
  auto const& row           = shared.find_row(p, r);
  auto const begin          = static_cast<std::int32_t>(chunk) * plan_tuning_sm90::chunk;
  if (begin >= row.view.num_tokens) { return; }
  tier_masks const masks = classify_tokens(p, row, r, first_of_warp(chunk));
  std::uint32_t before   = 0;
  std::uint32_t all      = 0;
  sum_over_warps(masks.packed_counts(), shared, before, all);
  if (threadIdx.x == 0) { p.counts[std::size_t{r} * p.chunks + chunk] = unpack(all); }
}

//! Tokens of the chunks before this one.  @threads one warp; result valid in all lanes
template <class Policy>
[[nodiscard]] __device__ tier_counts count_before(plan_params<Policy> const& p, std::uint32_t r,
                                                  std::uint32_t chunk)
{
  tier_counts sum{};
  for (std::uint32_t c = threadIdx.x % 32; c < chunk; c += 32) {
    tier_counts const one = p.counts[std::size_t{r} * p.chunks + c];
    sum.high += one.high;
    sum.low += one.low;
  }
  return {__reduce_add_sync(0xFFFF'FFFFu, sum.high), __reduce_add_sync(0xFFFF'FFFFu, sum.low)};
}

//! Third launch: the lists, the window's slots, the counts of the row; CTA per (row, chunk).
template <class Policy>
DIFFKV_KERNEL void __launch_bounds__(plan_tuning_sm90::threads)
  prompt_list_kernel(__grid_constant__ plan_params<Policy> const p)
{
  __shared__ plan_shared<Policy> shared;
  std::uint32_t const r     = p.chunks == 1 ? blockIdx.x : blockIdx.x / p.chunks;
  std::uint32_t const chunk = blockIdx.x - r * p.chunks;
  auto const& row           = shared.find_row(p, r);
  std::int32_t const n      = row.view.num_tokens;
  if (blockIdx.x == 0 && threadIdx.x == 0) { *p.tail = *p.cache.ring.tail; }
  if (n == 0 && chunk == 0 && threadIdx.x == 0) {
    p.rows[r]    = {};
    p.surplus[r] = 0;
  }
  if (static_cast<std::int32_t>(chunk) * plan_tuning_sm90::chunk >= n) { return; }

  auto const last_chunk = static_cast<std::uint32_t>((n - 1) / plan_tuning_sm90::chunk);
  for (std::uint32_t i = chunk * plan_tuning_sm90::threads + threadIdx.x; i < row.claimed;
       i += (last_chunk + 1) * plan_tuning_sm90::threads) {
    p.pages[std::size_t{r} * p.max_pages + i] = p.cache.table.entry(row.place.row, tier::high, i);
  }

  tier_masks const masks = classify_tokens(p, row, r, first_of_warp(chunk));
  std::uint32_t before   = 0;
  std::uint32_t all      = 0;
  sum_over_warps(masks.packed_counts(), shared, before, all);
  tier_counts const base = count_before(p, r, chunk);

  auto const lane            = static_cast<std::int32_t>(threadIdx.x % 32);
  unsigned const lower_lanes = (1u << lane) - 1u;
  std::int32_t* const high   = p.lists + std::size_t{r} * static_cast<std::size_t>(p.max_tokens);
  std::int32_t* const low    = high + p.max_tokens - 1;
  tier_counts at             = unpack(before);
  at                         = {at.high + base.high, at.low + base.low};
#pragma unroll
  for (int k = 0; k < plan_tuning_sm90::tokens_per_thread; ++k) {
    std::int32_t const token = first_of_warp(chunk) + 32 * k + lane;
    if ((masks.high[k] >> lane & 1u) != 0) {
      slot_index const slot =
        at.high + static_cast<std::uint32_t>(__popc(masks.high[k] & lower_lanes));
      high[slot] = token;
      if (token >= n - row.view.window) { p.cache.state.window_slot(row.place.row, token) = slot; }
    }
    if ((masks.low[k] >> lane & 1u) != 0) {
      slot_index const slot =
        at.low + static_cast<std::uint32_t>(__popc(masks.low[k] & lower_lanes));
      low[-static_cast<std::ptrdiff_t>(slot)] = token;
    }
    at.high += static_cast<std::uint32_t>(__popc(masks.high[k]));
    at.low += static_cast<std::uint32_t>(__popc(masks.low[k]));
  }

  if (chunk == last_chunk && threadIdx.x == 0) {
    tier_counts const in_chunk = unpack(all);
    prompt_row plan{n, row.claimed, {base.high + in_chunk.high, base.low + in_chunk.low}, {}};
    tier_pages const& tiers = p.cache.tiers;
    plan.pages              = {tiers.pages_for(tier::high, plan.tokens.high),
                  tiers.has_low ? tiers.pages_for(tier::low, plan.tokens.low) : 0u};
    p.rows[r]               = plan;
    p.surplus[r]            = row.claimed - plan.pages.sum();
  }
}

}  // namespace detail

}  // namespace diffkv
