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
#include <diffkv/pool/page_pool.hpp>  // max_pages

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
  static constexpr unsigned threads   = 512;
  static constexpr unsigned most_ctas = 528;
};

namespace detail {

//! What was found among some ids.
struct alignas(16) release_counts {
  std::uint32_t released;
  std::uint32_t foreign;
  std::uint32_t repeated;

  //! Adds what became of the ids of a warp, one a lane.
  //! @return bit i: lane i's id goes back  @threads one warp; result valid in all lanes
  __device__ std::uint32_t add(bool exists, release_outcome outcome)
  {
    auto const lanes = [&](release_outcome o) {
      return __ballot_sync(all_lanes, exists && outcome == o);
    };
    unsigned const back = lanes(release_outcome::released);
    released += static_cast<std::uint32_t>(__popc(back));
    foreign += static_cast<std::uint32_t>(__popc(lanes(release_outcome::foreign)));
    repeated += static_cast<std::uint32_t>(__popc(lanes(release_outcome::repeated)));
    return back;
  }
};

//! Sums the counts of the CTA's warps.
//! @param of_warp  the same in all lanes of a warp
//! @threads the CTA, whole warps
__device__ inline void store_release_counts(release_counts const& of_warp,
                                            release_counts (&warps)[32], release_counts* to)
{
  if (lane_index() == 0) { warps[threadIdx.x / 32] = of_warp; }
  __syncthreads();
  if (threadIdx.x >= 32) { return; }
  release_counts const c = lane_index() < blockDim.x / 32 ? warps[lane_index()] : release_counts{};
  release_counts const sum{__reduce_add_sync(all_lanes, c.released),
                           __reduce_add_sync(all_lanes, c.foreign),
                           __reduce_add_sync(all_lanes, c.repeated)};
  if (lane_index() == 0) { *to = sum; }
}

//! Moves the tail and reports.  @threads one CTA, whole warps; `shared` is in nobody's use
__device__ inline void finish_release(free_ring_ref const& ring, ring_snapshot const& snapshot,
                                      std::uint64_t released, release_counts const* counts,
                                      std::uint32_t num_counts, release_report* report,
                                      claim_shared& shared)
{
  if (threadIdx.x == 0) { *ring.tail = snapshot.tail + released; }
  if (report == nullptr) { return; }
  std::uint64_t const foreign = sum_demand_before(num_counts, 0, shared, [counts](std::uint32_t i) {
                                  return __ldcg(&counts[i].foreign);
                                }).all;
  __syncthreads();
  std::uint64_t const repeated =
    sum_demand_before(num_counts, 0, shared, [counts](std::uint32_t i) {
      return __ldcg(&counts[i].repeated);
    }).all;
  if (threadIdx.x == 0) { *report = {released, foreign, repeated}; }
}

struct release_params {
  free_ring_ref ring;
  page_list list;
  release_report* report;
  std::uint32_t num_ctas;
  std::uint32_t ids_per_warp;  //!< a multiple of 128
  ring_snapshot* snapshot;
  release_counts* counts;   //!< [num_ctas]
  std::uint32_t* released;  //!< [ceil(capacity / 32)] bit i: id i goes back

  //! The first id of this warp.
  [[nodiscard]] __device__ std::uint64_t first_of_warp() const
  {
    return (std::uint64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32) * ids_per_warp;
  }
};

//! First launch; one CTA more takes the snapshot.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_count_kernel(__grid_constant__ release_params const p)
{
  __shared__ release_counts warps[32];
  wait_for_previous();
  if (blockIdx.x == p.num_ctas) {  // apart, so that no list waits for the counters
    if (threadIdx.x == 0) { *p.snapshot = take_snapshot(p.ring); }
    return;
  }
  std::uint64_t const size  = p.list.size();
  std::uint64_t const begin = p.first_of_warp();
  release_counts found{};
#pragma unroll 4
  for (std::uint32_t i = 0; i < p.ids_per_warp; i += 32) {
    std::uint64_t const id = begin + i + lane_index();
    bool const exists      = id < size;
    auto const outcome     = exists ? strike_off(p.ring, p.list.ids[id]) : release_outcome::foreign;
    std::uint32_t const back = found.add(exists, outcome);
    if (lane_index() == 0 && exists) { p.released[id / 32] = back; }
  }
  store_release_counts(found, warps, p.counts + blockIdx.x);
}

//! Second launch; the last CTA moves the tail and reports.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_write_kernel(__grid_constant__ release_params const p)
{
  __shared__ claim_shared shared;
  __shared__ std::uint32_t warps[32];
  std::uint32_t const lane = lane_index();
  std::uint32_t const warp = threadIdx.x / 32;
  wait_for_previous();
  ring_snapshot const snapshot = *p.snapshot;
  std::uint64_t const size     = p.list.size();
  // A warp has neighbouring ids, so that a prefix over warps keeps their order.
  std::uint64_t const begin     = p.first_of_warp();
  constexpr std::uint32_t chunk = 32 * 32;  // a word a lane
  auto const words_of           = [&](std::uint32_t first) {
    std::uint32_t const in_warp = first + lane * 32;
    bool const exists           = in_warp < p.ids_per_warp && begin + in_warp < size;
    return exists ? __ldcg(p.released + (begin + in_warp) / 32) : 0u;
  };
  std::uint32_t words   = words_of(0);
  std::uint32_t of_lane = static_cast<std::uint32_t>(__popc(words));
  for (std::uint32_t first = chunk; first < p.ids_per_warp; first += chunk) {
    of_lane += static_cast<std::uint32_t>(__popc(words_of(first)));
  }
  std::uint32_t const of_warp = __reduce_add_sync(all_lanes, of_lane);
  if (lane == 0) { warps[warp] = of_warp; }
  demand_before const sums = sum_demand_before(
    gridDim.x, blockIdx.x, shared, [&](std::uint32_t i) { return __ldcg(&p.counts[i].released); });
  std::uint64_t place = sums.before + warp_sum(lane < warp ? warps[lane] : 0u);
  for (std::uint32_t first = 0; first < p.ids_per_warp; first += chunk) {
    if (first > 0) { words = words_of(first); }
    std::uint32_t const in_chunk = min(chunk, p.ids_per_warp - first) / 32;
#pragma unroll 4
    for (std::uint32_t i = 0; i < in_chunk; ++i) {
      std::uint32_t const back = __shfl_sync(all_lanes, words, static_cast<int>(i));
      if ((back >> lane & 1u) != 0) {
        auto const ahead = static_cast<std::uint32_t>(__popc(back & ((1u << lane) - 1u)));
        p.ring.ids[cell_behind(snapshot.tail_cell, place + ahead, p.ring.capacity)] =
          p.list.ids[begin + first + i * 32 + lane];
      }
      place += static_cast<std::uint32_t>(__popc(back));
    }
  }
  if (blockIdx.x + 1 != gridDim.x) { return; }
  __syncthreads();  // all have read `shared`
  finish_release(p.ring, snapshot, sums.all, p.counts, p.num_ctas, p.report, shared);
}

//! How a list is shared out.
struct release_grid {
  std::uint32_t ctas         = 0;
  std::uint32_t ids_per_warp = 0;
};

//! Every CTA sums the counts of all: longer lists get longer shares, not more CTAs.
template <class Tuning = release_tuning_sm90>
[[nodiscard]] constexpr release_grid make_release_grid(std::uint64_t capacity) noexcept
{
  constexpr std::uint64_t warps = Tuning::threads / 32;
  std::uint64_t const per_warp  = round_up<std::uint64_t>(
    max_of<std::uint64_t>(ceil_div<std::uint64_t>(capacity, warps * Tuning::most_ctas), 1), 128);
  return {static_cast<std::uint32_t>(ceil_div<std::uint64_t>(capacity, warps * per_warp)),
          static_cast<std::uint32_t>(per_warp)};
}

}  // namespace detail

//! Scratch of a release of up to `capacity` pages.
[[nodiscard]] inline std::size_t release_workspace_bytes(std::uint64_t capacity)
{
  return sizeof(ring_snapshot) +
         detail::make_release_grid(capacity).ctas * sizeof(detail::release_counts) +
         detail::ceil_div<std::uint64_t>(capacity, 32) * sizeof(std::uint32_t);
}

//! Gives pages back, in their order; see host::release. In a checked ring ids that are no page, and
//! pages that are free already, are skipped and counted. Of two places that name one page in one call,
//! one is released and one is repeated; which of them is not said.
//! @param workspace    device memory, aligned to 16 bytes
//! @param[out] report  device memory, or null
//! @pre (unchecked)    each id was claimed and not yet released
//! @throws  invalid_argument for a missing ring or list, more ids than pages can be, or too small a
//!          workspace, before any launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(list.capacity)
inline void release(free_ring_ref const& ring, page_list const& list, void* workspace,
                    std::size_t workspace_bytes, release_report* report, cudaStream_t stream)
{
  using tuning = release_tuning_sm90;
  if (list.capacity == 0) {
    detail::clear_result(report, stream);
    return;
  }
  validate(ring);
  DIFFKV_EXPECTS(list.ids != nullptr, "list: ids must not be null");
  DIFFKV_EXPECTS(list.capacity <= max_pages, "list: " + std::to_string(list.capacity) +
                                               " ids are more than there can be pages");
  detail::expect_workspace(workspace, workspace_bytes, release_workspace_bytes(list.capacity));
  detail::release_grid const grid = detail::make_release_grid(list.capacity);
  auto* const snapshot            = static_cast<ring_snapshot*>(workspace);
  auto* const counts              = reinterpret_cast<detail::release_counts*>(snapshot + 1);
  auto* const released            = reinterpret_cast<std::uint32_t*>(counts + grid.ctas);
  detail::release_params const params{ring,     list,   report,  grid.ctas, grid.ids_per_warp,
                                      snapshot, counts, released};
  detail::launch(detail::release_count_kernel<tuning>,
                 {params.num_ctas + 1, tuning::threads, 0, true}, stream, params);
  detail::launch(detail::release_write_kernel<tuning>, {params.num_ctas, tuning::threads, 0, true},
                 stream, params);
}

}  // namespace diffkv
