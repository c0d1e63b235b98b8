// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The end of requests on the device: all pages of many sequences go back to the ring.
//! Read before this: compaction/reset_slot.cuh, pool/release.cuh.  Read next: compaction/admit.cuh.
#include <diffkv/compaction/reset_slot.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/release.cuh>

namespace diffkv {

namespace detail {

struct release_slots_params {
  cache_ref cache;
  batch_ref batch;
  release_report* report;
  slot_parts parts;
  ring_snapshot* snapshot;
  release_counts* counts;    //!< [parts.grid]
  std::uint32_t* row_pages;  //!< [batch.capacity, rows_per_slot] pages that go back
};

//! The rows of one CTA; none, if its sequence is not in the batch or names no slot.
struct slot_part {
  std::uint32_t slot;
  std::uint32_t first;     //!< row in the slot
  std::uint32_t rows;      //!< how many
  std::size_t in_scratch;  //!< index of the first in per-row scratch
};

[[nodiscard]] __device__ inline slot_part part_of_batch(cache_ref const& cache,
                                                        batch_ref const& batch,
                                                        slot_parts const& parts)
{
  std::uint32_t const s        = blockIdx.x / parts.per_slot;
  std::uint32_t const first    = blockIdx.x % parts.per_slot * parts.rows;
  std::uint32_t const per_slot = cache.shape.rows_per_slot();
  if (s >= batch.size()) { return {}; }
  std::uint32_t const slot = batch.slots[s];
  if (slot >= cache.shape.num_slots) { return {}; }
  return {slot, first, min(parts.rows, per_slot - first), std::size_t{s} * per_slot + first};
}

//! A row's entry by its place in the order of release: high pages, then low ones.
[[nodiscard]] __device__ inline page_id& entry_in_order(cache_ref const& cache, std::size_t row,
                                                        tier_counts pages, std::uint32_t i)
{
  return i < pages.high ? cache.table.entry(row, tier::high, i)
                        : cache.table.entry(row, tier::low, i - pages.high);
}

//! First launch: what goes back. In a checked ring pages are struck off the record here, and entries
//! that do not go back are cleared. One CTA more takes the snapshot.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_slots_count_kernel(__grid_constant__ release_slots_params const p)
{
  __shared__ release_counts warps[32];
  wait_for_previous();
  if (blockIdx.x == p.parts.grid) {
    if (threadIdx.x == 0) { *p.snapshot = take_snapshot(p.cache.ring); }
    return;
  }
  slot_part const part        = part_of_batch(p.cache, p.batch, p.parts);
  std::size_t const first_row = p.cache.shape.row(part.slot, 0, 0) + part.first;
  release_counts found{};
  if (p.cache.ring.is_checked()) {
    for (std::uint32_t r = threadIdx.x / 32; r < part.rows; r += Tuning::warps) {
      tier_counts const pages    = p.cache.state.rows[first_row + r].pages;
      std::uint32_t const before = found.released;
      for (std::uint32_t i = lane_index(); i - lane_index() < pages.sum(); i += 32) {
        bool const exists = i < pages.sum();
        auto outcome      = release_outcome::foreign;
        if (exists) {
          page_id& entry = entry_in_order(p.cache, first_row + r, pages, i);
          outcome        = strike_off(p.cache.ring, entry);
          if (outcome != release_outcome::released) { entry = no_page; }
        }
        static_cast<void>(found.add(exists, outcome));
      }
      if (lane_index() == 0) { p.row_pages[part.in_scratch + r] = found.released - before; }
    }
  } else {
    std::uint32_t pages = 0;  // at most one row a thread
    if (threadIdx.x < part.rows) {
      pages = p.cache.state.rows[first_row + threadIdx.x].pages.sum();
      p.row_pages[part.in_scratch + threadIdx.x] = pages;
    }
    found.released = __reduce_add_sync(all_lanes, pages);
  }
  store_release_counts(found, warps, p.counts + blockIdx.x);
}

//! Up to 128 pages of a row, four a lane: loads in flight together.
struct row_pages {
  static constexpr std::uint32_t per_lane = 4;
  static constexpr std::uint32_t count    = 32 * per_lane;
  page_id ids[per_lane];

  //! @threads one warp
  __device__ void load(cache_ref const& cache, std::size_t row, tier_counts pages,
                       std::uint32_t first)
  {
#pragma unroll
    for (std::uint32_t k = 0; k < per_lane; ++k) {
      std::uint32_t const i = first + k * 32 + lane_index();
      ids[k]                = i < pages.sum() ? entry_in_order(cache, row, pages, i) : no_page;
    }
  }
  //! Copies them to the ring and clears their entries.
  //! @param cell     the ring's cell for the first of the row that goes back
  //! @param written  how many of the row are there already; counted on
  //! @threads one warp
  __device__ void write_back(cache_ref const& cache, std::size_t row, tier_counts pages,
                             std::uint32_t first, std::uint32_t cell, std::uint32_t& written) const
  {
    std::uint32_t const lane = lane_index();
#pragma unroll
    for (std::uint32_t k = 0; k < per_lane; ++k) {
      std::uint32_t const i = first + k * 32 + lane;
      bool const exists     = i < pages.sum();
      bool const goes_back  = exists && (ids[k] != no_page || !cache.ring.is_checked());
      unsigned const lanes  = __ballot_sync(all_lanes, goes_back);
      if (goes_back) {
        auto const ahead = static_cast<std::uint32_t>(__popc(lanes & ((1u << lane) - 1u)));
        cache.ring.ids[cell_behind(cell, written + ahead, cache.ring.capacity)] = ids[k];
      }
      if (exists) { entry_in_order(cache, row, pages, i) = no_page; }
      written += static_cast<std::uint32_t>(__popc(lanes));
    }
  }
};

//! Second launch: pages go back in the order of sequences, rows, tiers; the state is that of free
//! slots. The last CTA moves the tail and reports.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  release_slots_write_kernel(__grid_constant__ release_slots_params const p)
{
  __shared__ claim_shared shared;
  __shared__ std::uint32_t warp_pages[Tuning::warps];
  __shared__ std::uint32_t before_row[Tuning::most_rows];  // in its warp's 32 rows
  __shared__ tier_counts held[Tuning::most_rows];
  std::uint32_t const warp = threadIdx.x / 32;
  wait_for_previous();
  ring_snapshot const snapshot = *p.snapshot;
  slot_part const part         = part_of_batch(p.cache, p.batch, p.parts);
  std::size_t const first_row  = p.cache.shape.row(part.slot, 0, 0) + part.first;
  std::uint32_t pages          = 0;
  if (threadIdx.x < part.rows) {
    pages             = __ldcg(p.row_pages + part.in_scratch + threadIdx.x);
    held[threadIdx.x] = p.cache.state.rows[first_row + threadIdx.x].pages;
  }
  std::uint32_t const inclusive = warp_inclusive_sum(pages);
  before_row[threadIdx.x]       = inclusive - pages;
  if (lane_index() == 31) { warp_pages[warp] = inclusive; }
  demand_before const sums = sum_demand_before(
    gridDim.x, blockIdx.x, shared, [&](std::uint32_t i) { return __ldcg(&p.counts[i].released); });

  row_pages ids;
  if (warp < part.rows) { ids.load(p.cache, first_row + warp, held[warp], 0); }
  for (std::uint32_t r = warp; r < part.rows; r += Tuning::warps) {
    row_pages next;  // on its way while this row is written
    std::uint32_t const following = r + Tuning::warps;
    if (following < part.rows) { next.load(p.cache, first_row + following, held[following], 0); }
    std::uint32_t before = before_row[r];
    for (std::uint32_t w = 0; w < r / 32; ++w) { before += warp_pages[w]; }
    std::uint32_t const cell =
      cell_behind(snapshot.tail_cell, sums.before + before, p.cache.ring.capacity);
    std::uint32_t written = 0;
    ids.write_back(p.cache, first_row + r, held[r], 0, cell, written);
    for (std::uint32_t i = row_pages::count; i < held[r].sum(); i += row_pages::count) {
      ids.load(p.cache, first_row + r, held[r], i);
      ids.write_back(p.cache, first_row + r, held[r], i, cell, written);
    }
    reset_row(p.cache, first_row + r, 0);
    ids = next;
  }
  if (part.rows > 0 && part.first == 0) { set_layers(p.cache, part.slot, layer_state{}); }
  if (blockIdx.x + 1 != gridDim.x) { return; }
  __syncthreads();  // all have read `shared`
  finish_release(p.cache.ring, snapshot, sums.all, p.counts, gridDim.x, p.report, shared);
}

}  // namespace detail

//! Scratch of `release_slots` for batches of up to `capacity` sequences. It keeps nothing between calls.
[[nodiscard]] inline std::size_t release_slots_workspace_bytes(cache_shape const& shape,
                                                               std::uint32_t capacity)
{
  std::size_t const rows = std::size_t{capacity} * shape.rows_per_slot();
  return sizeof(ring_snapshot) +
         detail::make_slot_parts(shape, capacity).grid * sizeof(detail::release_counts) +
         rows * sizeof(std::uint32_t);
}

//! Gives back all pages of the batch's sequences and forgets them: equals host::release_slots, order of
//! pages included. Free slots, and numbers that are no slot, are no error.
//! @param batch        different slots (device memory: not checked)
//! @param workspace    device memory, aligned to 16 bytes
//! @param[out] report  device memory, or null; only checked rings look for mistakes
//! @throws  invalid_argument for a batch without slots or too small a workspace, before any launch;
//!          cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost    O(rows + pages)
inline void release_slots(cache_ref const& cache, batch_ref const& batch, void* workspace,
                          std::size_t workspace_bytes, release_report* report, cudaStream_t stream)
{
  using tuning = slot_tuning_sm90;
  if (batch.capacity == 0) {
    detail::clear_result(report, stream);
    return;
  }
  DIFFKV_EXPECTS(batch.slots != nullptr, "batch: slots must not be null");
  detail::expect_workspace(workspace, workspace_bytes,
                           release_slots_workspace_bytes(cache.shape, batch.capacity));
  detail::slot_parts const parts = detail::make_slot_parts(cache.shape, batch.capacity);
  auto* const snapshot           = static_cast<ring_snapshot*>(workspace);
  auto* const counts             = reinterpret_cast<detail::release_counts*>(snapshot + 1);
  auto* const row_pages          = reinterpret_cast<std::uint32_t*>(counts + parts.grid);
  detail::release_slots_params const params{cache,    batch,  report,   parts,
                                            snapshot, counts, row_pages};
  detail::launch(detail::release_slots_count_kernel<tuning>,
                 {parts.grid + 1, tuning::threads, 0, true}, stream, params);
  detail::launch(detail::release_slots_write_kernel<tuning>, {parts.grid, tuning::threads, 0, true},
                 stream, params);
}

}  // namespace diffkv
