// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A warp conditions and encodes one side of 16 tokens that lie in a tile.
//! Read before this: compaction/block_coder.cuh, page/block_rows.cuh, quant/lane_rotation.cuh.
//! Read next: compaction/prompt_plan.cuh.
#include <diffkv/compaction/block_coder.cuh>
#include <diffkv/compaction/lane_elements.cuh>
#include <diffkv/compaction/vector_tile.cuh>
#include <diffkv/page/block_rows.cuh>
#include <diffkv/quant/lane_rotation.cuh>
#include <diffkv/quant/warp_vector.cuh>

namespace diffkv::detail {

//! Conditions what `load_token` has loaded, if there is anything to do.
//! @param offset  the key offset of layer and head in shared memory; null: not centred
template <conditioning Conditioned, class Image, class T>
[[nodiscard]] __device__ __forceinline__ auto condition(
  loaded_elements<T, Image::elements> const& raw, float const* offset, int lane) noexcept
{
  if constexpr (Conditioned == conditioning::none && std::is_same_v<T, __half>) {
    return raw;
  } else {
    lane_floats<T, Image::elements> x;
#pragma unroll
    for (int e = 0; e < Image::elements; ++e) { x.x[e] = raw.at(e); }
    if constexpr (has(Conditioned, conditioning::centred)) {
      if (offset != nullptr) {
        constexpr int unit = load_unit<Image>;
#pragma unroll
        for (int e = 0; e < Image::elements; e += unit) {
          loaded_elements<float, unit> centre;
          centre.template load<unit>(0, offset + dim_of<Image>(e, lane));
#pragma unroll
          for (int k = 0; k < unit; ++k) { x.x[e + k] = sub_rn(x.x[e + k], centre.at(k)); }
        }
      }
    }
    if constexpr (has(Conditioned, conditioning::rotated)) {
      rotate_over_lanes<Image::head_dim, Image::groups, Image::owners, Image::owner_mask>(x.x,
                                                                                          lane);
    }
    return x;
  }
}

//! Encodes a lane's token of a pass.  @threads one warp
template <class Rows, class Elements>
__device__ __forceinline__ void encode_token(Rows const& rows, int pass, Elements const& x,
                                             block_codec const& codec, int lane) noexcept
{
  float least[Rows::groups];
  float greatest[Rows::groups];
  bool finite = true;
#pragma unroll
  for (int g = 0; g < Rows::groups; ++g) {
    auto const range = range_of<Rows>(x, g);
    least[g]         = range.least();
    greatest[g]      = range.greatest();
    finite           = finite && is_finite(least[g]) && is_finite(greatest[g]);
  }
#pragma unroll
  for (int g = 0; g < Rows::groups; ++g) {
    float const most    = finite_codec_input(greatest[g]);
    affine const fitted = codec.fit(finite_codec_input(least[g]), most);
    affine const scale{finite ? fitted.scale : f16_nan, finite ? fitted.zero : f16_nan};
    rows.put_scale(pass, g, scale, lane);
    block_coder const coder{scale, codec.bits};
    // Where the range was clipped, or the scale is a small f16 number and so not exact, or an
    // element lies beyond f16. Such elements need not be clamped first: like +-65504, which bounds
    // the range, they have the code of its end.
    bool const is_above =
      __any_sync(0xFFFF'FFFFu, coder(most) > coder.greatest() || greatest[g] > f16_max) != 0;
    constexpr int unit = Rows::share % 16 == 0 ? 16 : 8;
#pragma unroll
    for (int first = g * Rows::share; first < (g + 1) * Rows::share; first += unit) {
      std::uint32_t code[unit];
#pragma unroll
      for (int e = 0; e < unit; ++e) {
        code[e] = is_lane_padding<Rows>(first + e, lane) ? 0u : coder(x.at(first + e));
      }
      if (is_above) {
#pragma unroll
        for (int e = 0; e < unit; ++e) {
          // Padding is a copy of elements that exist, and may be huge as they are.
          bool const is_huge = Elements::may_be_huge && coder.has_scale() &&
                               !is_lane_padding<Rows>(first + e, lane) && x.at(first + e) > f16_max;
          code[e] = is_huge ? coder.greatest() : min(code[e], coder.greatest());
        }
      }
      rows.put(pass, first, code, lane);
    }
  }
}

//! Encodes one side of a block.
//! @param after_load  is called when the tile has been read
//! @threads one warp
template <conditioning Conditioned, class Rows, class T, class AfterLoad>
__device__ __forceinline__ void encode_rows(Rows const& rows,
                                            vector_tile<T, Rows::head_dim> const& tile,
                                            float const* offset, block_codec const& codec, int lane,
                                            AfterLoad&& after_load) noexcept
{
#pragma unroll 1
  for (int pass = 0; pass < Rows::passes; ++pass) {
    loaded_elements<T, Rows::elements> raw;
    load_token<Rows>(raw, tile.row(Rows::token(lane, pass)), lane);
    if (pass + 1 == Rows::passes) { after_load(); }
    auto const x = condition<Conditioned, Rows>(raw, offset, lane);
    encode_token(rows, pass, x, codec, lane);
  }
}

//! Fills the image of 16-bit elements.
template <conditioning Conditioned, class Image, class T>
__device__ __forceinline__ void fill_image(Image& image,
                                           vector_tile<T, Image::head_dim> const& tile,
                                           float const* offset, int lane) noexcept
{
#pragma unroll
  for (int i = 0; i < Image::tokens; ++i) {
    loaded_elements<T, Image::elements> raw;
    load_token<Image>(raw, tile.row(Image::token(lane, i)), lane);
    auto const x = condition<Conditioned, Image>(raw, offset, lane);
    std::uint32_t element[Image::elements];
#pragma unroll
    for (int e = 0; e < Image::elements; ++e) {
      element[e] = is_lane_padding<Image>(e, lane)
                     ? 0u
                     : static_cast<std::uint32_t>(to_f16(codec_input(x.at(e))));
    }
    image.put(i, element);
  }
}

//! Whether a vector's blocks of R lie across the shares of lanes: then it is conditioned by a whole
//! warp and handed over in shared memory.
template <int HeadDim, conditioning Conditioned>
inline constexpr bool is_staged = has(Conditioned, conditioning::rotated) &&
                                  rotation_block(HeadDim) != HeadDim;

//! Conditions the 16 vectors of a block, one after the other, and leaves them in `staged`.
//! @param mine         vector of the (lane mod 16)-th token
//! @param offset       null: not centred
//! @param[out] staged  of this warp alone
//! @threads one warp
template <class T, int HeadDim>
__device__ void stage_block(vector_tile<float, HeadDim> const& staged, T const* mine,
                            float const* offset, int lane) noexcept
{
  using vector = warp_vector<HeadDim>;
  __syncwarp();  // what was staged before has been read
  for (int token = 0; token < block_tokens; ++token) {
    T const* const from = staged.vector_of(mine, token);
    vector v;
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int const d = 4 * vector::quad(lane, n) + e;
        v.x[n][e]   = to_f32(from[d]);
        if (offset != nullptr) { v.x[n][e] = sub_rn(v.x[n][e], offset[d]); }
      }
    }
    rotate(v, lane);
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) { staged.row(token)[4 * vector::quad(lane, n) + e] = v.x[n][e]; }
    }
  }
  __syncwarp();
}

}  // namespace diffkv::detail
