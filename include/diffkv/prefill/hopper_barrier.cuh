// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the warps of a Hopper kernel wait for each other and for copies: barriers in shared memory,
//! barriers of the hardware, and registers that move from one warpgroup to another.
//! Read before this: prefill/prefill_importance.cuh.  Read next: prefill/hopper_cta.cuh.
//!
//! Code that needs sm_90a stands behind DIFFKV_HAS_WARPGROUP_PRODUCTS: only a program compiled for
//! it, and not for sm_90, has it.
#include <diffkv/detail/config.hpp>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DIFFKV_HAS_WARPGROUP_PRODUCTS 1
#else
#define DIFFKV_HAS_WARPGROUP_PRODUCTS 0
#endif

namespace diffkv::detail {

//! Shared memory of the one CTA on a multiprocessor: static for barriers and the like, the rest dynamic.
inline constexpr std::uint32_t most_static_bytes  = 256;
inline constexpr std::uint32_t most_dynamic_bytes = 227 * 1024 - most_static_bytes;

inline constexpr int warpgroup_threads = 128;

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! A barrier in shared memory (mbarrier), by its address. A phase ends when all have arrived and
//! all announced bytes have been copied; phases are waited for by their parity, the first one's
//! is 0.
struct phase_barrier {
  std::uint32_t address;

  __device__ void init(std::uint32_t arrivals) const noexcept
  {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() const noexcept
  {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  //! Arrives, and lets the phase wait for so many bytes of copies.
  __device__ void arrive_expecting(std::uint32_t bytes) const noexcept
  {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
  }
  [[nodiscard]] __device__ bool has_ended(std::uint32_t parity) const noexcept
  {
    std::uint32_t ended;
    asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(address), "r"(parity)
      : "memory");
    return ended != 0;
  }
  __device__ void wait(std::uint32_t parity) const noexcept
  {
    while (!has_ended(parity)) {}
  }
};

//! Makes the first state of barriers visible to copies.
__device__ inline void publish_barriers() noexcept
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

//! `Stages` places of a ring in shared memory: for each a barrier that says it is full and one
//! that says it is free. Lies in shared memory.
template <int Stages>
struct stage_barriers {
  std::uint64_t full_[Stages];
  std::uint64_t free_[Stages];

  __device__ void init(std::uint32_t producers, std::uint32_t consumers) noexcept
  {
    for (int s = 0; s < Stages; ++s) {
      full(s).init(producers);
      free(s).init(consumers);
    }
  }
  [[nodiscard]] __device__ phase_barrier full(int stage) const noexcept
  {
    return {static_cast<std::uint32_t>(__cvta_generic_to_shared(full_ + stage))};
  }
  [[nodiscard]] __device__ phase_barrier free(int stage) const noexcept
  {
    return {static_cast<std::uint32_t>(__cvta_generic_to_shared(free_ + stage))};
  }
};

//! Where somebody stands in a ring; the parity changes with each turn. Who fills waits for
//! `free(stage)` with `parity ^ 1`, so that the first turn does not wait.
template <int Stages>
struct stage_cursor {
  int stage            = 0;
  std::uint32_t parity = 0;

  __device__ void advance() noexcept
  {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

//! Waits at a barrier of the hardware until `threads` have come or arrived there.
__device__ inline void wait_at(int barrier, int threads) noexcept
{
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_at(int barrier, int threads) noexcept
{
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
//! Waits likewise; whether `mine` is true for one of the threads.
[[nodiscard]] __device__ inline bool any_at(int barrier, int threads, bool mine) noexcept
{
  std::uint32_t any;
  asm volatile(
    "{\n .reg .pred p, q;\n"
    " setp.ne.u32 p, %3, 0;\n"
    " barrier.cta.red.or.pred.aligned q, %1, %2, p;\n"
    " selp.u32 %0, 1, 0, q;\n}"
    : "=r"(any)
    : "r"(barrier), "r"(threads), "r"(mine ? 1u : 0u)
    : "memory");
  return any != 0;
}

//! The registers of each thread of the warpgroup become `Registers`. What all warpgroups have
//! together must not exceed what the launch gave them.
template <int Registers>
__device__ void take_registers() noexcept
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ void give_registers() noexcept
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

}  // namespace diffkv::detail
