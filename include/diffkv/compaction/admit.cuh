// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The start of requests on the device: pages for as much as each prompt may need.
//! Read before this: compaction/release.cuh, pool/claim.cuh.  Read next: compaction/prompt.cuh.
#include <diffkv/compaction/reset_slot.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/policy/contract.hpp>
#include <diffkv/pool/claim_plan.cuh>
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/pool/held_pages.cuh>

namespace diffkv {

namespace detail {

template <class Policy>
struct admit_params {
  cache_ref cache;
  batch_ref batch;
  std::int32_t const* num_tokens;
  Policy policy;
  refusals_ref refusals;
  slot_parts parts;
  ring_snapshot* snapshot;
  std::uint32_t* demands;  //!< [batch.capacity] saturated
};

//! First launch, a CTA per prompt: what it may need at most. What cannot be admitted at all wants more
//! than any ring has. One CTA more takes the snapshot.
template <class Tuning, class Policy>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  admit_demand_kernel(__grid_constant__ admit_params<Policy> const p)
{
  wait_for_previous();
  cache_shape const& shape = p.cache.shape;
  std::uint32_t const size = p.batch.size();
  if (blockIdx.x == p.batch.capacity) {
    if (threadIdx.x == 0) { *p.snapshot = take_snapshot(p.cache.ring); }
    if (threadIdx.x == 0 && size == 0 && p.refusals.count != nullptr) { *p.refusals.count = 0; }
    return;
  }
  if (blockIdx.x >= size) { return; }
  std::uint32_t const slot = p.batch.slots[blockIdx.x];
  std::int32_t const n     = p.num_tokens[blockIdx.x];
  bool possible            = slot < shape.num_slots && n >= 0 && n <= shape.max_tokens;
  if (possible) {  // the same in all threads
    bool in_use = false;
    for (std::uint32_t r = threadIdx.x; r < shape.rows_per_slot(); r += Tuning::threads) {
      in_use = in_use || p.cache.state.rows[shape.row(slot, 0, 0) + r].pages.sum() != 0;
    }
    possible = __syncthreads_or(in_use ? 1 : 0) == 0;
  }
  if (threadIdx.x == 0) {
    std::uint64_t const pages = p.cache.tiers.most_pages(static_cast<std::uint32_t>(n));
    p.demands[blockIdx.x]     = possible ? saturated(pages * shape.rows_per_slot()) : 0xFFFF'FFFFu;
  }
}

//! Second launch: pages of the granted prompts, at the left end of their rows. The CTAs of the last
//! prompt move the head.
template <class Tuning, class Policy>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  admit_grant_kernel(__grid_constant__ admit_params<Policy> const p)
{
  __shared__ claim_shared shared;
  wait_for_previous();
  cache_ref const& cache    = p.cache;
  std::uint32_t const s     = blockIdx.x / p.parts.per_slot;
  std::uint32_t const part  = blockIdx.x % p.parts.per_slot;
  std::uint32_t const size  = p.batch.size();
  free_ring_ref const& ring = cache.ring;
  if (s >= size) { return; }
  ring_snapshot const snapshot = *p.snapshot;
  sequence_grant const grant   = grant_of(p.demands, size, s, snapshot.num_free(), shared);
  if (part == 0 && threadIdx.x == 0) {
    if (!grant.granted && p.refusals.sequences != nullptr) {
      p.refusals.sequences[grant.refused] = s;
    }
    if (s + 1 == size) {
      *ring.head = snapshot.head + grant.after().taken;
      if (p.refusals.count != nullptr) { *p.refusals.count = grant.after().refused; }
    }
  }
  if (!grant.granted) { return; }

  std::uint32_t const slot     = p.batch.slots[s];
  std::int32_t const n         = p.num_tokens[s];
  std::uint32_t const pages    = cache.tiers.most_pages(static_cast<std::uint32_t>(n));
  std::uint32_t const per_slot = cache.shape.rows_per_slot();
  std::uint32_t const end      = min((part + 1) * p.parts.rows, per_slot);
  for (std::uint32_t r = part * p.parts.rows + threadIdx.x / 32; r < end; r += Tuning::warps) {
    std::size_t const row     = cache.shape.row(slot, 0, 0) + r;
    std::uint64_t const first = grant.taken + std::uint64_t{r} * pages;
#pragma unroll 4
    for (std::uint32_t i = lane_index(); i < pages; i += 32) {
      page_id const id = ring.ids[cell_behind(snapshot.head_cell, first + i, ring.capacity)];
      cache.table.entry(row, tier::high, i) = id;
      if (ring.is_checked()) { mark_held(ring, id); }
    }
    reset_row(cache, row, pages);
  }
  if (part == 0) { set_layers(cache, slot, {n, {n, p.policy.prompt_queries(n), n}}); }
}

}  // namespace detail

//! Scratch of `admit` for batches of up to `capacity` prompts. It keeps nothing between calls.
[[nodiscard]] inline std::size_t admit_workspace_bytes(std::uint32_t capacity)
{
  return sizeof(ring_snapshot) + std::size_t{capacity} * sizeof(std::uint32_t);
}

//! Claims the pages that each prompt may need at most, for all its rows; all or nothing per prompt:
//! equals host::admit, order of pages included. Granted slots then hold pages and no tokens.
//! What lies in device memory cannot throw: a prompt longer than shape.max_tokens, or for a slot that is
//! in use or no slot, is refused.
//! @param batch       different free slots
//! @param num_tokens  [batch.capacity] lengths of their prompts, device memory
//! @param policy      says how many prompt queries the importances hold
//! @param workspace   device memory, aligned to 16 bytes
//! @param refusals    out, device or pinned memory; either member may be null
//! @throws  invalid_argument for a batch without slots or lengths, or too small a workspace, before any
//!          launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(rows + pages)
template <class Policy>
void admit(cache_ref const& cache, batch_ref const& batch, std::int32_t const* num_tokens,
           Policy const& policy, void* workspace, std::size_t workspace_bytes,
           refusals_ref refusals, cudaStream_t stream)
{
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  using tuning = slot_tuning_sm90;
  if (batch.capacity == 0) {
    detail::clear_result(refusals.count, stream);
    return;
  }
  DIFFKV_EXPECTS(batch.slots != nullptr, "batch: slots must not be null");
  DIFFKV_EXPECTS(num_tokens != nullptr, "num_tokens: must not be null");
  detail::expect_workspace(workspace, workspace_bytes, admit_workspace_bytes(batch.capacity));
  detail::slot_parts const parts = detail::make_slot_parts(cache.shape, batch.capacity);
  auto* const snapshot           = static_cast<ring_snapshot*>(workspace);
  auto* const demands            = reinterpret_cast<std::uint32_t*>(snapshot + 1);
  detail::admit_params<Policy> const params{cache,    batch, num_tokens, policy,
                                            refusals, parts, snapshot,   demands};
  detail::launch(detail::admit_demand_kernel<tuning, Policy>,
                 {batch.capacity + 1, tuning::threads, 0, true}, stream, params);
  detail::launch(detail::admit_grant_kernel<tuning, Policy>, {parts.grid, tuning::threads, 0, true},
                 stream, params);
}

}  // namespace diffkv
