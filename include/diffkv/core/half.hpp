// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The element types that callers may bring (f16, bf16, f32) as f32, and rounding to f16.
//! Only functions of the CUDA headers are used, no operators: some projects switch those off.
//! Read before this: core/error.hpp.  Read next: core/memory.hpp.
#include <diffkv/detail/arithmetic.hpp>  // is_finite

#include <cuda_bf16.h>  // __nv_bfloat16
#include <cuda_fp16.h>  // __half

#include <cstdint>      // uint16_t
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
  __half_raw raw;
  raw.x = static_cast<unsigned short>(x);
  return __half2float(__half(raw));
}

}  // namespace diffkv
