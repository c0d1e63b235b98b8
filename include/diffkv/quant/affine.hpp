// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Affine codes: a group of numbers becomes b-bit codes, one f16 scale and one f16 zero.
//! One definition serves host and device: every operation is one rounded f32 operation.
//! Read before this: quant/code_spec.hpp.  Read next: quant/vector_codec.hpp.
#include <diffkv/core/half.hpp>        // f16_bits
#include <diffkv/quant/code_spec.hpp>  // code_spec

namespace diffkv {

//! Metadata of one group as it is stored. NaN in both marks a vector that held NaN or Inf.
struct affine {
  f16_bits scale{};
  f16_bits zero{};
};
static_assert(sizeof(affine) == 4);

//! What the codec sees of an input: numbers beyond the f16 range are clamped to it, -0 becomes +0.
[[nodiscard]] DIFFKV_HOST_DEVICE inline float codec_input(float x) noexcept
{
  if (!detail::is_finite(x)) { return x; }
  float const clamped = x > f16_max ? f16_max : x < -f16_max ? -f16_max : x;
  return clamped == 0.0f ? 0.0f : clamped;
}

//! fit_affine for a divisor that is chosen at run time.
//! @param over_max_code  (x) -> x / max_code, as div_by_short rounds it
template <class Divide>
[[nodiscard]] DIFFKV_HOST_DEVICE inline affine fit_affine(float min, float max, float clip,
                                                          Divide const& over_max_code) noexcept
{
  using detail::add_rn, detail::sub_rn, detail::mul_rn;
  if (clip != 1.0f) {
    float const mid  = mul_rn(0.5f, add_rn(min, max));
    float const half = mul_rn(mul_rn(0.5f, clip), sub_rn(max, min));
    min              = sub_rn(mid, half);
    max              = add_rn(mid, half);
  }
  f16_bits const zero = to_f16(min);
  float const scale   = over_max_code(sub_rn(max, to_f32(zero)));
  // A range that lies below f16(min) as a whole would need a negative scale; it decodes to the
  // zero.
  return {to_f16(scale > f16_max ? f16_max : scale > 0.0f ? scale : 0.0f), zero};
}

//! Scale and zero of numbers between `min` and `max` (both finite, |.| <= 65504).
//! z = f16(min), s = f16((max - z) / max_code) within 0 .. 65504, after the range was clipped.
//! @error  half a scale step plus the rounding of scale and zero: docs/numerics.md
[[nodiscard]] DIFFKV_HOST_DEVICE inline affine fit_affine(float min, float max,
                                                          code_spec spec) noexcept
{
  return fit_affine(min, max, spec.clip, [spec](float x) {
    return detail::div_by_short(x, static_cast<float>(spec.max_code()));
  });
}

//! Code of `x` by the *stored* scale and zero; saturates at both ends.
[[nodiscard]] DIFFKV_HOST_DEVICE inline std::uint32_t affine_code(float x, float scale, float zero,
                                                                  std::uint32_t max_code) noexcept
{
  if (!(scale > 0.0f)) { return 0; }
  float const steps = detail::div_rn(detail::sub_rn(x, zero), scale);
  auto const top    = static_cast<float>(max_code);
  // Clamping first changes nothing (0 and top are whole) and keeps the rounding in range.
  float const inside = steps > top ? top : steps > 0.0f ? steps : 0.0f;
  return static_cast<std::uint32_t>(detail::round_half_even(inside));
}

//! The number that a code stands for, in f32.
[[nodiscard]] DIFFKV_HOST_DEVICE inline float affine_value(std::uint32_t code, float scale,
                                                           float zero) noexcept
{
  return detail::fma_rn(scale, static_cast<float>(code), zero);
}

}  // namespace diffkv
