// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Single rounded f32 operations that no compiler flag contracts, reorders or approximates, so that
//! host and device compute the same codes bit for bit.
#include <diffkv/detail/config.hpp>  // DIFFKV_HOST_DEVICE

#include <cmath>    // fmaf, nearbyint
#include <cstdint>  // uint32_t
#include <cstring>  // memcpy
#include <limits>   // infinity

namespace diffkv::detail {

inline constexpr float infinity     = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

//! A value that the optimiser cannot look through: what was rounded stays rounded, also where the
//! compiler may contract a product and a sum into one fma (-march=native does so by default).
inline float opaque(float x) noexcept
{
#if defined(__GNUC__) && defined(__x86_64__)
  __asm__("" : "+x"(x));
  return x;
#elif defined(__GNUC__) && defined(__aarch64__)
  __asm__("" : "+w"(x));
  return x;
#else
  float volatile kept = x;
  return kept;
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float add_rn(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float sub_rn(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float mul_rn(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float div_rn(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float fma_rn(float a, float b, float c) noexcept
{
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fmaf(a, b, c);
#endif
}

//! a / b rounded, where b has at most 11 significant bits and lies within 1 .. 65504: on the device
//! without the branches of a division. quant/group_coder.cuh says why the result is the same.
//! @error  none where the quotient is a normal number, else within the least normal one
[[nodiscard]] DIFFKV_HOST_DEVICE inline float div_by_short(float a, float b) noexcept
{
#if defined(__CUDA_ARCH__)
  float const inverse  = 1.0f / b;
  float const estimate = __fmul_rn(a, inverse);
  return __fmaf_rn(__fmaf_rn(-estimate, b, a), inverse, estimate);
#else
  return a / b;
#endif
}

#if defined(__CUDACC__)
//! 1 / x within one unit in the last place; 0 gives Inf, NaN gives NaN.  @pre x and 1 / x are normal
[[nodiscard]] __device__ inline float reciprocal(float x) noexcept
{
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
#endif

//! x / n rounded, on the device without the branches of a division: an estimate, corrected by what is left
//! over. -0 gives 0; a negative quotient too small for f32 may give -0 on the device.
//! @param n  a count: a whole number, from 1 on
//! @error  none below 2^24 - 3, from where on 1 / n may lie midway between two floats: one unit in the last
//!         place. Where the quotient is subnormal, a tie may go either way
[[nodiscard]] DIFFKV_HOST_DEVICE inline float div_by_count(float x, float n) noexcept
{
#if defined(__CUDA_ARCH__)
  float const estimate = reciprocal(n);
  float const inverse  = __fmaf_rn(__fmaf_rn(-n, estimate, 1.0f), estimate, estimate);
  float const quotient = __fmul_rn(x, inverse);
  float const rest     = __fmaf_rn(-n, quotient, x);
  float const rounded  = __fmaf_rn(rest, inverse, quotient);
  return fabsf(x) < infinity ? rounded : x;
#else
  return opaque(x / n) + opaque(0.0f);
#endif
}

//! 1.5 * 2^23: a sum with it has no fraction bits left, and its low bits are the integer.
inline constexpr float integer_magic = 12582912.0f;

//! Rounds to the nearest integer, ties to even. Like every operation here it expects the rounding mode
//! that threads start in.
//! @pre |x| < 2^22, or x is not finite
[[nodiscard]] DIFFKV_HOST_DEVICE inline float round_half_even(float x) noexcept
{
#if defined(__CUDA_ARCH__)
  return rintf(x);
#else
  return opaque(x + integer_magic) - integer_magic;
#endif
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline std::uint32_t float_bits(float x) noexcept
{
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

//! By the exponent bits: true for every number, false for NaN and the infinities.
[[nodiscard]] DIFFKV_HOST_DEVICE inline bool is_finite(float x) noexcept
{
  return (float_bits(x) & 0x7F80'0000u) != 0x7F80'0000u;
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline bool is_nan(float x) noexcept
{
  return (float_bits(x) & 0x7FFF'FFFFu) > 0x7F80'0000u;
}

template <class Integer>
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr Integer ceil_div(Integer a, Integer b) noexcept
{
  return (a + b - 1) / b;
}

template <class Integer>
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr Integer round_up(Integer a, Integer multiple) noexcept
{
  return ceil_div(a, multiple) * multiple;
}

template <class T>
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr T min_of(T a, T b) noexcept
{
  return b < a ? b : a;
}

template <class T>
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr T max_of(T a, T b) noexcept
{
  return a < b ? b : a;
}

}  // namespace diffkv::detail
