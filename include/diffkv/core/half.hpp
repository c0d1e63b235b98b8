// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The element types that callers may bring (f16, bf16, f32) as f32, and rounding to f16.
//! Only functions of the CUDA headers are used, no operators: some projects switch those off.
//! Read before this: core/error.hpp.  Read next: core/vectors.hpp.
#include <diffkv/detail/arithmetic.hpp>  // is_finite

#include <cuda_bf16.h>  // __nv_bfloat16
#include <cuda_fp16.h>  // __half

#include <cstdint>      // uint16_t
#include <cstring>      // memcpy
#include <type_traits>  // is_same_v

namespace diffkv {

template <class T>
inline constexpr bool is_element_v =
  std::is_same_v<T, float> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

[[nodiscard]] DIFFKV_HOST_DEVICE inline float to_f32(float x) noexcept { return x; }
[[nodiscard]] DIFFKV_HOST_DEVICE inline float to_f32(__half x) noexcept { return __half2float(x); }
[[nodiscard]] DIFFKV_HOST_DEVICE inline float to_f32(__nv_bfloat16 x) noexcept
{
  return __bfloat162float(x);
}

DIFFKV_HOST_DEVICE inline void from_f32(float x, float& out) noexcept { out = x; }
DIFFKV_HOST_DEVICE inline void from_f32(float x, __half& out) noexcept { out = __float2half_rn(x); }
DIFFKV_HOST_DEVICE inline void from_f32(float x, __nv_bfloat16& out) noexcept
{
  out = __float2bfloat16_rn(x);
}

inline constexpr float f16_max = 65504.0f;

//! An f16 as it lies in memory.
enum class f16_bits : std::uint16_t {};
inline constexpr f16_bits f16_nan{0x7FFF};

//! Rounds to the nearest f16 (ties to even); -0 becomes +0, so equal values have equal bytes.
[[nodiscard]] DIFFKV_HOST_DEVICE inline f16_bits to_f16(float x) noexcept
{
  auto const raw = static_cast<__half_raw>(__float2half_rn(x)).x;
  return static_cast<f16_bits>(raw == 0x8000 ? 0 : raw);
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float to_f32(f16_bits x) noexcept
{
#if defined(__CUDA_ARCH__)
  __half_raw raw;
  raw.x = static_cast<unsigned short>(x);
  return __half2float(__half(raw));
#else
  // The same without branches, so that loops become vector code: f16's exponent lands in the lowest
  // bits of f32's, 2^112 makes up for the bias, and Inf and NaN get the exponent bits they lack.
  std::uint32_t const magnitude = (static_cast<std::uint32_t>(x) & 0x7FFFu) << 13;
  float scaled;
  std::memcpy(&scaled, &magnitude, sizeof scaled);
  scaled *= 5.192296858534828e33f;
  std::uint32_t word;
  std::memcpy(&word, &scaled, sizeof word);
  word |= magnitude >= 0x0F80'0000u ? 0x7F80'0000u : 0u;
  word |= (static_cast<std::uint32_t>(x) & 0x8000u) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
#endif
}

}  // namespace diffkv
