// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Many codes of one scale group on the device: the division of quant/affine.hpp in four operations.
//! Read before this: quant/affine.hpp.  Read next: quant/lane_rotation.cuh.
//!
//! Why the quotient is the IEEE one. With r within 2^-22 of 1 / s, q0 = y r and the remainder y - q0 s
//! (exact, as s is short), the sum q0 + remainder r lies within 2^-42 of y / s, relatively. A stored
//! scale has 11 significant bits and y has 24, so y / s is no midpoint between two floats and stays
//! 2^-37 away from each: both round to the same float. Powers of two in s only shift exponents.
#include <diffkv/detail/arithmetic.hpp>
#include <diffkv/quant/affine.hpp>

#include <cstring>  // memcpy

namespace diffkv {

namespace detail {

//! Two f16 numbers that lie in one word, without taking the word apart.
[[nodiscard]] __device__ inline __half2 as_half2(std::uint32_t pair) noexcept
{
  __half2 halves;
  memcpy(&halves, &pair, sizeof halves);
  return halves;
}

}  // namespace detail

//! Least and greatest of some numbers; NaN in both where one of them is NaN.
struct float_range {
  float min = detail::infinity;
  float max = -detail::infinity;

  __device__ void include(float x) noexcept { include({x, x}); }
  __device__ void include(float_range other) noexcept
  {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(min) : "f"(other.min));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(max) : "f"(other.max));
  }
  //! Takes in what the lane `mask` away has.
  __device__ void include_lane(int mask) noexcept
  {
    include({__shfl_xor_sync(0xFFFF'FFFFu, min, mask), __shfl_xor_sync(0xFFFF'FFFFu, max, mask)});
  }
  [[nodiscard]] __device__ float least() const noexcept { return min; }
  [[nodiscard]] __device__ float greatest() const noexcept { return max; }
};

//! The same for f16 numbers, two at a time: half the operations and half the exchange.
struct half_range {
  __half2 min_and_negative_max = __halves2half2(__ushort_as_half(0x7C00), __ushort_as_half(0x7C00));

  __device__ void include_lane(int mask) noexcept
  {
    min_and_negative_max =
      __hmin2_nan(min_and_negative_max, __shfl_xor_sync(0xFFFF'FFFFu, min_and_negative_max, mask));
  }
  [[nodiscard]] __device__ float least() const noexcept
  {
    return __low2float(min_and_negative_max);
  }
  [[nodiscard]] __device__ float greatest() const noexcept
  {
    return -__high2float(min_and_negative_max);
  }
};

//! Makes codes with one stored scale and zero.
class any_group_coder {
 public:
  //! @param levels  2^bits, for 1 to 8 bits
  __device__ any_group_coder(affine const& a, float levels) noexcept
    : zero_{to_f32(a.zero)}, scale_{detail::mul_rn(to_f32(a.scale), levels)}, levels_{levels}
  {
    float const scale = to_f32(a.scale);
    // One over a power of two, by the exponent.
    float const inverse_levels = __uint_as_float(0x7F00'0000u - detail::float_bits(levels));
    float const inverse        = detail::mul_rn(detail::reciprocal(scale), inverse_levels);
    inverse_                   = scale > 0.0f ? inverse : 0.0f;
  }

  //! The code of `x` in the low bits of a word whose next bits up to bit 15 are 0.
  //! A scale of 0 or NaN gives code 0.  @pre |x| <= 65504, or scale and zero are NaN
  [[nodiscard]] __device__ std::uint32_t operator()(float x) const noexcept
  {
    float const y        = detail::sub_rn(x, zero_);
    float const estimate = detail::mul_rn(y, inverse_);
    float const rest     = detail::fma_rn(-estimate, scale_, y);
    // The quotient over 2^bits, so that saturation is the clamp at 0 and makes NaN 0.
    float const quotient = __saturatef(detail::fma_rn(rest, inverse_, estimate));
    float const code     = detail::fma_rn(quotient, levels_, detail::integer_magic);
    return detail::float_bits(fminf(code, detail::integer_magic + (levels_ - 1.0f)));
  }

 private:
  float zero_;
  float scale_;    //!< 2^bits s
  float inverse_;  //!< 1 / s over 2^bits
  float levels_;
};

//! The same for a number of bits that is known.
template <int Bits>
struct group_coder : any_group_coder {
  static_assert(Bits >= 1 && Bits <= 8, "Bits must be 1 to 8");
  __device__ explicit group_coder(affine const& a) noexcept
    : any_group_coder{a, static_cast<float>(1u << Bits)}
  {}
};

}  // namespace diffkv
