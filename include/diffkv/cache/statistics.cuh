// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Statistics that a scheduler reads a step late, without stalling the stream.
//! Read before this: cache/sequence_usage.hpp, core/launch.cuh.  Read next: cache/device_kv_cache.cuh.
#include <diffkv/cache/sequence_usage.hpp>
#include <diffkv/core/launch.cuh>

namespace diffkv {

//! Where statistics go. Memory that the device can write: device memory, or pinned host memory.
struct statistics_ref {
  std::uint64_t* free_pages = nullptr;  //!< one number, or null
  sequence_usage* sequences = nullptr;  //!< [num_slots], or null
};

namespace detail {

struct statistics_tuning {
  static constexpr unsigned threads = 256;
};

//! One CTA per slot.
template <class Tuning>
DIFFKV_KERNEL void __launch_bounds__(Tuning::threads)
  statistics_kernel(__grid_constant__ cache_ref const cache, statistics_ref out)
{
  __shared__ std::uint64_t sums[3];
  std::uint32_t const slot = blockIdx.x;
  if (threadIdx.x < 3) { sums[threadIdx.x] = 0; }
  __syncthreads();
  unsigned high = 0, low = 0, pages = 0;
  std::size_t const first = cache.shape.row(slot, 0, 0);
  for (std::uint32_t r = threadIdx.x; r < cache.shape.rows_per_slot(); r += Tuning::threads) {
    row_state const& row = cache.state.rows[first + r];
    high += row.tokens.high;
    low += row.tokens.low;
    pages += row.pages.sum();
  }
  // Sums of whole numbers: any order gives the same.
  using counter = unsigned long long;
  atomicAdd(reinterpret_cast<counter*>(&sums[0]), counter{high});
  atomicAdd(reinterpret_cast<counter*>(&sums[1]), counter{low});
  atomicAdd(reinterpret_cast<counter*>(&sums[2]), counter{pages});
  __syncthreads();
  if (threadIdx.x != 0) { return; }
  if (out.sequences != nullptr) {
    out.sequences[slot] = usage_from(cache, slot, sums[0], sums[1], sums[2]);
  }
  if (slot == 0 && out.free_pages != nullptr) { *out.free_pages = cache.ring.num_free(); }
}

}  // namespace detail

//! Writes free pages and what each slot holds, as the stream finds them.
//! @throws cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   O(rows)
inline void collect_statistics(cache_ref const& cache, statistics_ref out, cudaStream_t stream)
{
  using tuning = detail::statistics_tuning;
  detail::launch(detail::statistics_kernel<tuning>, {cache.shape.num_slots, tuning::threads},
                 stream, cache, out);
}

}  // namespace diffkv
