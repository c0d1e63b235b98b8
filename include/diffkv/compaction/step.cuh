// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of all layers, before the layers run: two launches, whatever the batch.
//! `decide` plans every row and sums what the rows want; in `apply` every CTA finds out by itself what
//! its sequence gets, hands out pages, reserves the slots of the new token and moves others.
//! Read before this: compaction/step_row.cuh.  Read next: compaction/append.cuh.
#include <diffkv/compaction/step_row.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/static_config.hpp>

namespace diffkv {

//! Measured on an H200 (docs/performance.md).
//! @tparam Rows  of a CTA: a tile, all of one sequence
template <unsigned Rows>
struct step_tuning_sm90 {
  static constexpr unsigned rows           = Rows;
  static constexpr unsigned decide_threads = 4 * Rows;
  static constexpr unsigned apply_threads  = 256;
};
using step_tuning_few_rows                   = step_tuning_sm90<32>;  //!< more CTAs
using step_tuning_many_rows                  = step_tuning_sm90<64>;
inline constexpr std::uint64_t step_few_rows = 16384;  //!< in all, at most

namespace detail {

//! Scratch of a step; nothing in it lives from one step to the next.
struct step_workspace {
  ring_snapshot* snapshot     = nullptr;
  step_record* records        = nullptr;  //!< [capacity, rows_per_slot]
  std::uint32_t* tile_demands = nullptr;  //!< [capacity, tiles of a sequence] pages wanted
};

template <class Policy>
struct step_params {
  cache_ref cache;
  batch_ref batch;
  Policy policy;
  step_workspace work;
  refusals_ref refusals;
};

//! The handles with the geometry that the configuration knows: divisions become constants.
template <class Config>
[[nodiscard]] __device__ cache_ref with_static_tiers(cache_ref cache) noexcept
{
  cache.tiers = Config::layouts::pages;
  return cache;
}

//! The rows of a CTA.
struct step_tile {
  std::uint32_t per_sequence;  //!< tiles of one sequence
  std::uint32_t sequence;      //!< index into the batch
  std::uint32_t part;          //!< which tile of the sequence
  std::uint32_t slot;          //!< of the sequence
  std::uint32_t first_row;     //!< in the sequence
  std::uint32_t rows;          //!< how many

  //! The slot of a sequence behind the batch's end is whatever lies there.
  template <class Tuning, class Policy>
  [[nodiscard]] static __device__ step_tile at(step_params<Policy> const& p, std::uint32_t index)
  {
    std::uint32_t const rows  = p.cache.shape.rows_per_slot();
    std::uint32_t const tiles = ceil_div(rows, Tuning::rows);
    std::uint32_t const s     = index / tiles;
    std::uint32_t const part  = index % tiles;
    return {tiles,
            s,
            part,
            p.batch.slots[s],
            part * Tuning::rows,
            min(Tuning::rows, rows - part * Tuning::rows)};
  }
};

[[nodiscard]] __device__ inline uint4 to_words(step_token const& token) noexcept
{
  return {token.slot, token.view.present ? 1u : 0u, float_bits(token.view.importance),
          static_cast<std::uint32_t>(token.view.number)};
}
[[nodiscard]] __device__ inline step_token to_step_token(uint4 const& words) noexcept
{
  return {words.x, {words.y != 0, __uint_as_float(words.z), static_cast<std::int32_t>(words.w)}};
}

//! Shared memory of `decide`.
template <class Tuning>
struct step_decide_shared {
  static constexpr unsigned row_warps = Tuning::rows / 32;
  uint4 found[3][Tuning::rows];    //!< step_token by step_role, as plain words
  step_role wanted[Tuning::rows];  //!< where the policy decides about the leaving token first
  std::uint32_t demand_of_warp[row_warps];
};

//! Demand of a tile that cannot be served: its sequence has max_tokens tokens, or the two sides of a
//! row would meet, which only a damaged state brings about.
inline constexpr std::uint32_t more_than_any_ring = 0xFFFF'FFFFu;

//! First launch: plans of all rows, and what each tile wants. Of the four threads of a row, in different
//! warps, three look for the tokens that may move, as they wait for memory most of the time, and one
//! plans.
template <class Config, class Policy, class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::decide_threads)
  step_decide_kernel(__grid_constant__ step_params<Policy> const p)
{
  static_assert(Tuning::rows % 32 == 0);
  __shared__ step_decide_shared<Tuning> shared;
  wait_for_previous();
  bool const speaks         = blockIdx.x == 0 && threadIdx.x == 0;
  step_tile const tile      = step_tile::at<Tuning>(p, blockIdx.x);
  std::uint32_t const count = p.batch.size();
  if (tile.sequence >= count) {
    if (speaks && p.refusals.count != nullptr) { *p.refusals.count = 0; }  // an empty batch
    return;
  }
  cache_ref const cache  = with_static_tiers<Config>(p.cache);
  std::size_t const base = cache.shape.row(tile.slot, 0, 0) + tile.first_row;
  auto const layer_of    = [&](std::uint32_t r) {
    return (tile.first_row + r) / cache.shape.num_heads;
  };

  static_assert(Tuning::decide_threads == 4 * Tuning::rows);
  std::uint32_t const part = threadIdx.x / Tuning::rows;  // 0 plans, the others look
  std::uint32_t const r    = threadIdx.x % Tuning::rows;
  bool const has_row       = part == 0 && r < tile.rows;
  bool const looks         = part > 0 && r < tile.rows;
  auto const role          = static_cast<step_role>(part - 1);
  row_view const row{&cache, base + r};
  row_state state{};
  layer_state of_layer{};
  thresholds limits{};
  step_search search{};
  if (r < tile.rows) {
    std::uint32_t const layer = layer_of(r);
    of_layer                  = cache.layer(tile.slot, layer);
    state                     = cache.state.rows[base + r];
    if (looks) { search = {role, row, of_layer.num_tokens + 1}; }
    if (has_row) {
      limits = cache.limits.of(tile.slot, layer, (tile.first_row + r) % cache.shape.num_heads);
    }
  }
  auto const look = [&] {
    shared.found[part - 1][r] = to_words(search.find(row, state.tokens, of_layer.queries));
  };
  std::int32_t const position = of_layer.num_tokens;
  if constexpr (decides_leaving_first_v<Policy>) {
    // One of the others is looked up, at most: pages lie far apart, so that is what costs.
    if (looks && role == step_role::leaving) { look(); }
    __syncthreads();
    if (has_row) {
      // The policy need not know of sequences longer than max_tokens.
      shared.wanted[r] = step_role::leaving;
      if (position < cache.shape.max_tokens) {
        shared.wanted[r] = role_after_leaving(
          p.policy, view_of_leaving(to_step_token(shared.found[0][r]), state, cache.tiers,
                                    cache.shape.window, position + 1, limits));
      }
    }
    __syncthreads();
    if (looks && role != step_role::leaving) {
      if (shared.wanted[r] == role) {
        look();
      } else {
        shared.found[part - 1][r] = to_words({});
      }
    }
  } else {
    if (looks) { look(); }
  }
  __syncthreads();
  row_step plan{};
  bool grows = position < cache.shape.max_tokens;
  if (has_row && grows) {
    plan  = plan_found_tokens(p.policy, to_step_token(shared.found[0][r]),
                              to_step_token(shared.found[1][r]), to_step_token(shared.found[2][r]),
                              state, cache.tiers, cache.shape.window, position + 1, limits);
    grows = state.pages.sum() + plan.demand() <= cache.table.row_entries;
  }

  // Where the row's pages lie among the tile's: a row wants 0, 1 or 2.
  unsigned const lane = lane_index();
  unsigned const warp = threadIdx.x / 32;
  unsigned const one  = __ballot_sync(all_lanes, (plan.demand() & 1u) != 0);
  unsigned const two  = __ballot_sync(all_lanes, (plan.demand() & 2u) != 0);
  auto const pages_of = [&](unsigned lanes) {
    return static_cast<std::uint32_t>(__popc(one & lanes) + 2 * __popc(two & lanes));
  };
  constexpr unsigned row_warps = step_decide_shared<Tuning>::row_warps;
  if (warp < row_warps && lane == 0) { shared.demand_of_warp[warp] = pages_of(all_lanes); }
  bool const all_grow  = __syncthreads_and(grows || !has_row ? 1 : 0) != 0;
  std::uint32_t before = pages_of((1u << lane) - 1u);
  std::uint32_t wanted = 0;
  for (unsigned w = 0; w < row_warps; ++w) {
    before += w < warp ? shared.demand_of_warp[w] : 0u;
    wanted += shared.demand_of_warp[w];
  }
  if (has_row) {
    std::size_t const first = std::size_t{tile.sequence} * cache.shape.rows_per_slot();
    p.work.records[first + tile.first_row + r] = pack_step(plan, state.tokens, position, before);
  }
  if (threadIdx.x == 0) {
    p.work.tile_demands[blockIdx.x] = all_grow ? wanted : more_than_any_ring;
  }
  if (speaks) { *p.work.snapshot = take_snapshot(cache.ring); }
}

//! Shared memory of `apply`.
template <class Tuning>
struct step_apply_shared {
  claim_shared claim;
  grant_sum given;  //!< to the tiles before
  std::uint32_t pages;
  bool fits;
  token_moves<Tuning::rows> moves;
};

//! What the tile's sequence gets; `taken` counts the pages of all tiles before this one.
//! @threads the CTA; result valid in all threads
template <class Tuning>
[[nodiscard]] __device__ sequence_grant grant_of_tile(std::uint32_t const* demands,
                                                      step_tile const& tile, std::uint32_t count,
                                                      std::uint64_t room,
                                                      step_apply_shared<Tuning>& shared)
{
  demand_before const sums =
    sum_demand_before(count * tile.per_sequence, blockIdx.x, shared.claim,
                      [demands](std::uint32_t i) { return __ldcg(demands + i); });
  if (sums.all <= room) { return {sums.before, 0, true, 0}; }
  if (threadIdx.x < 32) {
    auto const sum_parts = [&](std::uint32_t s, std::uint32_t parts) {
      std::uint64_t pages = 0;
      for (std::uint32_t i = 0; i < parts; ++i) {
        pages += __ldcg(demands + s * tile.per_sequence + i);
      }
      return saturated(pages);
    };
    grant_sum const given = first_fit_groups(
      tile.sequence, room,
      [&](std::uint32_t s) { return demand_of_one(sum_parts(s, tile.per_sequence)); },
      [](std::uint32_t, grant_sum g) { return g; });
    std::uint32_t const pages = sum_parts(tile.sequence, tile.per_sequence);
    bool const fits           = pages <= room - given.taken;
    std::uint32_t const ahead = fits ? sum_parts(tile.sequence, tile.part) : 0u;
    if (threadIdx.x == 0) {
      shared.given = {given.taken + ahead, given.refused};
      shared.pages = pages;
      shared.fits  = fits;
    }
  }
  __syncthreads();
  return {shared.given.taken, shared.given.refused, shared.fits, shared.pages};
}

//! Second launch: pages, tables and states of the tile's rows, and the tokens that move.
template <class Config, class Policy, class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::apply_threads)
  step_apply_kernel(__grid_constant__ step_params<Policy> const p)
{
  __shared__ step_apply_shared<Tuning> shared;
  // `decide` writes none of this, and has waited for whoever did.
  step_tile const tile      = step_tile::at<Tuning>(p, blockIdx.x);
  std::uint32_t const count = p.batch.size();
  cache_ref const cache     = with_static_tiers<Config>(p.cache);
  std::uint32_t const r     = tile.first_row + threadIdx.x;
  std::size_t const index   = cache.shape.row(tile.slot, 0, 0) + r;
  bool const has_row        = threadIdx.x < tile.rows && tile.sequence < count;
  row_state state{};
  if (has_row) { state = load_uncached(cache.state.rows[index]); }
  wait_for_previous();
  if (tile.sequence >= count) { return; }

  step_record record{};
  if (has_row) {
    record = p.work.records[std::size_t{tile.sequence} * cache.shape.rows_per_slot() + r];
  }
  step_row row{cache, index, state, record};
  ring_snapshot const snapshot = *p.work.snapshot;
  sequence_grant const grant =
    grant_of_tile(p.work.tile_demands, tile, count, snapshot.num_free(), shared);
  if (threadIdx.x == 0) {
    if (tile.part == 0 && !grant.granted && p.refusals.sequences != nullptr) {
      p.refusals.sequences[grant.refused] = tile.sequence;
    }
    bool const is_last = tile.sequence + 1 == count && tile.part + 1 == tile.per_sequence;
    if (is_last) {
      std::uint32_t const mine = grant.granted ? __ldcg(p.work.tile_demands + blockIdx.x) : 0u;
      *cache.ring.head         = snapshot.head + grant.taken + mine;
      if (p.refusals.count != nullptr) { *p.refusals.count = grant.after().refused; }
    }
  }
  if (!grant.granted) {
    if (has_row) { cache.state.rows[index].append_slot = no_slot; }
    return;
  }

  if (has_row) {
    row.apply(cache, snapshot, grant.taken + record.offset());
    if (r % cache.shape.num_heads == 0) {
      cache.layer(tile.slot, r / cache.shape.num_heads).num_tokens = record.position + 1;
    }
  }
  if constexpr (Config::layouts::has_low) {
    move_tokens<typename Config::layouts>(cache.pool, row, has_row && row.moves(),
                                          p.cache.tiers.low.format, shared.moves);
  }
}

template <class Config, class Policy, class Tuning>
void launch_step(step_params<Policy> const& params, std::uint32_t capacity, cudaStream_t stream)
{
  std::uint64_t const grid =
    std::uint64_t{capacity} * ceil_div(params.cache.shape.rows_per_slot(), Tuning::rows);
  DIFFKV_EXPECTS(grid <= 0x7FFF'FFFFu, "batch: " + std::to_string(capacity) +
                                         " sequences are more than one launch can take");
  auto const ctas = static_cast<unsigned>(grid);
  launch(step_decide_kernel<Config, Policy, Tuning>, {ctas, Tuning::decide_threads, 0, true},
         stream, params);
  launch(step_apply_kernel<Config, Policy, Tuning>, {ctas, Tuning::apply_threads, 0, true}, stream,
         params);
}

}  // namespace detail

//! Scratch of `step` for batches of up to `capacity` sequences. It keeps nothing between steps.
[[nodiscard]] inline std::size_t step_workspace_bytes(cache_shape const& shape,
                                                      std::uint32_t capacity) noexcept
{
  std::uint32_t const rows  = shape.rows_per_slot();
  std::uint32_t const tiles = detail::ceil_div(rows, step_tuning_few_rows::rows);
  return sizeof(ring_snapshot) + std::size_t{capacity} * rows * sizeof(step_record) +
         std::size_t{capacity} * tiles * sizeof(std::uint32_t);
}

//! Makes room for one more token in every row of the batch's sequences, before the layers run: equals
//! host::step, page ids and refusals included. A sequence whose demand cannot be met is refused as a
//! whole: nothing of it changes, its append slots are none, and it is in `refusals`. So is one that has
//! max_tokens tokens, where the host throws, and one with a (damaged) row whose two sides would meet.
//! @tparam Config      static_config; expect_config refuses other handles
//! @param cache        handles in device memory
//! @param batch        different admitted slots whose prompts are stored (what lies in device memory is
//!                     not checked)
//! @param policy       any is_policy_v type; what it points at must lie in device memory
//! @param workspace    device memory of step_workspace_bytes(), aligned to 16 bytes
//! @param refusals     out, device or pinned memory; either member may be null
//! @throws  invalid_argument for handles of another configuration or a workspace too small, before any
//!          launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(rows + moved tokens * head_dim), no allocation; where the ring is short, O(capacity)
//!          steps of one warp more
template <class Config, class Policy>
void step(cache_ref const& cache, batch_ref const& batch, Policy const& policy, void* workspace,
          std::size_t workspace_bytes, refusals_ref refusals, cudaStream_t stream)
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  expect_config<Config>(cache);
  std::uint32_t const rows = cache.shape.rows_per_slot();
  DIFFKV_EXPECTS(rows <= step_record::max_rows,
                 "shape: num_layers * num_heads is above 8388608, got " + std::to_string(rows));
  if (batch.capacity == 0) {
    if (refusals.count != nullptr) {
      device_guard const guard{stream};
      DIFFKV_CUDA_TRY(cudaMemsetAsync(refusals.count, 0, sizeof(std::uint32_t), stream));
    }
    return;
  }
  std::size_t const needed = step_workspace_bytes(cache.shape, batch.capacity);
  DIFFKV_EXPECTS(workspace != nullptr && workspace_bytes >= needed &&
                   reinterpret_cast<std::uintptr_t>(workspace) % 16 == 0,
                 "workspace: " + std::to_string(needed) + " bytes aligned to 16 are needed, got " +
                   std::to_string(workspace_bytes));
  auto* const records = static_cast<step_record*>(workspace);
  auto* const snapshot =
    reinterpret_cast<ring_snapshot*>(records + std::size_t{batch.capacity} * rows);
  auto* const tile_demands = reinterpret_cast<std::uint32_t*>(snapshot + 1);
  detail::step_params<Policy> const params{
    cache, batch, policy, {snapshot, records, tile_demands}, refusals};
  if (std::uint64_t{batch.capacity} * rows <= step_few_rows) {
    detail::launch_step<Config, Policy, step_tuning_few_rows>(params, batch.capacity, stream);
  } else {
    detail::launch_step<Config, Policy, step_tuning_many_rows>(params, batch.capacity, stream);
  }
}

}  // namespace diffkv
