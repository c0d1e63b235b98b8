// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A warp encodes one side of 16 tokens: elements are loaded as the fragment order wants them, so that
//! conditioning, extremes and codes need no exchange but a few shuffles.
//! Read before this: page/block_rows.cuh.  Read next: compaction/prompt_plan.cuh.
#include <diffkv/page/block_rows.cuh>
#include <diffkv/quant/group_coder.cuh>
#include <diffkv/quant/lane_rotation.cuh>
#include <diffkv/quant/warp_vector.cuh>

namespace diffkv::detail {

//! Elements as they were loaded: two in a word where T has 16 bits.
template <class T, int Count>
struct loaded_elements {
  static constexpr int per_word = 4 / static_cast<int>(sizeof(T));
  std::uint32_t words[Count / per_word];

  [[nodiscard]] __device__ float at(int i) const noexcept
  {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      std::uint32_t const pair = words[i / 2];
      return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF'0000u);
    } else {
      __half2 const pair = as_half2(words[i / 2]);
      return i % 2 == 0 ? __low2float(pair) : __high2float(pair);
    }
  }

  //! Loads `Unit` elements from `from` to place `first`.
  //! @tparam Whole  `from` is aligned to the unit (at most 16 bytes)
  template <int Unit, bool Whole>
  __device__ __forceinline__ void load(int first, T const* from) noexcept
  {
    constexpr int unit_words = Unit / per_word;
    std::uint32_t* const to  = words + first / per_word;
    if constexpr (Whole) {
      if constexpr (unit_words % 4 == 0) {
#pragma unroll
        for (int w = 0; w < unit_words; w += 4) {
          uint4 const four = __ldg(reinterpret_cast<uint4 const*>(from) + w / 4);
          to[w]            = four.x;
          to[w + 1]        = four.y;
          to[w + 2]        = four.z;
          to[w + 3]        = four.w;
        }
      } else {
        static_assert(unit_words == 2);
        uint2 const two = __ldg(reinterpret_cast<uint2 const*>(from));
        to[0]           = two.x;
        to[1]           = two.y;
      }
    } else if constexpr (per_word == 1) {
#pragma unroll
      for (int i = 0; i < Unit; ++i) { to[i] = __float_as_uint(__ldg(from + i)); }
    } else {
      auto const* const halves = reinterpret_cast<unsigned short const*>(from);
#pragma unroll
      for (int i = 0; i < Unit; i += 2) {
        std::uint32_t const low = __ldg(halves + i);
        to[i / 2]               = low | std::uint32_t{__ldg(halves + i + 1)} << 16;
      }
    }
  }
};

//! The same in f32, where they were changed.
template <int Count>
struct lane_floats {
  float x[Count];
  [[nodiscard]] __device__ float at(int i) const noexcept { return x[i]; }
};

//! Elements that are loaded together: all of them exist, or all are padding.
template <class Image>
inline constexpr int load_unit = Image::share % 8 == 0 ? 8 : 4;

//! Dim of a lane's e-th element. Padding elements are copies of the group's last unit, so that they do
//! not count in extremes; they never become codes.
template <class Image>
[[nodiscard]] __device__ constexpr int dim_of(int e, int lane) noexcept
{
  constexpr int unit = load_unit<Image>;
  int const group    = e / Image::share * Image::group_elements;
  int const first    = Image::owner(lane) * Image::share + e % Image::share / unit * unit;
  int const last     = Image::group_elements - unit;
  return group + (Image::group_elements % 32 != 0 && first > last ? last : first) + e % unit;
}

//! Loads what a lane needs of its vector.
//! @tparam Whole  vectors may be read 16 bytes at a time
template <class Image, bool Whole, class T>
__device__ __forceinline__ void load_token(loaded_elements<T, Image::elements>& raw,
                                           T const* vector, int lane) noexcept
{
  constexpr int unit = load_unit<Image>;
#pragma unroll
  for (int e = 0; e < Image::elements; e += unit) {
    if constexpr (Image::group_elements % 32 == 0) {  // one address, constant distances
      T const* const mine = vector + Image::owner(lane) * Image::share;
      int const distance  = e / Image::share * Image::group_elements + e % Image::share;
      raw.template load<unit, Whole>(e, mine + distance);
    } else {
      raw.template load<unit, Whole>(e, vector + dim_of<Image>(e, lane));
    }
  }
}
template <class Image, class T>
__device__ __forceinline__ void load_token(loaded_elements<T, Image::elements>& raw,
                                           T const* vector, bool whole, int lane) noexcept
{
  if (whole) {
    load_token<Image, true>(raw, vector, lane);
  } else {
    load_token<Image, false>(raw, vector, lane);
  }
}

//! Extremes of a lane's elements of group g.
template <class Image>
[[nodiscard]] __device__ __forceinline__ float_range range_of(lane_floats<Image::elements> const& x,
                                                              int g) noexcept
{
  float_range range;
#pragma unroll
  for (int e = 0; e < Image::share; ++e) { range.include(x.at(g * Image::share + e)); }
  return range;
}
template <class Image>
[[nodiscard]] __device__ __forceinline__ half_range
range_of(loaded_elements<__half, Image::elements> const& x, int g) noexcept
{
  half_range range;
  range.include_pairs<Image::share / 2>(x.words + g * Image::share / 2);
  return range;
}

//! Brings finite numbers into the range of f16; f16 elements are there.
template <int Count>
__device__ __forceinline__ void clamp_elements(lane_floats<Count>& elements) noexcept
{
#pragma unroll
  for (float& x : elements.x) { x = codec_input(x); }
}
template <int Count>
__device__ __forceinline__ void clamp_elements(loaded_elements<__half, Count>&) noexcept
{}

//! Encodes the i-th token of a lane.  @threads one warp
template <class Image, class Elements>
__device__ __forceinline__ void encode_token(Image& image, int i, Elements& x, float clip,
                                             int lane) noexcept
{
  std::uint32_t code[Image::elements];
  auto const is_padding = [&](int e) {
    return Image::group_elements % 32 != 0 &&
           Image::owner(lane) * Image::share + e % Image::share >= Image::group_elements;
  };
  if constexpr (Image::bits == 16) {
#pragma unroll
    for (int e = 0; e < Image::elements; ++e) {
      code[e] = is_padding(e) ? 0u : static_cast<std::uint32_t>(to_f16(codec_input(x.at(e))));
    }
  } else {
    float least[Image::groups];
    float greatest[Image::groups];
    bool finite  = true;
    bool exceeds = false;
#pragma unroll
    for (int g = 0; g < Image::groups; ++g) {
      auto range = range_of<Image>(x, g);
#pragma unroll
      for (int n = 1; n < Image::owners; n *= 2) { range.include_lane(Image::owner_mask * n); }
      least[g]    = range.least();
      greatest[g] = range.greatest();
      finite      = finite && is_finite(least[g]) && is_finite(greatest[g]);
      exceeds     = exceeds || greatest[g] > f16_max || least[g] < -f16_max;
    }
    if (exceeds && finite) { clamp_elements(x); }
#pragma unroll
    for (int g = 0; g < Image::groups; ++g) {
      affine const fitted = fit_affine(codec_input(least[g]), codec_input(greatest[g]),
                                       {Image::bits, Image::groups, clip});
      affine const scale{finite ? fitted.scale : f16_nan, finite ? fitted.zero : f16_nan};
      image.put_scale(i, g, scale, lane);
      group_coder<Image::bits> const coder{scale};
#pragma unroll
      for (int e = g * Image::share; e < (g + 1) * Image::share; ++e) {
        code[e] = is_padding(e) ? 0u : coder(x.at(e));
      }
    }
  }
  image.put(i, code, lane);
}

//! Conditions and encodes what `load_token` has loaded.
//! @param offset  the key offset of layer and head, read only where Conditioned is centred
template <conditioning Conditioned, class Image, class T>
__device__ __forceinline__ void encode_loaded(Image& image, int i,
                                              loaded_elements<T, Image::elements>& raw,
                                              float const* offset, float clip, int lane) noexcept
{
  if constexpr (Conditioned == conditioning::none && std::is_same_v<T, __half>) {
    encode_token(image, i, raw, clip, lane);
  } else {
    lane_floats<Image::elements> x;
#pragma unroll
    for (int e = 0; e < Image::elements; ++e) { x.x[e] = raw.at(e); }
    if constexpr (has(Conditioned, conditioning::centred)) {
#pragma unroll
      for (int e = 0; e < Image::elements; ++e) {
        x.x[e] = sub_rn(x.x[e], __ldg(offset + dim_of<Image>(e, lane)));
      }
    }
    if constexpr (has(Conditioned, conditioning::rotated)) {
      rotate_over_lanes<Image::head_dim, Image::groups, Image::owners, Image::owner_mask>(x.x,
                                                                                          lane);
    }
    encode_token(image, i, x, clip, lane);
  }
}

//! Encodes one side of a block and stores it, in two passes of eight tokens.
//! @param vector_at  (token of the block) -> address of its first element
//! @threads one warp
template <class Rows, conditioning Conditioned, class T, class VectorAt>
__device__ __forceinline__ void encode_rows(Rows& rows, VectorAt&& vector_at, bool whole,
                                            float const* offset, float clip, int lane) noexcept
{
  loaded_elements<T, Rows::elements> next;
  load_token<Rows>(next, vector_at(Rows::token(lane, 0)), whole, lane);
#pragma unroll 1
  for (int pass = 0; pass < Rows::passes; ++pass) {
    loaded_elements<T, Rows::elements> raw = next;
    if (pass + 1 < Rows::passes) {
      load_token<Rows>(next, vector_at(Rows::token(lane, pass + 1)), whole, lane);
    }
    encode_loaded<Conditioned>(rows, pass, raw, offset, clip, lane);
  }
}

//! The same with a whole block in registers, for formats that rows cannot hold.
template <class Image, conditioning Conditioned, class T, class VectorAt>
__device__ __forceinline__ void encode_image(Image& image, VectorAt&& vector_at, bool whole,
                                             float const* offset, float clip, int lane) noexcept
{
#pragma unroll
  for (int i = 0; i < Image::tokens; ++i) {
    loaded_elements<T, Image::elements> raw;
    load_token<Image>(raw, vector_at(Image::token(lane, i)), whole, lane);
    encode_loaded<Conditioned>(image, i, raw, offset, clip, lane);
  }
}

//! Whether a vector's blocks of R lie across the shares of lanes: then it is conditioned by a whole
//! warp and handed over in shared memory.
template <int HeadDim, conditioning Conditioned>
inline constexpr bool is_staged = has(Conditioned, conditioning::rotated) &&
                                  rotation_block(HeadDim) != HeadDim;

//! Conditions the 16 vectors of a block, one after the other, and leaves them in `staged`.
//! @param[out] staged  [16, head_dim] shared memory of this warp alone
//! @threads one warp
template <int HeadDim, conditioning Conditioned, class T, class VectorAt>
__device__ void stage_block(float* staged, VectorAt&& vector_at, float const* offset,
                            int lane) noexcept
{
  using vector = warp_vector<HeadDim>;
  __syncwarp();  // what was staged before has been read
  for (int token = 0; token < block_tokens; ++token) {
    T const* const from = vector_at(token);
    vector v;
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int const d = 4 * vector::quad(lane, n) + e;
        v.x[n][e]   = to_f32(from[d]);
        if constexpr (has(Conditioned, conditioning::centred)) {
          v.x[n][e] = sub_rn(v.x[n][e], __ldg(offset + d));
        }
      }
    }
    if constexpr (has(Conditioned, conditioning::rotated)) { rotate(v, lane); }
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        staged[token * HeadDim + 4 * vector::quad(lane, n) + e] = v.x[n][e];
      }
    }
  }
  __syncwarp();
}

//! Encodes what `stage_block` has left.
//! @param staged_at  (token of the block) -> address of its first element
template <class Image, class StagedAt>
__device__ __forceinline__ void encode_staged(Image& image, StagedAt&& staged_at, float clip,
                                              int lane) noexcept
{
#pragma unroll
  for (int i = 0; i < Image::tokens; ++i) {
    float const* const vector = staged_at(Image::token(lane, i));
    lane_floats<Image::elements> x;
#pragma unroll
    for (int e = 0; e < Image::elements; ++e) { x.x[e] = vector[dim_of<Image>(e, lane)]; }
    encode_token(image, i, x, clip, lane);
  }
}

//! What a value is conditioned with: the rotation alone.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr conditioning rotation_of(conditioning set) noexcept
{
  return has(set, conditioning::rotated) ? conditioning::rotated : conditioning::none;
}

}  // namespace diffkv::detail
