// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a lane holds of a vector: long runs of its elements, as they were loaded or in f32, and the
//! extremes of a scale group, found with few operations and exchanges.
//! Read before this: compaction/vector_tile.cuh, quant/group_coder.cuh.
//! Read next: compaction/block_coder.cuh.
#include <diffkv/core/half.hpp>
#include <diffkv/quant/group_coder.cuh>  // half_range, float_range

#include <type_traits>  // is_same_v

namespace diffkv::detail {

//! Elements as they were loaded: two in a word where T has 16 bits.
template <class T, int Count>
struct loaded_elements {
  //! Whether an element may lie so far beyond f16 that a quotient overflows.
  static constexpr bool may_be_huge = !std::is_same_v<T, __half>;
  static constexpr int per_word     = 4 / static_cast<int>(sizeof(T));
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

  //! Loads `Unit` elements from `from`, aligned to them (at most 16 bytes), to place `first`.
  template <int Unit>
  __device__ __forceinline__ void load(int first, T const* from) noexcept
  {
    constexpr int unit_words = Unit / per_word;
    std::uint32_t* const to  = words + first / per_word;
    if constexpr (unit_words % 4 == 0) {
#pragma unroll
      for (int w = 0; w < unit_words; w += 4) {
        uint4 const four = reinterpret_cast<uint4 const*>(from)[w / 4];
        to[w]            = four.x;
        to[w + 1]        = four.y;
        to[w + 2]        = four.z;
        to[w + 3]        = four.w;
      }
    } else {
      static_assert(unit_words == 2);
      uint2 const two = *reinterpret_cast<uint2 const*>(from);
      to[0]           = two.x;
      to[1]           = two.y;
    }
  }
};

//! The same in f32, where they were changed.
//! @tparam T  what they were
template <class T, int Count>
struct lane_floats {
  static constexpr bool may_be_huge = loaded_elements<T, Count>::may_be_huge;
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

//! Whether element e of a lane is padding.
template <class Image>
[[nodiscard]] __device__ constexpr bool is_lane_padding(int e, int lane) noexcept
{
  return Image::group_elements % 32 != 0 &&
         Image::owner(lane) * Image::share + e % Image::share >= Image::group_elements;
}

//! Loads what a lane needs of its vector, which lies in shared memory.
template <class Image, class Elements, class T>
__device__ __forceinline__ void load_token(Elements& to, T const* vector, int lane) noexcept
{
  constexpr int unit = load_unit<Image>;
#pragma unroll
  for (int e = 0; e < Image::elements; e += unit) {
    to.template load<unit>(e, vector + dim_of<Image>(e, lane));
  }
}

//! Extremes of a vector's elements of group g, known to all its owners. Some chains side by side.
//! @threads one warp
template <class Image>
[[nodiscard]] __device__ __forceinline__ half_range
range_of(loaded_elements<__half, Image::elements> const& x, int g) noexcept
{
  constexpr int pairs  = Image::share / 2;
  constexpr int chains = 4;
  __half2 low[chains];
  __half2 high[chains];
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    __half2 const pair = as_half2(x.words[g * pairs + i]);
    low[i % chains]    = i < chains ? pair : __hmin2_nan(low[i % chains], pair);
    high[i % chains]   = i < chains ? pair : __hmax2_nan(high[i % chains], pair);
  }
#pragma unroll
  for (int n = chains / 2; n > 0; n /= 2) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      low[i]  = __hmin2_nan(low[i], low[i + n]);
      high[i] = __hmax2_nan(high[i], high[i + n]);
    }
  }
  half_range range;
  range.min_and_negative_max =
    __halves2half2(__hmin_nan(__low2half(low[0]), __high2half(low[0])),
                   __hneg(__hmax_nan(__low2half(high[0]), __high2half(high[0]))));
#pragma unroll
  for (int n = 1; n < Image::owners; n *= 2) { range.include_lane(Image::owner_mask * n); }
  return range;
}

//! The same for f32. Where there are numbers of both signs, the greatest one is the greatest as a
//! signed integer and the least one the greatest as an unsigned one; and three integers are compared
//! at once. Where there are not, the least as an unsigned integer is the one that lacks.
template <class Image, class T>
[[nodiscard]] __device__ __forceinline__ float_range
range_of(lane_floats<T, Image::elements> const& x, int g) noexcept
{
  auto const bits = [&](int e) { return __float_as_uint(x.x[g * Image::share + e]); };
  // A fold over all elements in two chains; the last step may take an element twice.
  auto const fold = [&](auto step) {
    unsigned chain[2] = {bits(0), bits(1)};
#pragma unroll
    for (int e = 2; e < Image::share; e += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        chain[c] = step(chain[c], bits(e + c), bits(min_of(e + c + 2, Image::share - 1)));
      }
    }
    unsigned all = step(chain[0], chain[1], chain[1]);
#pragma unroll
    for (int n = 1; n < Image::owners; n *= 2) {
      unsigned const theirs = __shfl_xor_sync(0xFFFF'FFFFu, all, Image::owner_mask * n);
      all                   = step(all, theirs, theirs);
    }
    return all;
  };
  auto const as_signed = [](unsigned a, unsigned b, unsigned c) {
    return static_cast<unsigned>(
      __vimax3_s32(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c)));
  };
  unsigned greatest = fold(as_signed);
  unsigned least = fold([](unsigned a, unsigned b, unsigned c) { return __vimax3_u32(a, b, c); });
  bool const all_negative = static_cast<int>(greatest) < 0;
  bool const all_positive = static_cast<int>(least) >= 0;
  if (__any_sync(0xFFFF'FFFFu, all_negative || all_positive) != 0) {
    unsigned const nearest =
      fold([](unsigned a, unsigned b, unsigned c) { return __vimin3_u32(a, b, c); });
    greatest = all_negative ? nearest : greatest;
    least    = all_positive ? nearest : least;
  }
  return {__uint_as_float(least), __uint_as_float(greatest)};
}

}  // namespace diffkv::detail
