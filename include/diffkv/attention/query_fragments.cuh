// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The queries of a row as the columns of tensor-core products: conditioned where they are loaded, then
//! 16-bit integers in two 8-bit columns (keys that are codes) or two f16 columns (16-bit keys).
//! Read before this: attention/query_codes.cuh.  Read next: attention/key_products.cuh.
#include <diffkv/attention/decode_tile.hpp>
#include <diffkv/attention/query_codes.cuh>
#include <diffkv/attention/softmax_state.hpp>  // log2_of_e
#include <diffkv/attention/tensor_core.cuh>
#include <diffkv/core/vectors.hpp>
#include <diffkv/quant/lane_rotation.cuh>
#include <diffkv/quant/warp_vector.cuh>

#include <type_traits>

namespace diffkv::detail {

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

//! A lane's share of a vector; 0 where there is none.
//! @param from   null: no vector
//! @param whole  it may be read 16 bytes at a time (has_whole_units)
template <class Share, class T>
__device__ void load_share(T const* from, bool whole, int owner,
                           float (&x)[Share::elements]) noexcept
{
  static_assert(Share::per_group % 4 == 0, "shares are read by fours or eights");
  constexpr int most     = 16 / static_cast<int>(sizeof(T));
  constexpr int per_unit = most > 4 && Share::per_group % 8 == 0 ? 8 : 4;
  struct alignas(per_unit * sizeof(T)) unit {
    std::remove_const_t<T> element[per_unit];
  };
#pragma unroll
  for (int i = 0; i < Share::elements; i += per_unit) {
    unit v{};
    if (from != nullptr && Share::exists(owner, i)) {
      T const* const at = from + Share::dim(owner, i);
      if (whole) {
        v = *reinterpret_cast<unit const*>(at);
      } else {
#pragma unroll
        for (int e = 0; e < per_unit; ++e) { v.element[e] = at[e]; }
      }
    }
#pragma unroll
    for (int e = 0; e < per_unit; ++e) { x[i + e] = to_f32(v.element[e]); }
  }
}

//! Reads a byte of each sector of a lane's share of a vector, so that it comes into the first-level
//! cache.  @return what is to be given to `keep`, once it is worth waiting for it
template <class Share, class T>
[[nodiscard]] __device__ std::uint32_t touch_share(T const* vector, int owner) noexcept
{
  constexpr int sector    = 32 / static_cast<int>(sizeof(T));
  std::uint32_t something = 0;
#pragma unroll
  for (int i = 0; i < Share::elements; i += min_of(sector, Share::per_group)) {
    if (Share::exists(owner, i)) {
      something ^= *reinterpret_cast<unsigned char const*>(vector + Share::dim(owner, i));
    }
  }
  return something;
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
    // Four vectors at a time.
    static_assert(Owners == 8 && (FirstMask == 1 || FirstMask == 4));
    int const owner  = FirstMask == 1 ? lane % 8 : lane / 4;
    int const vector = FirstMask == 1 ? lane / 8 : lane % 4;
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

//! Sum and maximum over the lanes that differ in the lowest bits of their index: 4 lanes t of the same
//! g, 8 owners of a vector.
template <int Lanes>
[[nodiscard]] __device__ float sum_over_lanes(float x) noexcept
{
#pragma unroll
  for (int mask = 1; mask < Lanes; mask *= 2) { x += __shfl_xor_sync(0xFFFF'FFFFu, x, mask); }
  return x;
}
//! Greatest magnitude of the vector that `Lanes` lanes share; NaN if an element is NaN.
template <int Lanes, int N>
[[nodiscard]] __device__ float greatest_magnitude(float const (&x)[N]) noexcept
{
  float m = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) { m = max_or_nan(m, fabsf(x[i])); }
#pragma unroll
  for (int mask = 1; mask < Lanes; mask *= 2) {
    m = max_or_nan(m, __shfl_xor_sync(0xFFFF'FFFFu, m, mask));
  }
  return m;
}

//! Four vectors of which each lane has made an eighth, of head lane / 8, and wants a quarter, of head
//! g / 2, in two planes: half of the columns are the first one, half the second one.
//! @tparam Groups, Words  of a group, 32-bit words of a lane's eighth
template <int Groups, int Words>
struct column_exchange {
  static constexpr int per_vector = 8 * Words * Groups;  //!< words

  //! As many words at a time as both sides have.
  static constexpr int at_once = Words % 4 == 0 ? 4 : Words % 2 == 0 ? 2 : 1;
  struct alignas(4 * at_once) unit {
    std::uint32_t word[at_once];
  };

  std::uint32_t* stage;  //!< shared memory of the warp
  fragment_lane at;

  __device__ void leave(int plane, std::uint32_t const (&own)[Groups * Words]) const noexcept
  {
    std::uint32_t* const to = stage + (4 * plane + at.lane / 8) * per_vector + at.lane % 8 * Words;
#pragma unroll
    for (int i = 0; i < Groups * Words; i += at_once) {
      unit u;
#pragma unroll
      for (int n = 0; n < at_once; ++n) { u.word[n] = own[i + n]; }
      *reinterpret_cast<unit*>(to + i / Words * 8 * Words + i % Words) = u;
    }
  }
  //! Two words of a step follow each other.
  __device__ void take(std::uint32_t (&columns)[Groups * Words][2]) const noexcept
  {
    std::uint32_t const* const from =
      stage + (4 * (at.g % 2) + at.g / 2) * per_vector + at.t * 2 * Words;
#pragma unroll
    for (int i = 0; i < 2 * Groups * Words; i += at_once) {
      unit const u =
        *reinterpret_cast<unit const*>(from + i / (2 * Words) * 8 * Words + i % (2 * Words));
#pragma unroll
      for (int n = 0; n < at_once; ++n) { columns[(i + n) / 2][(i + n) % 2] = u.word[n]; }
    }
  }
};

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
  using share                = vector_share<HeadDim, Groups, 8>;  //!< what a lane is given
  using exchange             = column_exchange<Groups, share::per_group / 4>;
  static constexpr int steps = share::elements / 4;

  std::uint32_t columns[Sets][steps][2];
  float factor[Sets];        //!< of head 4 s + t
  float sums[Sets][Groups];  //!< of head 4 s + t, in units of factor

  //! @param x      a lane's eighth of head 4 s + lane / 8
  //! @param unit   what a product of 1 with x is multiplied with
  //! @param stage  shared memory of the warp, decode_tile::column_words
  //! @threads one warp
  __device__ void set(int s, float const (&x)[share::elements], float unit, std::uint32_t* stage,
                      fragment_lane at) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    float const greatest   = greatest_magnitude<8>(x);
    float const scale =
      greatest > 0.0f ? copysignf(query_code_limit * reciprocal(greatest), unit) : 0.0f;
    rounded_elements<share::elements> rounded{x, scale, integer_magic};
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      // For the zeros, of the rounded queries, too: rounding then shows in proportion to the keys,
      // not to their codes, which are all positive.
      float const sum = sum_over_lanes<8>(rounded.sum(g * share::per_group, share::per_group));
      sums[s][g]      = __shfl_sync(all, sum, 8 * at.t);
    }
    float const own = logit_factor(greatest, greatest * (fabsf(unit) / query_code_limit));
    factor[s]       = __shfl_sync(all, own, 8 * at.t);

    exchange const planes{stage, at};
    std::uint32_t words[share::elements / 4];
#pragma unroll
    for (int w = 0; w < share::elements / 4; ++w) { words[w] = rounded.bytes(4 * w, low_bytes); }
    __syncwarp();
    planes.leave(1, words);
    rounded.add(128u);  // what is left is then within -128 .. 127
#pragma unroll
    for (int w = 0; w < share::elements / 4; ++w) { words[w] = rounded.bytes(4 * w, second_bytes); }
    planes.leave(0, words);
    __syncwarp();
    planes.take(columns[s]);
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
  using share                = vector_share<HeadDim, 1, 8>;
  using exchange             = column_exchange<1, share::elements / 2>;
  static constexpr int steps = share::elements / 2;

  std::uint32_t columns[Sets][steps][2];
  float factor[Sets];

  //! As code_queries::set.
  __device__ void set(int s, float const (&x)[share::elements], float unit, std::uint32_t* stage,
                      fragment_lane at) noexcept
  {
    float const greatest = greatest_magnitude<8>(x);
    float const scale    = copysignf(f16_normaliser(greatest), unit);
    float const own      = logit_factor(greatest, greatest > 0.0f ? unit / scale : 0.0f);
    factor[s]            = __shfl_sync(0xFFFF'FFFFu, own, 8 * at.t);

    exchange const planes{stage, at};
    std::uint32_t words[share::elements / 2];
    std::uint32_t rest[share::elements / 2];
#pragma unroll
    for (int w = 0; w < share::elements / 2; ++w) {
      float const a = x[2 * w] * scale;
      float const b = x[2 * w + 1] * scale;
      words[w]      = pack_f16(a, b, false);
      rest[w]       = pack_f16(a, b, true);
    }
    __syncwarp();
    planes.leave(0, words);
    planes.leave(1, rest);
    __syncwarp();
    planes.take(columns[s]);
  }
};

template <class Tile, int Sets>
using queries_for =
  std::conditional_t<Tile::key.is_quantised(), code_queries<Tile::head_dim, Tile::key.groups, Sets>,
                     f16_queries<Tile::head_dim, Sets>>;

}  // namespace diffkv::detail
