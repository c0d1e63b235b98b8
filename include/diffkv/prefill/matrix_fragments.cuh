// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! 16-bit matrices: copies into shared memory, fragments out of it, products.
//! Read before this: prefill/prefill_part.cuh, attention/tensor_core.cuh.
//! Read next: prefill/prefill_tile.cuh.
#include <diffkv/attention/tensor_core.cuh>  // mma_f16, f16_pair, bits_of
#include <diffkv/core/half.hpp>

#include <type_traits>  // is_same_v

namespace diffkv::detail {

template <class T>
inline constexpr bool is_16_bit_v = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

//! d += A B over 16 elements of type T.
template <class T>
__device__ void mma_16_bit(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) noexcept
{
  static_assert(is_16_bit_v<T>, "T must be __half or __nv_bfloat16");
  if constexpr (std::is_same_v<T, __half>) {
    mma_f16(d, a, b0, b1);
  } else {
    asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

//! Four matrices of 8 x 8 elements. Lane l gives the address of row l % 8 of matrix l / 8; of each
//! it gets row g, columns 2 t and 2 t + 1.
__device__ inline void load_matrices(std::uint32_t (&w)[4], std::uint32_t row) noexcept
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(row)
               : "memory");
}
//! The same, of each matrix column g, rows 2 t and 2 t + 1.
__device__ inline void load_matrices_transposed(std::uint32_t (&w)[4], std::uint32_t row) noexcept
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(row)
               : "memory");
}

//! Starts a copy of 16 bytes to shared memory; of zeros, if there is nothing to copy.
__device__ inline void start_copy_16(std::uint32_t to, void const* from, bool is_there) noexcept
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
//! The same with 4 bytes.
__device__ inline void start_copy_4(std::uint32_t to, void const* from, bool is_there) noexcept
{
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 4 : 0)
               : "memory");
}
//! Waits for the copies that this thread has started.
__device__ inline void wait_for_copies() noexcept
{
  asm volatile("cp.async.wait_all;" ::: "memory");
}

//! Two elements in one word, the first one low.
template <class T>
[[nodiscard]] __device__ std::uint32_t pack_pair(float first, float second) noexcept
{
  if constexpr (std::is_same_v<T, __half>) {
    return bits_of(__floats2half2_rn(first, second));
  } else {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
  }
}
template <class T>
[[nodiscard]] __device__ float2 unpack_pair(std::uint32_t word) noexcept
{
  if constexpr (std::is_same_v<T, __half>) {
    return f16_pair(word);
  } else {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF'0000u)};
  }
}
//! Whether one of two elements is no finite number.
template <class T>
[[nodiscard]] __device__ bool has_non_finite(std::uint32_t word) noexcept
{
  constexpr std::uint32_t exponent = std::is_same_v<T, __half> ? 0x7C00u : 0x7F80u;
  return (word & exponent) == exponent || (word >> 16 & exponent) == exponent;
}

//! to[0], to[1] := first, second.  @pre `to` is aligned to two elements
template <class T>
__device__ void store_pair(T* to, float first, float second) noexcept
{
  if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float2*>(to) = float2{first, second};
  } else {
    *reinterpret_cast<std::uint32_t*>(to) = pack_pair<T>(first, second);
  }
}

}  // namespace diffkv::detail
