// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codec of quant/affine.hpp with a width that is known at run time: one code makes the keys and
//! values of all formats, and stays in the instruction cache.
//! Read before this: quant/group_coder.cuh, compaction/lane_elements.cuh.
//! Read next: compaction/encode_block.cuh.
#include <diffkv/detail/arithmetic.hpp>  // reciprocal
#include <diffkv/quant/affine.hpp>

namespace diffkv::detail {

//! A codec whose width is known at run time, so that one code serves all formats.
struct block_codec {
  int bits;
  float clip;
  float most;          //!< the greatest code
  float inverse_most;  //!< rounded

  [[nodiscard]] static __device__ block_codec of(code_spec spec) noexcept
  {
    int const bits = spec.bits;
    return {bits, spec.clip, static_cast<float>((1 << bits) - 1),
            bits == 8   ? 1.0f / 255.0f
            : bits == 4 ? 1.0f / 15.0f
            : bits == 2 ? 1.0f / 3.0f
                        : 1.0f};
  }

  //! Scale and zero of finite numbers between `min` and `max`.
  [[nodiscard]] __device__ affine fit(float min, float max) const noexcept
  {
    return fit_affine(min, max, clip, [this](float span) {  // div_by_short, the reciprocal known
      float const estimate = mul_rn(span, inverse_most);
      return fma_rn(fma_rn(-estimate, most, span), inverse_most, estimate);
    });
  }
};

//! What `codec_input` makes of a finite number.
[[nodiscard]] __device__ inline float finite_codec_input(float x) noexcept
{
  return add_rn(fminf(fmaxf(x, -f16_max), f16_max), 0.0f);  // -0 becomes +0
}

//! Makes codes as any_group_coder does, but leaves what lies above the greatest code to whoever knows
//! that there is such an element.
class block_coder {
 public:
  __device__ block_coder(affine const& a, int bits) noexcept
    : zero_{to_f32(a.zero)}, levels_{power_of_two(bits)}
  {
    float const scale = to_f32(a.scale);
    scale_            = mul_rn(scale, levels_);
    inverse_          = scale > 0.0f ? mul_rn(reciprocal(scale), power_of_two(-bits)) : 0.0f;
  }

  //! The code of `x` in the low bits of a word whose next bits up to bit 15 are 0; 2^bits, one too
  //! many, for what lies above. A scale of 0 or NaN gives code 0.
  [[nodiscard]] __device__ std::uint32_t operator()(float x) const noexcept
  {
    float const y        = sub_rn(x, zero_);
    float const estimate = mul_rn(y, inverse_);
    float const rest     = fma_rn(-estimate, scale_, y);
    float const quotient = __saturatef(fma_rn(rest, inverse_, estimate));
    return float_bits(fma_rn(quotient, levels_, integer_magic));
  }
  //! Whether there are codes other than 0.
  [[nodiscard]] __device__ bool has_scale() const noexcept { return inverse_ > 0.0f; }
  //! What the greatest code looks like.
  [[nodiscard]] __device__ std::uint32_t greatest() const noexcept
  {
    return float_bits(integer_magic + (levels_ - 1.0f));
  }

 private:
  [[nodiscard]] static __device__ float power_of_two(int n) noexcept
  {
    return __int_as_float((127 + n) << 23);
  }

  float zero_;
  float levels_;
  float scale_;    //!< 2^bits s
  float inverse_;  //!< 1 / s over 2^bits
};

}  // namespace diffkv::detail
