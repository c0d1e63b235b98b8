// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One vector held by a warp: conditioned and encoded in registers, bit for bit as
//! quant/conditioning.hpp and quant/vector_codec.hpp do.
//! Read before this: quant/vector_codec.hpp, quant/conditioning.hpp.  Read next: page/token_quads.cuh.
//!
//! A quad is four neighbouring elements, 4 q .. 4 q + 3. Quads fit every format: a quad lies in one
//! scale group, in one lane's run of the fragment order, and in one word of key codes.
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/group_coder.cuh>
#include <diffkv/quant/vector_codec.hpp>

#include <type_traits>  // conditional_t

namespace diffkv {

//! Lane l holds the quads l and l + 32, as far as there are that many.
template <int HeadDim>
struct warp_vector {
  static_assert(HeadDim % 16 == 0 && HeadDim <= max_head_dim,
                "HeadDim must be a multiple of 16 up to 256");
  static constexpr int num_quads      = HeadDim / 4;
  static constexpr int quads_per_lane = detail::ceil_div(num_quads, 32);

  float x[quads_per_lane][4]{};

  //! The i-th quad of a lane.
  [[nodiscard]] static __device__ constexpr int quad(int lane, int i) noexcept
  {
    return lane + 32 * i;
  }
  //! Whether that quad exists; behind the vector's end codes are 0.
  [[nodiscard]] static __device__ constexpr bool has(int lane, int i) noexcept
  {
    return num_quads % 32 == 0 || quad(lane, i) < num_quads;
  }
};

//! Four codes: a byte each, or two bytes each where Bits = 16.
template <int Bits>
using code_quad = std::conditional_t<Bits == 16, std::uint64_t, std::uint32_t>;

template <int Bits>
[[nodiscard]] __device__ constexpr std::uint32_t code_of(code_quad<Bits> quad, int i) noexcept
{
  return static_cast<std::uint32_t>(quad >> (Bits == 16 ? 16 : 8) * i) &
         (Bits == 16 ? 0xFFFFu : 0xFFu);
}

//! A vector's codes over a warp, quads as in warp_vector; scales and zeros are known to every lane.
template <int Bits, int Groups, int HeadDim>
struct warp_codes {
  code_quad<Bits> quads[warp_vector<HeadDim>::quads_per_lane]{};
  affine groups[Groups]{};

  [[nodiscard]] static __device__ constexpr int group_of(int quad) noexcept
  {
    return 4 * quad / (HeadDim / Groups);
  }
  //! Scale and zero of a quad, without indexing registers.
  [[nodiscard]] __device__ affine of_quad(int quad) const noexcept
  {
    affine a = groups[0];
    for (int g = 1; g < Groups; ++g) { a = group_of(quad) == g ? groups[g] : a; }
    return a;
  }
};

namespace detail {

inline constexpr unsigned whole_warp = 0xFFFF'FFFFu;

//! Integers in the order of the finite floats that they stand for.
[[nodiscard]] __device__ inline int ordered_int(float x) noexcept
{
  int const bits = __float_as_int(x);
  return bits ^ (bits >> 31 & 0x7FFF'FFFF);
}
[[nodiscard]] __device__ inline float ordered_float(int i) noexcept
{
  return __int_as_float(i ^ (i >> 31 & 0x7FFF'FFFF));
}

}  // namespace detail

//! x := R x.  @threads one warp
template <int HeadDim>
__device__ void rotate(warp_vector<HeadDim>& v, int lane) noexcept
{
  using detail::add_rn, detail::sub_rn, detail::mul_rn, detail::fma_rn;
  using vector           = warp_vector<HeadDim>;
  constexpr int block    = rotation_block(HeadDim);
  constexpr float factor = rotation_factor(block);
#pragma unroll
  for (int i = 0; i < vector::quads_per_lane; ++i) {
    auto& x       = v.x[i];
    float const a = add_rn(x[0], x[1]);
    float const b = sub_rn(x[0], x[1]);
    float const c = add_rn(x[2], x[3]);
    float const d = sub_rn(x[2], x[3]);
    x[0]          = add_rn(a, c);
    x[1]          = add_rn(b, d);
    x[2]          = sub_rn(a, c);
    x[3]          = sub_rn(b, d);
#pragma unroll
    for (int other = 1; 4 * other < block && other < 32; other *= 2) {
      float const sign = (lane & other) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float const theirs = __shfl_xor_sync(detail::whole_warp, x[e], other);
        x[e]               = fma_rn(x[e], sign, theirs);  // one rounding: theirs + x or theirs - x
      }
    }
  }
  if constexpr (block == 256) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float const a = v.x[0][e];
      float const b = v.x[1][e];
      v.x[0][e]     = add_rn(a, b);
      v.x[1][e]     = sub_rn(a, b);
    }
  }
#pragma unroll
  for (int i = 0; i < vector::quads_per_lane; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) { v.x[i][e] = mul_rn(v.x[i][e], factor); }
  }
}

//! Encodes a vector as encode_vector does.
//! @param clip        of the code_spec
//! @param is_regular  the caller knows that every element is a number within the f16 range and not -0
//! @threads one warp; codes valid in the lane that holds the quad, groups in all lanes
template <int Bits, int Groups, int HeadDim>
[[nodiscard]] __device__ warp_codes<Bits, Groups, HeadDim> encode(warp_vector<HeadDim> const& v,
                                                                  float clip, int lane,
                                                                  bool is_regular = false) noexcept
{
  using vector = warp_vector<HeadDim>;
  warp_codes<Bits, Groups, HeadDim> out;
  if constexpr (Bits == 16) {
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      if (!vector::has(lane, i)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        auto const code = static_cast<std::uint64_t>(to_f16(codec_input(v.x[i][e])));
        out.quads[i] |= code << 16 * e;
      }
    }
    return out;
  } else {
    using codes = warp_codes<Bits, Groups, HeadDim>;
    float_range of_quad[vector::quads_per_lane];
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      if (!vector::has(lane, i)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) { of_quad[i].include(v.x[i][e]); }
    }
    // As ordered integers, so that a warp finds them at once; a NaN is above all numbers.
    float min[Groups];
    float max[Groups];
    bool within = true;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      float_range mine;
#pragma unroll
      for (int i = 0; i < vector::quads_per_lane; ++i) {
        if (codes::group_of(vector::quad(lane, i)) == g) { mine.include(of_quad[i]); }
      }
      int const low  = detail::ordered_int(mine.least());
      int const high = detail::ordered_int(mine.greatest());
      min[g]         = detail::ordered_float(__reduce_min_sync(detail::whole_warp, low));
      max[g]         = detail::ordered_float(__reduce_max_sync(detail::whole_warp, high));
      within         = within && min[g] >= -f16_max && max[g] <= f16_max;
    }
    warp_vector<HeadDim> u = v;
    // Nearly always all are. -0 needs no care: it has the code of 0, and no zero or scale keeps it.
    if (!is_regular && !within) {
      bool finite = true;
#pragma unroll
      for (int g = 0; g < Groups; ++g) {
        finite = finite && detail::is_finite(min[g]) && detail::is_finite(max[g]);
        min[g] = codec_input(min[g]);
        max[g] = codec_input(max[g]);
      }
      if (!finite) {
#pragma unroll
        for (int g = 0; g < Groups; ++g) { out.groups[g] = {f16_nan, f16_nan}; }
        return out;
      }
#pragma unroll
      for (int i = 0; i < vector::quads_per_lane; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { u.x[i][e] = codec_input(v.x[i][e]); }
      }
    }
    auto const& x = u.x;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      out.groups[g] = fit_affine(min[g], max[g], {Bits, Groups, clip});
    }
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      if (!vector::has(lane, i)) { continue; }
      group_coder<Bits> const code{out.of_quad(vector::quad(lane, i))};
      // The lowest byte of each word is the code.
      std::uint32_t const first = __byte_perm(code(x[i][0]), code(x[i][1]), 0x0040);
      std::uint32_t const last  = __byte_perm(code(x[i][2]), code(x[i][3]), 0x0040);
      out.quads[i]              = __byte_perm(first, last, 0x5410);
    }
    return out;
  }
}

//! Whether all that these codes can stand for are numbers within the f16 range.
template <int Bits, int Groups, int HeadDim>
[[nodiscard]] __device__ bool decode_is_regular(
  warp_codes<Bits, Groups, HeadDim> const& coded) noexcept
{
  if constexpr (Bits == 16) {
    return false;
  } else {
    bool regular = true;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      float const zero = to_f32(coded.groups[g].zero);
      float const most = affine_value((1u << Bits) - 1u, to_f32(coded.groups[g].scale), zero);
      regular          = regular && fabsf(zero) <= f16_max && fabsf(most) <= f16_max;
    }
    return regular;  // a NaN is below nothing
  }
}

//! Decodes as decode_vector does.  @threads one warp; each lane its own quads
template <int Bits, int Groups, int HeadDim>
[[nodiscard]] __device__ warp_vector<HeadDim> decode(warp_codes<Bits, Groups, HeadDim> const& coded,
                                                     int lane) noexcept
{
  using vector = warp_vector<HeadDim>;
  vector v;
#pragma unroll
  for (int i = 0; i < vector::quads_per_lane; ++i) {
    affine const a    = coded.of_quad(vector::quad(lane, i));
    float const scale = to_f32(a.scale);
    float const zero  = to_f32(a.zero);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      std::uint32_t const code = code_of<Bits>(coded.quads[i], e);
      v.x[i][e] =
        Bits == 16 ? to_f32(static_cast<f16_bits>(code)) : affine_value(code, scale, zero);
    }
  }
  return v;
}

}  // namespace diffkv
