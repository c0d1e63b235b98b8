// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Earlier queries as columns of tensor-core products, and the probabilities that they give the tokens
//! of a block: no logits are stored.
//! Read before this: attention/value_products.cuh.  Read next: attention/score_path.cuh.
//!
//! Column 8 i + n is head (8 i + n) mod heads of query (8 i + n) / heads, with the heads of a group
//! rounded up to 4 or a multiple of 8: a lane's two columns belong to one query.
#include <diffkv/attention/decode_traits.hpp>
#include <diffkv/attention/key_products.cuh>
#include <diffkv/attention/score_update.hpp>  // int8_query_code

namespace diffkv::detail {

//! Columns of k queries for all q_heads of a group.
template <int GroupSize, int Queries>
struct lag_columns {
  static constexpr int heads     = GroupSize <= 4 ? 4 : round_up(GroupSize, 8);
  static constexpr int total     = heads * Queries;
  static constexpr int octets    = ceil_div(total, 8);
  static constexpr int per_query = heads <= 4 ? 1 : heads / 8;  //!< octets; 4 heads: half of one

  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr int query(int column) noexcept
  {
    return column / heads;
  }
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr int head(int column) noexcept
  {
    return column % heads;
  }
};

//! Queries of one rounding against the keys of one format.
//! @tparam Codes  keys that are codes, else f16
//! @tparam Exact  16 bits as in attention itself, else 8 (lag_rounding::int8)
template <int HeadDim, int Groups, bool Codes, int Octets, bool Exact>
struct lagged_queries {
  static constexpr int groups = Groups;
  using share                 = vector_share<HeadDim, Groups, 4>;
  static constexpr int steps  = share::elements / (Codes ? 8 : 4);
  static constexpr bool two   = Exact || !Codes;  //!< a second set of columns for what is left

  std::uint32_t columns[Octets][steps][2];
  std::uint32_t rest[two ? Octets : 1][steps][2];
  float factor[Octets][2];  //!< of the columns 2 t and 2 t + 1
  float sums[Octets][2][groups];

  //! @param x      a lane's share of column 8 i + g; 0 where there is none
  //! @param scale  of logits
  //! @param unit   what a logit of 1 is multiplied with
  __device__ void set(int i, float const (&x)[share::elements], float scale, float unit,
                      fragment_lane at) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    float const greatest   = greatest_magnitude<4>(x);
    float own_factor       = 0.0f;
    if constexpr (Codes) {
      float step = 0.0f;
      if constexpr (Exact) {
        step       = greatest > 0.0f ? query_code_limit * reciprocal(greatest) : 0.0f;
        own_factor = greatest * (scale * unit / query_code_limit);
      } else {
        step       = greatest > 0.0f ? div_rn(127.0f, greatest) : 0.0f;
        own_factor = int8_query_factor(scale, greatest) * unit;
      }
      rounded_elements<share::elements> rounded{x, step, integer_magic};
      if constexpr (!Exact) { settle_ties(rounded, x, step, greatest); }
#pragma unroll
      for (int w = 0; w < share::elements / 4; ++w) {
        columns[i][w / 2][w % 2] = rounded.bytes(4 * w, low_bytes);
        if constexpr (Exact) { rest[i][w / 2][w % 2] = columns[i][w / 2][w % 2]; }
      }
      if constexpr (Exact) {
        rounded_elements<share::elements> const high{x, step, integer_magic + 128.0f};
#pragma unroll
        for (int w = 0; w < share::elements / 4; ++w) {
          columns[i][w / 2][w % 2] = high.bytes(4 * w, second_bytes);
        }
      }
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        float const sum = sum_over_lanes<4>(rounded.sum(g * share::per_group, share::per_group));
        sums[i][0][g]   = __shfl_sync(all, sum, 8 * at.t);
        sums[i][1][g]   = __shfl_sync(all, sum, 8 * at.t + 4);
      }
    } else {
      float const normal = f16_normaliser(greatest);
      own_factor         = greatest > 0.0f ? scale * unit / normal : 0.0f;
#pragma unroll
      for (int w = 0; w < share::elements / 2; ++w) {
        float const a            = x[2 * w] * normal;
        float const b            = x[2 * w + 1] * normal;
        columns[i][w / 2][w % 2] = pack_f16(a, b, false);
        rest[i][w / 2][w % 2]    = pack_f16(a, b, true);
      }
    }
    factor[i][0] = __shfl_sync(all, own_factor, 8 * at.t);
    factor[i][1] = __shfl_sync(all, own_factor, 8 * at.t + 4);
  }

  //! The codes of the host twin, bit for bit, as one more or less would show: the product with `step`
  //! lies within 2.3e-5 of the quotient that int8_query_code rounds, and only near ties may round
  //! another way.
  //! @threads one warp
  static __device__ void settle_ties(rounded_elements<share::elements>& rounded,
                                     float const (&x)[share::elements], float step,
                                     float greatest) noexcept
  {
    bool is_clear = true;
#pragma unroll
    for (int e = 0; e < share::elements; ++e) {
      float const code = __uint_as_float(rounded.bits[e]) - integer_magic;
      is_clear         = is_clear && fabsf(fmaf(x[e], step, -code)) <= 0.49997f;
    }
    if (__all_sync(0xFFFF'FFFFu, is_clear)) { return; }
#pragma unroll
    for (int e = 0; e < share::elements; ++e) {
      rounded.bits[e] = float_bits(int8_query_code(x[e], greatest) + integer_magic);
    }
  }

  //! Logits of octet i: x[r][n] of token g + 8 r and column 2 t + n.
  template <class Tile>
  __device__ void multiply(int i, key_block<Tile> const& keys, float (&x)[2][2]) const noexcept
  {
    if constexpr (Codes) {
      constexpr int steps_per_group = steps / groups;
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        int c[4]{};
        int low[4]{};
#pragma unroll
        for (int s = 0; s < steps_per_group; ++s) {
          int const step = g * steps_per_group + s;
          std::uint32_t a[4];
          keys.fragment(step, a);
          mma_u8_s8(c, a, columns[i][step]);
          if constexpr (two) { mma_u8_s8(low, a, rest[i][step]); }
        }
        if constexpr (two) {
#pragma unroll
          for (int n = 0; n < 4; ++n) { c[n] = c[n] * 256 + low[n]; }
        }
        if constexpr (Tile::key.bits != 8) {
          c[2] -= c[0];
          c[3] -= c[1];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float2 const affine = f16_pair(keys.affine[g][r]);
          float const unit    = r == 0 ? 1.0f : second_row_unit<Tile>;
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            float const zero =
              g == 0 ? affine.y * sums[i][n][g] : fmaf(affine.y, sums[i][n][g], x[r][n]);
            x[r][n] = fmaf(affine.x * unit, static_cast<float>(c[2 * r + n]), zero);
          }
        }
      }
    } else {
      float c[4]{};
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        std::uint32_t a[4];
        keys.fragment(s, a);
        mma_f16(c, a, columns[i][s][0], columns[i][s][1]);
        mma_f16(c, a, rest[i][s][0], rest[i][s][1]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) { x[n / 2][n % 2] = c[n]; }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) { x[n / 2][n % 2] *= factor[i][n % 2]; }
  }
};

}  // namespace diffkv::detail
