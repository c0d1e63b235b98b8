// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Gives a list of pages back to the ring, on the device.
//! Read before this: pool/claim.cuh.  Read next: pool/init_ring.cuh.
//!
//! Two launches, as a claim: the first counts what each CTA may give back and takes a snapshot; in the
//! second every CTA sums the counts before its own and writes its pages in their order.
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/claim_plan.cuh>
#include <diffkv/pool/held_pages.cuh>

#include <cstddef>  // size_t

namespace diffkv {

//! A list of pages in device memory.
struct page_list {
  page_id const* ids         = nullptr;  //!< [capacity], the first *count are valid
  std::uint64_t const* count = nullptr;  //!< device memory; null: all of `capacity`
  std::uint64_t capacity     = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE std::uint64_t size() const noexcept
  {
    return count == nullptr ? capacity : *count < capacity ? *count : capacity;
  }
};

//! Measured on an H200.
struct release_tuning_sm90 {
  static constexpr unsigned threads        = 512;
  static constexpr unsigned ids_per_thread = 4;
};

namespace detail {

//! What a CTA found among its ids.
struct alignas(16) release_counts {
  std::uint32_t released;
  std::uint32_t foreign;
  std::uint32_t repeated;
};

struct release_params {
  free_ring_ref ring;
  page_list list;
  release_report* report;
  std::uint32_t num_ctas;
  ring_snapshot* snapshot;
  release_counts* counts;   //!< [CTAs]
  std::uint32_t* released;  //!< [ceil(capacity / 32)] bit i: id i goes back
};

//! Ids that each launch reads in one go; more are read in turns.
template <class Tuning>
inline constexpr unsigned ids_per_cta = Tuning::threads* Tuning::ids_per_thread;

//! First launch.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_count_kernel(__grid_constant__ release_params const p)
{
  __shared__ std::uint32_t warps[Tuning::threads / 32][3];
  wait_for_previous();
  if (blockIdx.x == p.num_ctas) {  // apart, so that no list waits for the counters
    if (threadIdx.x == 0) { *p.snapshot = take_snapshot(p.ring); }
    return;
  }
  std::uint64_t const size  = p.list.size();
  std::uint64_t const begin = std::uint64_t{blockIdx.x} * ids_per_cta<Tuning>;
  std::uint32_t found[3]    = {};
  for (unsigned i = threadIdx.x; i < ids_per_cta<Tuning>; i += Tuning::threads) {
    bool const exists = begin + i < size;
    auto const what = exists ? strike_off(p.ring, p.list.ids[begin + i]) : release_outcome::foreign;
    for (int o = 0; o < 3; ++o) {
      unsigned const lanes =
        __ballot_sync(all_lanes, exists && what == static_cast<release_outcome>(o));
      found[o] += static_cast<std::uint32_t>(__popc(lanes));
      if (o == 0 && lane_index() == 0 && exists) { p.released[(begin + i) / 32] = lanes; }
    }
  }
  if (lane_index() < 3) {
    unsigned const o           = lane_index();
    warps[threadIdx.x / 32][o] = o == 0 ? found[0] : o == 1 ? found[1] : found[2];
  }
  __syncthreads();
  if (threadIdx.x >= 32) { return; }
  std::uint32_t sums[3];
  for (int o = 0; o < 3; ++o) {
    sums[o] =
      __reduce_add_sync(all_lanes, threadIdx.x < Tuning::threads / 32 ? warps[threadIdx.x][o] : 0u);
  }
  if (threadIdx.x == 0) { p.counts[blockIdx.x] = {sums[0], sums[1], sums[2]}; }
}

//! Second launch; the last CTA moves the tail and reports.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_write_kernel(__grid_constant__ release_params const p)
{
  __shared__ claim_shared shared;
  __shared__ std::uint32_t warps[Tuning::threads / 32];
  std::uint32_t const warp = threadIdx.x / 32;
  wait_for_previous();
  ring_snapshot const snapshot = *p.snapshot;
  std::uint64_t const size     = p.list.size();
  // A warp has neighbouring ids, so that a prefix over warps keeps their order.
  std::uint64_t const begin =
    std::uint64_t{blockIdx.x} * ids_per_cta<Tuning> + warp * 32 * Tuning::ids_per_thread;
  std::uint32_t released[Tuning::ids_per_thread];
  std::uint32_t of_warp = 0;
  for (unsigned i = 0; i < Tuning::ids_per_thread; ++i) {
    released[i] = begin + i * 32 < size ? __ldcg(p.released + (begin / 32 + i)) : 0u;
    of_warp += static_cast<std::uint32_t>(__popc(released[i]));
  }
  if (lane_index() == 0) { warps[warp] = of_warp; }
  demand_before const sums = sum_demand_before(
    gridDim.x, blockIdx.x, shared, [&](std::uint32_t i) { return __ldcg(&p.counts[i].released); });
  std::uint64_t place =
    sums.before +
    warp_sum(lane_index() < warp && lane_index() < Tuning::threads / 32 ? warps[lane_index()] : 0u);
  for (unsigned i = 0; i < Tuning::ids_per_thread; ++i) {
    if ((released[i] >> lane_index() & 1u) != 0) {
      auto const ahead =
        static_cast<std::uint32_t>(__popc(released[i] & ((1u << lane_index()) - 1u)));
      p.ring.ids[cell_behind(snapshot.tail_cell, place + ahead, p.ring.capacity)] =
        p.list.ids[begin + i * 32 + lane_index()];
    }
    place += static_cast<std::uint32_t>(__popc(released[i]));
  }
  if (blockIdx.x + 1 != gridDim.x) { return; }
  if (threadIdx.x == 0) { *p.ring.tail = snapshot.tail + sums.all; }
  if (p.report == nullptr) { return; }
  __syncthreads();  // `shared` is used once more
  demand_before const foreign = sum_demand_before(
    gridDim.x, 0, shared, [&](std::uint32_t i) { return __ldcg(&p.counts[i].foreign); });
  __syncthreads();
  demand_before const repeated = sum_demand_before(
    gridDim.x, 0, shared, [&](std::uint32_t i) { return __ldcg(&p.counts[i].repeated); });
  if (threadIdx.x == 0) { *p.report = {sums.all, foreign.all, repeated.all}; }
}

[[nodiscard]] inline std::uint64_t release_ctas(std::uint64_t capacity) noexcept
{
  return ceil_div<std::uint64_t>(capacity, ids_per_cta<release_tuning_sm90>);
}

}  // namespace detail

//! Scratch of a release of up to `capacity` pages.
[[nodiscard]] inline std::size_t release_workspace_bytes(std::uint64_t capacity)
{
  return sizeof(ring_snapshot) + detail::release_ctas(capacity) * sizeof(detail::release_counts) +
         detail::ceil_div<std::uint64_t>(capacity, 32) * sizeof(std::uint32_t);
}

//! Gives pages back, in their order; see host::release. In a checked ring ids that are no page, and
//! pages that are free already, are skipped and counted. Of two places that name one page in one call,
//! one is released and one is repeated; which of them is not said.
//! @param workspace    device memory, aligned to 16 bytes
//! @param[out] report  device memory, or null
//! @pre (unchecked)    each id was claimed and not yet released
//! @throws  invalid_argument for a missing ring or list, more ids than a grid can take, or too small a
//!          workspace, before any launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(list.capacity)
inline void release(free_ring_ref const& ring, page_list const& list, void* workspace,
                    std::size_t workspace_bytes, release_report* report, cudaStream_t stream)
{
  using tuning = release_tuning_sm90;
  if (list.capacity == 0) {
    if (report != nullptr) {
      device_guard const guard{stream};
      DIFFKV_CUDA_TRY(cudaMemsetAsync(report, 0, sizeof *report, stream));
    }
    return;
  }
  DIFFKV_EXPECTS(
    ring.ids != nullptr && ring.head != nullptr && ring.tail != nullptr && ring.capacity > 0,
    "ring: must have cells and counters");
  DIFFKV_EXPECTS(list.ids != nullptr, "list: ids must not be null");
  std::uint64_t const ctas = detail::release_ctas(list.capacity);
  DIFFKV_EXPECTS(ctas <= 0x7FFF'FFFFu, "list: " + std::to_string(list.capacity) +
                                         " ids are more than one launch can take");
  std::size_t const needed = release_workspace_bytes(list.capacity);
  DIFFKV_EXPECTS(workspace != nullptr && workspace_bytes >= needed &&
                   reinterpret_cast<std::uintptr_t>(workspace) % 16 == 0,
                 "workspace: " + std::to_string(needed) + " bytes aligned to 16 are needed, got " +
                   std::to_string(workspace_bytes));
  auto* const snapshot = static_cast<ring_snapshot*>(workspace);
  auto* const counts   = reinterpret_cast<detail::release_counts*>(snapshot + 1);
  auto* const released = reinterpret_cast<std::uint32_t*>(counts + ctas);
  detail::release_params const params{ring,     list,   report,  static_cast<std::uint32_t>(ctas),
                                      snapshot, counts, released};
  detail::launch(detail::release_count_kernel<tuning>,
                 {params.num_ctas + 1, tuning::threads, 0, true}, stream, params);
  detail::launch(detail::release_write_kernel<tuning>, {params.num_ctas, tuning::threads, 0, true},
                 stream, params);
}

}  // namespace diffkv
