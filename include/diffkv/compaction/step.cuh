// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of all layers, before the layers run: two launches, whatever the batch.
//! `decide` plans every row and sums what each sequence wants; in `apply` every CTA finds out by itself
//! what its sequence gets, hands out pages, moves tokens and reserves the slots of the new one.
//! Read before this: compaction/move_token.cuh, pool/claim_plan.cuh.
//! Read next: compaction/append.cuh.
#include <diffkv/compaction/move_token.cuh>
#include <diffkv/compaction/step_record.hpp>
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/claim_plan.cuh>
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/pool/held_pages.cuh>
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/static_config.hpp>

namespace diffkv {

//! Measured on an H200 (docs/performance.md).
struct step_tuning_sm90 {
  static constexpr unsigned decide_threads = 1024;  //!< of a CTA at most: one sequence
  static constexpr unsigned apply_rows     = 64;    //!< of a CTA
  static constexpr unsigned apply_threads  = 256;
};

namespace detail {

//! Scratch of a step; nothing in it lives from one step to the next.
struct step_workspace {
  ring_snapshot* snapshot = nullptr;
  step_record* records    = nullptr;  //!< [capacity, rows_per_slot]
  std::uint32_t* demands  = nullptr;  //!< [capacity] pages that a sequence wants
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

//! Exclusive prefix sum of 0, 1 or 2 over the CTA, going on from `before`, which becomes the total.
//! @threads the CTA, whole warps; `before` is the same in all
[[nodiscard]] __device__ inline std::uint32_t demand_before_row(std::uint32_t demand,
                                                                std::uint32_t& before,
                                                                std::uint32_t (&warp_sums)[32])
{
  unsigned const lane  = lane_index();
  unsigned const below = (1u << lane) - 1u;
  unsigned const one   = __ballot_sync(all_lanes, (demand & 1u) != 0);
  unsigned const two   = __ballot_sync(all_lanes, (demand & 2u) != 0);
  if (lane == 0) {
    warp_sums[threadIdx.x / 32] = static_cast<std::uint32_t>(__popc(one) + 2 * __popc(two));
  }
  __syncthreads();
  std::uint32_t const sum     = lane < blockDim.x / 32 ? warp_sums[lane] : 0u;
  std::uint32_t const earlier = __reduce_add_sync(all_lanes, lane < threadIdx.x / 32 ? sum : 0u);
  std::uint32_t const in_warp =
    static_cast<std::uint32_t>(__popc(one & below) + 2 * __popc(two & below));
  std::uint32_t const offset = before + earlier + in_warp;
  before += __reduce_add_sync(all_lanes, sum);
  return offset;
}

//! First launch, a CTA per sequence: plans of its rows, and what it wants.
template <class Config, class Policy>
DIFFKV_KERNEL void __launch_bounds__(step_tuning_sm90::decide_threads)
  step_decide_kernel(__grid_constant__ step_params<Policy> const p)
{
  __shared__ std::uint32_t warp_sums[2][32];
  wait_for_previous();
  bool const speaks        = blockIdx.x == 0 && threadIdx.x == 0;
  std::uint32_t const slot = p.batch.slots[blockIdx.x];
  if (blockIdx.x >= p.batch.size()) {
    if (speaks && p.refusals.count != nullptr) { *p.refusals.count = 0; }  // an empty batch
    return;
  }

  cache_ref const cache    = with_static_tiers<Config>(p.cache);
  std::uint32_t const rows = cache.shape.rows_per_slot();
  std::uint32_t wanted     = 0;
  for (std::uint32_t first = 0; first < rows; first += blockDim.x) {
    std::uint32_t const r = first + threadIdx.x;
    row_step plan{};
    tier_counts tokens{};
    std::int32_t position = 0;
    if (r < rows) {
      std::uint32_t const layer = r / cache.shape.num_heads;
      std::uint32_t const head  = r % cache.shape.num_heads;
      layer_state const state   = cache.layer(slot, layer);
      row_view const row{&cache, cache.shape.row(slot, layer, head)};
      tokens   = row.state().tokens;
      position = state.num_tokens;
      plan     = plan_row_step(p.policy, row, state.queries, position + 1,
                               cache.limits.of(slot, layer, head));
    }
    // Two buffers in turn: one barrier a round is enough.
    std::uint32_t const offset =
      demand_before_row(plan.demand(), wanted, warp_sums[first / blockDim.x % 2]);
    if (r < rows) {
      p.work.records[std::size_t{blockIdx.x} * rows + r] =
        pack_step(plan, tokens, position, offset);
    }
  }
  if (threadIdx.x == 0) { p.work.demands[blockIdx.x] = wanted; }
  if (speaks) { *p.work.snapshot = take_snapshot(p.cache.ring); }
}

//! One row on its way through `apply`: read before it is known whether its sequence is served, written
//! after.
class step_row {
 public:
  //! Reads where the pages of the row's move lie now.
  __device__ step_row(cache_ref const& cache, std::size_t row, row_state const& state,
                      step_record const& record)
    : row_{row}, position_{record.position}, state_{state}, plan_{unpack_step(record, state.tokens)}
  {
    if (!moves()) { return; }
    tier const source     = demotes() ? tier::high : tier::low;
    slot_index const from = demotes() ? plan_.demote_from : plan_.fill_from;
    slot_index const to   = demotes() ? plan_.demote_to : plan_.fill_to;
    from_                 = cache.table.entry(row, source, page_of(cache, source, from));
    from_token_           = in_page(cache, source, from);
    to_token_             = in_page(cache, tier::low, to);
    if (plan_.low_page == page_source::none) {
      to_ = cache.table.entry(row, tier::low, page_of(cache, tier::low, to));
    }
  }
  [[nodiscard]] __device__ bool moves() const noexcept
  {
    return demotes() || plan_.fill_from != no_slot;
  }
  //! Carries out the plan, all but the move.
  //! @param ids  where the row's claimed pages lie in the ring: high before low
  __device__ void apply(cache_ref const& cache, ring_snapshot const& ring, std::uint64_t ids)
  {
    add_page(cache, tier::high, plan_.high_page, ring, ids);
    add_page(cache, tier::low, plan_.low_page, ring, ids);
    state_.tokens                            = plan_.tokens_after;
    state_.append_slot                       = plan_.append_slot;
    cache.state.rows[row_]                   = state_;
    cache.state.window_slot(row_, position_) = plan_.append_slot;
  }
  //! @pre moves(), and the plan was applied
  [[nodiscard]] __device__ token_move move(cache_ref const& cache) const
  {
    return {cache.pool.page(from_), cache.pool.page(to_), from_token_, to_token_, demotes()};
  }

 private:
  [[nodiscard]] __device__ bool demotes() const noexcept { return plan_.demote_from != no_slot; }
  [[nodiscard]] static __device__ std::uint32_t page_of(cache_ref const& cache, tier t,
                                                        slot_index slot) noexcept
  {
    return slot / cache.tiers.tokens_per_page(t);
  }
  [[nodiscard]] static __device__ std::uint16_t in_page(cache_ref const& cache, tier t,
                                                        slot_index slot) noexcept
  {
    return static_cast<std::uint16_t>(slot % cache.tiers.tokens_per_page(t));
  }
  __device__ void add_page(cache_ref const& cache, tier t, page_source source,
                           ring_snapshot const& ring, std::uint64_t& ids)
  {
    if (source == page_source::none) { return; }
    bool const high = t == tier::high;
    auto& mine      = high ? state_.pages.high : state_.pages.low;
    auto& theirs    = high ? state_.pages.low : state_.pages.high;
    page_id id      = no_page;
    if (source == page_source::ring) {
      id = cache.ring.ids[cell_behind(ring.head_cell, ids++, cache.ring.capacity)];
      if (cache.ring.is_checked()) { mark_held(cache.ring, id); }
    } else {
      page_id& spare = cache.table.entry(row_, high ? tier::low : tier::high, --theirs);
      id             = spare;
      spare          = no_page;
    }
    cache.table.entry(row_, t, mine++) = id;
    if (!high) { to_ = id; }  // the low part grows by the token that moves, and only then
  }

  std::size_t row_;
  std::int32_t position_;
  row_state state_;
  row_step plan_;
  page_id from_             = no_page;
  page_id to_               = no_page;
  std::uint16_t from_token_ = 0;
  std::uint16_t to_token_   = 0;
};

//! Shared memory of `apply`.
template <class Tuning>
struct step_apply_shared {
  claim_shared claim;
  std::uint32_t moves_of_warp[Tuning::apply_rows / 32];
  token_move moves[Tuning::apply_rows];
};

//! Second launch, a CTA per `apply_rows` rows of one sequence.
template <class Config, class Policy>
DIFFKV_KERNEL void __launch_bounds__(step_tuning_sm90::apply_threads)
  step_apply_kernel(__grid_constant__ step_params<Policy> const p)
{
  using tuning = step_tuning_sm90;
  static_assert(tuning::apply_rows % 32 == 0 && tuning::apply_threads >= tuning::apply_rows);
  __shared__ step_apply_shared<tuning> shared;
  std::uint32_t const rows     = p.cache.shape.rows_per_slot();
  std::uint32_t const tiles    = ceil_div(rows, tuning::apply_rows);
  std::uint32_t const sequence = blockIdx.x / tiles;
  std::uint32_t const tile     = blockIdx.x % tiles;
  std::uint32_t const r        = tile * tuning::apply_rows + threadIdx.x;
  cache_ref const cache        = with_static_tiers<Config>(p.cache);

  // `decide` writes none of this, and has waited for whoever did.
  std::uint32_t const count   = p.batch.size();
  std::uint32_t const slot    = p.batch.slots[sequence];
  bool const has_row          = threadIdx.x < tuning::apply_rows && r < rows && sequence < count;
  std::size_t const row_index = cache.shape.row(slot, 0, 0) + r;
  row_state state{};
  if (has_row) { state = cache.state.rows[row_index]; }
  wait_for_previous();
  if (sequence >= count) { return; }

  step_record record{};
  if (has_row) { record = p.work.records[std::size_t{sequence} * rows + r]; }
  step_row row{cache, row_index, state, record};
  ring_snapshot const snapshot = *p.work.snapshot;
  sequence_grant const grant =
    grant_of(p.work.demands, count, sequence, snapshot.num_free(), shared.claim);
  if (tile == 0 && threadIdx.x == 0) {
    if (!grant.granted && p.refusals.sequences != nullptr) {
      p.refusals.sequences[grant.refused] = sequence;
    }
    if (sequence + 1 == count) {
      *cache.ring.head = snapshot.head + grant.after().taken;
      if (p.refusals.count != nullptr) { *p.refusals.count = grant.after().refused; }
    }
  }
  if (!grant.granted) {
    if (has_row) { cache.state.rows[row_index].append_slot = no_slot; }
    return;
  }

  // Rows, one a thread; then tokens, one a warp.
  bool const moves = has_row && row.moves();
  if (has_row) {
    row.apply(cache, snapshot, grant.taken + record.offset());
    if (r % cache.shape.num_heads == 0) {
      cache.layer(slot, r / cache.shape.num_heads).num_tokens = record.position + 1;
    }
  }
  unsigned const warp          = threadIdx.x / 32;
  unsigned const lane          = lane_index();
  unsigned const movers        = __ballot_sync(all_lanes, moves);
  constexpr unsigned row_warps = tuning::apply_rows / 32;
  if (warp < row_warps && lane == 0) {
    shared.moves_of_warp[warp] = static_cast<std::uint32_t>(__popc(movers));
  }
  __syncthreads();
  std::uint32_t before    = 0;
  std::uint32_t num_moves = 0;
  for (unsigned w = 0; w < row_warps; ++w) {
    before += w < warp ? shared.moves_of_warp[w] : 0u;
    num_moves += shared.moves_of_warp[w];
  }
  if (moves) {
    shared.moves[before + static_cast<unsigned>(__popc(movers & ((1u << lane) - 1u)))] =
      row.move(cache);
  }
  __syncthreads();
  for (std::uint32_t i = warp; i < num_moves; i += tuning::apply_threads / 32) {
    token_move const next = shared.moves[i];
    if constexpr (Config::layouts::has_low) {
      if (next.demotes) {
        demote_token<typename Config::layouts>(next, p.cache.tiers.low.format,
                                               static_cast<int>(lane));
      } else {
        copy_token<typename Config::layouts>(next, static_cast<int>(lane));
      }
    }
  }
}

[[nodiscard]] inline std::size_t align_16(std::size_t bytes) noexcept
{
  return (bytes + 15) / 16 * 16;
}

}  // namespace detail

//! Scratch of `step` for batches of up to `capacity` sequences. It keeps nothing between steps.
[[nodiscard]] inline std::size_t step_workspace_bytes(cache_shape const& shape,
                                                      std::uint32_t capacity) noexcept
{
  return detail::align_16(sizeof(ring_snapshot)) +
         std::size_t{capacity} * shape.rows_per_slot() * sizeof(step_record) +
         detail::align_16(std::size_t{capacity} * sizeof(std::uint32_t));
}

//! Makes room for one more token in every row of the batch's sequences, before the layers run: equals
//! host::step, page ids and refusals included. A sequence whose demand cannot be met is refused as a
//! whole: nothing of it changes, its append slots are none, and it is in `refusals`.
//! @tparam Config      static_config; expect_config refuses other handles
//! @param cache        handles in device memory
//! @param batch        different admitted slots whose prompts are stored, none of them at max_tokens
//!                     (what lies in device memory is not checked)
//! @param policy       any is_policy_v type; what it points at must lie in device memory
//! @param workspace    device memory of step_workspace_bytes(), aligned to 16 bytes
//! @param refusals     out, device memory; either member may be null
//! @throws  invalid_argument for handles of another configuration or a workspace too small, before any
//!          launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(rows + moved tokens * head_dim), no allocation; where the ring is short, O(capacity)
//!          steps of one warp more
template <class Config, class Policy>
void step(cache_ref const& cache, batch_ref const& batch, Policy const& policy, void* workspace,
          std::size_t workspace_bytes, refusals_ref refusals, cudaStream_t stream)
{
  using tuning = step_tuning_sm90;
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
  std::uint64_t const apply_grid =
    std::uint64_t{batch.capacity} * detail::ceil_div(rows, tuning::apply_rows);
  DIFFKV_EXPECTS(apply_grid <= 0x7FFF'FFFFu, "batch: " + std::to_string(batch.capacity) +
                                               " sequences are more than one launch can take");

  auto* const snapshot = static_cast<ring_snapshot*>(workspace);
  auto* const records  = reinterpret_cast<step_record*>(static_cast<std::byte*>(workspace) +
                                                       detail::align_16(sizeof(ring_snapshot)));
  auto* const demands =
    reinterpret_cast<std::uint32_t*>(records + std::size_t{batch.capacity} * rows);
  detail::step_params<Policy> const params{
    cache, batch, policy, {snapshot, records, demands}, refusals};
  unsigned const decide_threads =
    detail::min_of(detail::round_up(rows, 32u), tuning::decide_threads);
  detail::launch(detail::step_decide_kernel<Config, Policy>,
                 {batch.capacity, decide_threads, 0, true}, stream, params);
  detail::launch(detail::step_apply_kernel<Config, Policy>,
                 {static_cast<unsigned>(apply_grid), tuning::apply_threads, 0, true}, stream,
                 params);
}

}  // namespace diffkv
