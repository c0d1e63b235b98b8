// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The queries of a row as the columns of tensor-core products: conditioned where they are loaded, then
//! 16-bit integers in two 8-bit columns (keys that are codes) or two f16 columns (16-bit keys).
//! Read before this: attention/decode_traits.hpp.  Read next: attention/key_products.cuh.
#include <diffkv/attention/decode_tile.hpp>
#include <diffkv/attention/tensor_core.cuh>
#include <diffkv/core/vectors.hpp>
#include <diffkv/quant/lane_rotation.cuh>
#include <diffkv/quant/warp_vector.cuh>

#include <type_traits>

namespace diffkv::detail {

inline constexpr float log2_of_e = 1.44269504088896341f;
inline constexpr float ln_of_2   = 0.693147180559945309f;

//! The elements of a vector that one of `Owners` lanes holds, in the order of the codes of a page: of
//! each scale group the owner's share.
template <int HeadDim, int Groups, int Owners>
struct vector_share {
  static constexpr element_order order{HeadDim, Groups};
  static constexpr int per_group = order.group_stored() / Owners;
  static constexpr int elements  = order.stored() / Owners;
  static constexpr bool padded   = order.group_stored() != order.group_dims();

  //! First dim of eight neighbours i, i + 1, ...; behind the end of its group where it is padding.
  [[nodiscard]] static __device__ constexpr int dim(int owner, int i) noexcept
  {
    return i / per_group * order.group_dims() + owner * per_group + i % per_group;
  }
  [[nodiscard]] static __device__ constexpr bool exists(int owner, int i) noexcept
  {
    return !padded || owner * per_group + i % per_group < order.group_dims();
  }
};

//! Eight elements from an address that is aligned to all of them, or to one.
template <class T>
__device__ void load_eight(T const* from, bool whole, float* x) noexcept
{
  struct alignas(16) unit {
    T element[16 / sizeof(T)];
  };
  constexpr int per_unit = 16 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int u = 0; u < 8 / per_unit; ++u) {
    unit v;
    if (whole) {
      v = *reinterpret_cast<unit const*>(from + u * per_unit);
    } else {
#pragma unroll
      for (int e = 0; e < per_unit; ++e) { v.element[e] = from[u * per_unit + e]; }
    }
#pragma unroll
    for (int e = 0; e < per_unit; ++e) { x[u * per_unit + e] = to_f32(v.element[e]); }
  }
}

//! A lane's share of a vector; 0 where there is none.
//! @param from   null: no vector
//! @param whole  `from` and its multiples of eight elements are aligned to 16 bytes
template <class Share, class T>
__device__ void load_share(T const* from, bool whole, int owner,
                           float (&x)[Share::elements]) noexcept
{
  static_assert(Share::per_group % 8 == 0, "shares are read by eights");
#pragma unroll
  for (int i = 0; i < Share::elements; i += 8) {
    if (from != nullptr && Share::exists(owner, i)) {
      load_eight(from + Share::dim(owner, i), whole, x + i);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) { x[i + e] = 0.0f; }
    }
  }
}

//! x := R x for the vectors that lanes share: owners are the lanes that differ in the bits FirstMask,
//! 2 FirstMask, ...; the other lanes hold other vectors.
//! @param stage  shared memory of the warp for the vectors, where the rotation has several blocks
//! @threads one warp
template <int HeadDim, int Groups, int Owners, int FirstMask, int Elements>
__device__ void rotate_share(float (&x)[Elements], float* stage, int lane) noexcept
{
  using share = vector_share<HeadDim, Groups, Owners>;
  static_assert(Elements == share::elements);
  if constexpr (rotation_block(HeadDim) == HeadDim) {
    rotate_over_lanes<HeadDim, Groups, Owners, FirstMask>(x, lane);
  } else {
    // Four vectors at a time; with four owners the eight vectors of a warp are four, twice each.
    static_assert((Owners == 4 && FirstMask == 1) || (Owners == 8 && FirstMask == 4));
    int const owner  = Owners == 4 ? lane % 4 : lane / 4;
    int const vector = Owners == 4 ? lane / 8 : lane % 4;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < share::elements; ++i) {
      if (share::exists(owner, i)) { stage[vector * HeadDim + share::dim(owner, i)] = x[i]; }
    }
    __syncwarp();
#pragma unroll 1
    for (int v = 0; v < 4; ++v) {
      warp_vector<HeadDim> w;
#pragma unroll
      for (int n = 0; n < w.quads_per_lane; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (w.has(lane, n)) { w.x[n][e] = stage[v * HeadDim + 4 * w.quad(lane, n) + e]; }
        }
      }
      rotate(w, lane);
#pragma unroll
      for (int n = 0; n < w.quads_per_lane; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (w.has(lane, n)) { stage[v * HeadDim + 4 * w.quad(lane, n) + e] = w.x[n][e]; }
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < share::elements; ++i) {
      x[i] = share::exists(owner, i) ? stage[vector * HeadDim + share::dim(owner, i)] : 0.0f;
    }
    __syncwarp();
  }
}

//! Sum and maximum over the four lanes t of the same g.
[[nodiscard]] __device__ inline float sum_over_t(float x) noexcept
{
  x += __shfl_xor_sync(0xFFFF'FFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFF'FFFFu, x, 2);
}
[[nodiscard]] __device__ inline float max_over_t(float x) noexcept
{
  x = max_or_nan(x, __shfl_xor_sync(0xFFFF'FFFFu, x, 1));
  return max_or_nan(x, __shfl_xor_sync(0xFFFF'FFFFu, x, 2));
}

//! NaN if an element is NaN.
template <int N>
[[nodiscard]] __device__ float greatest_magnitude(float const (&x)[N]) noexcept
{
  float m = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) { m = max_or_nan(m, fabsf(x[i])); }
  return max_over_t(m);
}

//! Elements rounded to integers: round(x * factor) in the low bits of the sum with `magic`.
template <int N>
struct rounded_elements {
  std::uint32_t bits[N];
  std::uint32_t magic;

  __device__ rounded_elements(float const (&x)[N], float factor, float with_magic) noexcept
    : magic{float_bits(with_magic)}
  {
#pragma unroll
    for (int i = 0; i < N; ++i) { bits[i] = float_bits(fmaf(x[i], factor, with_magic)); }
  }
  //! Of the four elements from `first` on, of 16 bits the byte that `selector` takes.
  [[nodiscard]] __device__ std::uint32_t bytes(int first, std::uint32_t selector) const noexcept
  {
    return __byte_perm(__byte_perm(bits[first], bits[first + 1], selector),
                       __byte_perm(bits[first + 2], bits[first + 3], selector), 0x5410u);
  }
  //! Sum of `count` of the integers; exact.
  [[nodiscard]] __device__ float sum(int first, int count) const noexcept
  {
    std::uint32_t total = 0u - static_cast<std::uint32_t>(count) * magic;
#pragma unroll
    for (int i = 0; i < count; ++i) { total += bits[first + i]; }
    return static_cast<float>(static_cast<int>(total));
  }
};
inline constexpr std::uint32_t low_bytes    = 0x0040u;
inline constexpr std::uint32_t second_bytes = 0x0051u;
inline constexpr float query_code_limit     = 32512.0f;  //!< 127 * 256

//! What a logit is multiplied with; NaN for a query that is not finite, so that it shows.
//! Never 0: a token that is left out has a logit of -inf.
[[nodiscard]] __device__ inline float logit_factor(float greatest, float factor) noexcept
{
  return is_finite(greatest) ? fmaxf(factor, 1e-20f) : not_a_number;
}

//! Columns of 16-bit queries against codes: of head 4 s + g / 2 the high byte where g is even, the low
//! byte where it is odd. logit = factor * sum over groups of (scale * product + zero * sum).
template <int HeadDim, int Groups, int Sets>
struct code_queries {
  using share                = vector_share<HeadDim, Groups, 4>;
  static constexpr int steps = share::elements / 8;

  std::uint32_t columns[Sets][steps][2];
  float factor[Sets];        //!< of head 4 s + t
  float sums[Sets][Groups];  //!< of head 4 s + t, in units of factor

  //! @param x     a lane's share of head 4 s + g / 2
  //! @param unit  what a product of 1 with x is multiplied with
  __device__ void set(int s, float const (&x)[share::elements], float unit,
                      fragment_lane at) noexcept
  {
    bool const low       = at.g % 2 != 0;
    float const greatest = greatest_magnitude(x);
    float const scale =
      greatest > 0.0f ? copysignf(query_code_limit * reciprocal(greatest), unit) : 0.0f;
    rounded_elements<share::elements> const rounded{x, scale,
                                                    low ? integer_magic : integer_magic + 128.0f};
#pragma unroll
    for (int w = 0; w < share::elements / 4; ++w) {
      columns[s][w / 2][w % 2] = rounded.bytes(4 * w, low ? low_bytes : second_bytes);
    }
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      // For the zeros, of the rounded queries, too: rounding then shows in proportion to the keys,
      // not to their codes, which are all positive.
      float const sum = sum_over_t(rounded.sum(g * share::per_group, share::per_group));
      sums[s][g]      = __shfl_sync(0xFFFF'FFFFu, sum, 8 * at.t);
    }
    float const own = logit_factor(greatest, greatest * (fabsf(unit) / query_code_limit));
    factor[s]       = __shfl_sync(0xFFFF'FFFFu, own, 8 * at.t);
  }
};

//! Factor 2^n that brings the greatest magnitude into [1, 2).
[[nodiscard]] __device__ inline float f16_normaliser(float greatest) noexcept
{
  return greatest > 0.0f ? __uint_as_float((254u - (__float_as_uint(greatest) >> 23)) << 23) : 0.0f;
}
//! Two f16 of (a, b), or what their rounding left.
[[nodiscard]] __device__ inline std::uint32_t pack_f16(float a, float b, bool rest) noexcept
{
  __half2 const high = __floats2half2_rn(a, b);
  float2 const h     = __half22float2(high);
  return bits_of(rest ? __floats2half2_rn(a - h.x, b - h.y) : high);
}

//! Columns of queries against 16-bit keys: head 4 s + g / 2 as f16, and what that rounding left.
template <int HeadDim, int Sets>
struct f16_queries {
  using share                = vector_share<HeadDim, 1, 4>;
  static constexpr int steps = share::elements / 4;

  std::uint32_t columns[Sets][steps][2];
  float factor[Sets];

  //! As code_queries::set.
  __device__ void set(int s, float const (&x)[share::elements], float unit,
                      fragment_lane at) noexcept
  {
    float const greatest = greatest_magnitude(x);
    float const scale    = copysignf(f16_normaliser(greatest), unit);
#pragma unroll
    for (int w = 0; w < share::elements / 2; ++w) {
      columns[s][w / 2][w % 2] = pack_f16(x[2 * w] * scale, x[2 * w + 1] * scale, at.g % 2 != 0);
    }
    float const own = logit_factor(greatest, greatest > 0.0f ? unit / scale : 0.0f);
    factor[s]       = __shfl_sync(0xFFFF'FFFFu, own, 8 * at.t);
  }
};

template <class Tile, int Sets>
using queries_for =
  std::conditional_t<Tile::key.is_quantised(), code_queries<Tile::head_dim, Tile::key.groups, Sets>,
                     f16_queries<Tile::head_dim, Sets>>;

}  // namespace diffkv::detail
