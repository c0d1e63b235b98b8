// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Tiles of vectors, copied into shared memory by the copy engine of Hopper GPUs (TMA).
//! Read before this: prefill/hopper_barrier.cuh, core/vectors.hpp.
//! Read next: prefill/warpgroup_product.cuh.
#include <diffkv/core/vectors.hpp>
#include <diffkv/prefill/hopper_barrier.cuh>

#include <cuda.h>          // CUtensorMap
#include <cuda_runtime.h>  // cudaGetDriverEntryPointByVersion

#include <cstdint>
#include <type_traits>  // is_same_v

namespace diffkv::detail {

//! The driver's function that makes tensor maps, so that nobody has to link libcuda; null if the
//! driver has none.
[[nodiscard]] inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() noexcept
{
  static decltype(&cuTensorMapEncodeTiled) const encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaError_t const status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &found);
    bool const is_there      = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
    if (status != cudaSuccess) { static_cast<void>(cudaGetLastError()); }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(is_there ? function : nullptr);
  }();
  return encoder;
}

//! Vectors of a batch as the copy engine sees them: tiles of `rows` tokens of one head, every
//! `step`-th token, laid out as a swizzled_tile. Tokens that are not there become zeros.
struct token_map {
  CUtensorMap map;
  std::int32_t step;
  std::int32_t shift;  //!< tokens in front of the first one that are counted, but not there

  //! @param tokens, heads  of `from`
  //! @return whether the copy engine can do it; from 2^40 bytes between tokens on it cannot
  template <int HeadDim, class T>
  [[nodiscard]] static bool make(token_map& to, vectors<T const> const& from, std::int64_t tokens,
                                 std::uint32_t heads, int rows, std::int32_t step) noexcept
  {
    static_assert(HeadDim % 64 == 0 && sizeof(T) == 2);
    if (tensor_map_encoder() == nullptr || tokens >= 0x7FFF'0000 - step) { return false; }
    // Counted so that the last one ends a group of `step` tokens: no group reaches beyond it.
    auto const shift       = static_cast<std::int32_t>((step - tokens % step) % step);
    auto const token_bytes = std::int64_t{from.token_stride} * 2;
    auto const head_bytes  = heads > 1 ? std::int64_t{from.head_stride} * 2 : 2 * HeadDim;
    if (token_bytes < 0 || head_bytes < 0) { return false; }
    auto const* const base =
      reinterpret_cast<unsigned char const*>(from.data) - shift * token_bytes;
    // Elements, tokens of equal remainder, blocks of 64 elements, heads, remainders.
    cuuint64_t const extents[5] = {64, static_cast<cuuint64_t>((tokens + shift) / step),
                                   HeadDim / 64, heads, static_cast<cuuint64_t>(step)};
    cuuint64_t const strides[4] = {static_cast<cuuint64_t>(token_bytes) * extents[4], 128,
                                   static_cast<cuuint64_t>(head_bytes),
                                   static_cast<cuuint64_t>(token_bytes)};
    cuuint32_t const box[5]     = {64, static_cast<cuuint32_t>(rows), HeadDim / 64, 1, 1};
    cuuint32_t const every[5]   = {1, 1, 1, 1, 1};
    to.step                     = step;
    to.shift                    = shift;
    return tensor_map_encoder()(&to.map,
                                std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                step > 1 ? 5 : 4, const_cast<unsigned char*>(base), extents,
                                strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

#if DIFFKV_HAS_WARPGROUP_PRODUCTS
  //! Starts to copy the tile whose first row is `token`; `arrival` hears of its bytes.
  //! @pre step == 1; `token` may be negative
  //! @threads one
  __device__ void copy(std::uint32_t to, phase_barrier arrival, std::int32_t token,
                       std::uint32_t head) const noexcept
  {
    asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %3, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(arrival.address), "r"(0), "r"(token), "r"(head)
      : "memory");
  }
  //! The same with every step-th token from `token` on.  @pre token >= 0
  __device__ void copy_sampled(std::uint32_t to, phase_barrier arrival, std::int32_t token,
                               std::uint32_t head) const noexcept
  {
    if (step == 1) { return copy(to, arrival, token, head); }
    asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(arrival.address), "r"(0), "r"((token + shift) / step), "r"(head),
      "r"((token + shift) % step)
      : "memory");
  }
#endif
};

}  // namespace diffkv::detail
