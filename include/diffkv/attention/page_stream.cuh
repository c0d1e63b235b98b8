// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Copies of page parts into shared memory that run while a warp computes: bulk copies where the
//! architecture has them (sm_90 and later), 16-byte asynchronous copies elsewhere.
//! Read before this: attention/tensor_core.cuh.  Read next: attention/decode_tile.hpp.
#include <diffkv/attention/tensor_core.cuh>

#include <cstddef>

namespace diffkv::detail {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool has_bulk_copy = true;
#else
inline constexpr bool has_bulk_copy = false;
#endif

//! True in one lane of a whole warp, and the compiler knows that it is one: a copy that only this lane
//! asks for is one instruction, not a loop over the lanes that might.
//! @threads one warp
[[nodiscard]] __device__ inline bool is_elected([[maybe_unused]] int lane) noexcept
{
  std::uint32_t elected = 0;
  if constexpr (has_bulk_copy) {
    asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "elect.sync _|p, 0xFFFFFFFF;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(elected));
  } else {
    elected = lane == 0 ? 1u : 0u;
  }
  return elected != 0;
}

//! The slots of shared memory that one warp fills and empties in turn. Nothing here is shared with
//! other warps. Use: `init`; per copy `begin`, `copy` for each piece, `end`; `wait` in the same order.
//! @tparam Slots  copies under way at the same time, at most
template <int Slots>
struct page_stream {
  std::uint32_t barriers = 0;  //!< [Slots] 8 bytes each, shared memory
  std::uint32_t parities = 0;  //!< bit s: phase that slot s is waited for next
  //! What is copied leaves the L2 cache in its turn, not first. Pages are read once, and leave first; but
  //! then lines that a launch writes outlive them, and are written to memory while those behind it read.
  //! Of use with bulk copies.
  bool leaves_in_turn = false;

  //! @threads one warp; followed by __syncwarp
  __device__ void init(std::uint32_t barriers_of_warp, int lane) noexcept
  {
    barriers = barriers_of_warp;
    if constexpr (has_bulk_copy) {
      if (lane < Slots) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8u * lane)
                     : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }

  //! Says how much will come.  @threads one warp
  __device__ void begin(int slot, std::uint32_t bytes, int lane) const noexcept
  {
    if constexpr (has_bulk_copy) {
      if (is_elected(lane)) {
        asm volatile(
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barriers + 8u * slot),
          "r"(bytes)
          : "memory");
      }
    }
  }
  //! @param bytes  a multiple of 16; 0 copies nothing
  __device__ void copy(int slot, std::uint32_t to, std::byte const* from, std::uint32_t bytes,
                       int lane) const noexcept
  {
    if constexpr (has_bulk_copy) {
      if (bytes > 0 && is_elected(lane)) {
        std::uint64_t policy;
        if (leaves_in_turn) {
          asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
        } else {
          asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        }
        asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(to),
          "l"(from), "r"(bytes), "r"(barriers + 8u * slot), "l"(policy)
          : "memory");
      }
    } else {
      for (std::uint32_t b = 16u * lane; b < bytes; b += 512u) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + b), "l"(from + b)
                     : "memory");
      }
    }
  }
  //! Closes a copy. Where there is nothing left to copy it is called all the same.
  __device__ void end() const noexcept
  {
    if constexpr (!has_bulk_copy) { asm volatile("cp.async.commit_group;" ::: "memory"); }
  }

  //! Until the copy that was begun Slots calls of `end` ago, at the latest, is complete.
  //! @threads one warp
  __device__ void wait(int slot) noexcept
  {
    if constexpr (has_bulk_copy) {
      std::uint32_t const barrier = barriers + 8u * slot;
      std::uint32_t const parity  = parities >> slot & 1u;
      std::uint32_t complete      = 0;
      do {
        asm volatile(
          "{\n\t.reg .pred p;\n\t"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(complete)
          : "r"(barrier), "r"(parity)
          : "memory");
      } while (complete == 0);
      parities ^= 1u << slot;
    } else {
      asm volatile("cp.async.wait_group %0;" ::"n"(Slots - 1) : "memory");
      __syncwarp();
    }
  }
};

}  // namespace diffkv::detail
