// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The tensor-core products and the fast functions that attention is made of.
//! Read before this: attention/decode_plan.cuh.  Read next: attention/page_stream.cuh.
//!
//! Fragments, with lane = 4 g + t: of A (16 rows) a lane holds rows g and g + 8, of B (8 columns)
//! column g, of the result rows g and g + 8 of the columns 2 t and 2 t + 1.
#include <diffkv/detail/arithmetic.hpp>  // reciprocal
#include <diffkv/quant/group_coder.cuh>  // as_half2

#include <cuda_fp16.h>

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "diffkv: attention needs compute capability 8.0 or later, e.g. nvcc -arch=sm_80"
#endif

namespace diffkv::detail {

//! Where a lane stands in fragments.
struct fragment_lane {
  int lane;
  int g;
  int t;

  [[nodiscard]] static __device__ fragment_lane of_thread() noexcept
  {
    int const lane = static_cast<int>(threadIdx.x % 32);
    return {lane, lane / 4, lane % 4};
  }
};

//! d += A B over 32 elements: A unsigned codes, B signed.
__device__ inline void mma_u8_s8(int (&d)[4], std::uint32_t const (&a)[4],
                                 std::uint32_t const (&b)[2]) noexcept
{
  asm(
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
    "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
//! d += A B over 32 elements, both unsigned.
__device__ inline void mma_u8_u8(int (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                 std::uint32_t b1) noexcept
{
  asm(
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
    "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
//! The same over 16 elements.
__device__ inline void mma_u8_u8(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                 std::uint32_t b) noexcept
{
  asm(
    "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 "
    "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
    : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
    : "r"(a0), "r"(a1), "r"(b));
}
//! d += A B over 16 elements, f16.
__device__ inline void mma_f16(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                               std::uint32_t b1) noexcept
{
  asm(
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//! 2^x.  @error 2 ulp; results below the least normal number are 0
[[nodiscard]] __device__ inline float fast_exp2(float x) noexcept
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//! log2(x); -inf for 0.  @error 2^-22, absolute in (0.5, 2), else relative
//! @source PTX ISA, lg2.approx.ftz
[[nodiscard]] __device__ inline float fast_log2(float x) noexcept
{
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
//! The greater one; NaN if one of them is NaN.
[[nodiscard]] __device__ inline float max_or_nan(float a, float b) noexcept
{
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}
[[nodiscard]] __device__ inline std::uint32_t bits_of(__half2 h) noexcept
{
  return *reinterpret_cast<std::uint32_t const*>(&h);
}
//! (scale, zero) or any other pair of f16.
[[nodiscard]] __device__ inline float2 f16_pair(std::uint32_t bits) noexcept
{
  return __half22float2(as_half2(bits));
}

//! Nobody needs it, but it is not left out.
__device__ inline void keep(std::uint32_t word) noexcept { asm volatile("" ::"r"(word)); }

//! Words of shared memory by their 32-bit address.
[[nodiscard]] __device__ inline std::uint32_t shared_address(void const* p) noexcept
{
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
//! The same word, not computed again wherever it is used: of the thread's index, that takes a slow special
//! register.
[[nodiscard]] __device__ inline std::uint32_t kept(std::uint32_t word) noexcept
{
  asm volatile("" : "+r"(word));
  return word;
}
[[nodiscard]] __device__ inline std::uint32_t kept_shared_address(void const* p) noexcept
{
  return kept(shared_address(p));
}
__device__ inline void load_shared(std::uint32_t (&w)[4], std::uint32_t address) noexcept
{
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(address));
}
__device__ inline void load_shared(std::uint32_t (&w)[2], std::uint32_t address) noexcept
{
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(address));
}
[[nodiscard]] __device__ inline std::uint32_t load_shared(std::uint32_t address) noexcept
{
  std::uint32_t w;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(address));
  return w;
}

//! A lane's words of one block in shared memory (page/fragment_order.hpp): full units of four, then
//! what is left.
template <int Words>
__device__ void load_fragment(std::uint32_t (&w)[Words], std::uint32_t block, int lane) noexcept
{
  constexpr int in_full_units = Words / 4 * 4;
  constexpr int rest          = Words - in_full_units;
#pragma unroll
  for (int u = 0; u < in_full_units; u += 4) {
    std::uint32_t four[4];
    load_shared(four, block + static_cast<std::uint32_t>(u * 128 + lane * 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) { w[u + i] = four[i]; }
  }
  std::uint32_t const tail =
    block + static_cast<std::uint32_t>(in_full_units * 128 + lane * rest * 4);
  if constexpr (rest == 2) {
    std::uint32_t two[2];
    load_shared(two, tail);
    w[in_full_units]     = two[0];
    w[in_full_units + 1] = two[1];
  } else {
#pragma unroll
    for (int i = 0; i < rest; ++i) {
      w[in_full_units + i] = load_shared(tail + static_cast<std::uint32_t>(4 * i));
    }
  }
}

}  // namespace diffkv::detail
