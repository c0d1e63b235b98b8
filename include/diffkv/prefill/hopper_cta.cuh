// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the Hopper kernels have in common: one warpgroup copies, the others compute and take turns.
//! Read before this: prefill/hopper_barrier.cuh.  Read next: prefill/tensor_map.cuh.
#include <diffkv/attention/tensor_core.cuh>  // shared_address
#include <diffkv/core/launch.cuh>            // wait_for_previous
#include <diffkv/prefill/hopper_barrier.cuh>

#include <cstddef>  // byte

namespace diffkv::detail {

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! The turns of the warpgroups that compute, at barriers 1 .. Warpgroups of the hardware. The last one
//! passes the turn before the first product, so that the first one begins.
template <int Warpgroups>
struct warpgroup_turns {
  __device__ static void take(int i) noexcept { wait_at(1 + i, 2 * warpgroup_threads); }
  __device__ static void pass(int i) noexcept
  {
    arrive_at(1 + (i + 1) % Warpgroups, 2 * warpgroup_threads);
  }
};

//! Arrives for this warp.  @threads one warp
__device__ inline void release(phase_barrier const& barrier) noexcept
{
  if (threadIdx.x % 32 == 0) { barrier.arrive(); }
}

//! The body of a kernel: shared memory, barriers, registers, and who does what.
//! @tparam Cta  has `tuning`, `exchange` (in static shared memory) and its `init`, `copy_all` of the warpgroup
//!              that copies, and `compute_all` of the i-th of the others
template <class Cta, class Params>
__device__ void run_warpgroups(Params const& p) noexcept
{
  using tuning = typename Cta::tuning;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ typename Cta::exchange exchange;
  if (threadIdx.x == 0) { Cta::init(exchange); }
  __syncthreads();
  wait_for_previous();
  Cta const work{p, exchange, (shared_address(shared) + 1023) / 1024 * 1024};
  // The same in all lanes, and known to be: what follows from it needs no register of each lane.
  int const warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (warpgroup == 0) {
    give_registers<tuning::copying_registers>();
    work.copy_all();
  } else {
    take_registers<tuning::computing_registers>();
    work.compute_all(warpgroup - 1);
  }
}

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

}  // namespace diffkv::detail
