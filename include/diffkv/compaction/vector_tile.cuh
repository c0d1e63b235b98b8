// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The vectors of 16 tokens on their way: a warp fetches them into shared memory as they are, while it
//! encodes those that came before.
//! Read before this: page/block_rows.cuh.  Read next: compaction/lane_elements.cuh.
#include <diffkv/page/fragment_order.hpp>  // block_tokens

#include <cuda_pipeline_primitives.h>

#include <cstddef>  // byte

namespace diffkv::detail {

//! @tparam T  float, __half or __nv_bfloat16
template <class T, int HeadDim>
struct vector_tile {
  static constexpr int row_bytes = HeadDim * static_cast<int>(sizeof(T));
  static constexpr int units     = row_bytes / 16;  //!< of 16 bytes
  static_assert(row_bytes % 32 == 0, "HeadDim must be a multiple of 16");
  //! Rows begin in different banks: lanes that read the same unit of eight rows do not meet.
  static constexpr int stride = units % 2 == 1 ? row_bytes : row_bytes + 16;
  static constexpr int bytes  = block_tokens * stride;

  std::byte* shared;  //!< `bytes` of this warp alone, aligned to 16

  //! The vector of another lane.  @threads one warp
  template <class Source>
  [[nodiscard]] static __device__ Source const* vector_of(Source const* mine, int place) noexcept
  {
    return reinterpret_cast<Source const*>(
      __shfl_sync(0xFFFF'FFFFu, reinterpret_cast<unsigned long long>(mine), place));
  }
  [[nodiscard]] __device__ T* row(int token) const noexcept
  {
    return reinterpret_cast<T*>(shared + token * stride);
  }

  //! Begins to fetch. Nobody reads the tile until `wait_for_tile`.
  //! @param mine   vector of the (lane mod 16)-th token
  //! @param whole  vectors may be read 16 bytes at a time
  //! @threads one warp
  __device__ __forceinline__ void fetch(T const* mine, bool whole, int lane) const noexcept
  {
    __syncwarp();  // what lay here has been read
    if (__builtin_expect(whole, 1) != 0) {
      // Eight lanes read a line of 128 bytes where rows consist of such.
      constexpr int lanes = units % 8 == 0 ? 8 : units % 4 == 0 ? 4 : 2;
      constexpr int rows  = 32 / lanes;
#pragma unroll
      for (int r = 0; r < block_tokens; r += rows) {
        int const place  = r + lane / lanes;
        auto const* from = reinterpret_cast<uint4 const*>(vector_of(mine, place)) + lane % lanes;
        auto* const to   = reinterpret_cast<uint4*>(shared + place * stride) + lane % lanes;
#pragma unroll
        for (int u = 0; u < units; u += lanes) { __pipeline_memcpy_async(to + u, from + u, 16); }
      }
    } else {
#pragma unroll 1
      for (int place = 0; place < block_tokens; ++place) {
        T const* const from = vector_of(mine, place);
        T* const to         = row(place);
#pragma unroll 4
        for (int d = lane; d < HeadDim; d += 32) { to[d] = from[d]; }
      }
    }
    __pipeline_commit();
  }
};

//! Waits for all that this warp has begun to fetch.  @threads one warp
__device__ inline void wait_for_tile() noexcept
{
  __pipeline_wait_prior(0);
  __syncwarp();
}

}  // namespace diffkv::detail
