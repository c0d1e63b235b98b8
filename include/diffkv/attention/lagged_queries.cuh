// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Earlier queries as columns of tensor-core products, and the probabilities that they give the tokens
//! of a block: no logits are stored.
//! Read before this: attention/value_products.cuh.  Read next: attention/score_path.cuh.
//!
//! An octet of columns holds 8 / k heads of each of the k queries, side by side, the next one the heads
//! behind them: with k = 4 a lane's two columns of every octet are heads of one query. Where the exact
//! columns of all heads fit into one octet, both parts of a head lie side by side, as in attention itself.
#include <diffkv/attention/decode_traits.hpp>
#include <diffkv/attention/key_products.cuh>
#include <diffkv/quant/lag_rounding.hpp>

namespace diffkv::detail {

//! Columns of k queries for all q_heads of a group.
//! @tparam Exact  see lagged_queries
template <int GroupSize, int Queries, bool Exact>
struct lag_columns {
  static constexpr bool paired   = Exact && Queries == 1 && GroupSize <= 4;
  static constexpr int per_octet = 8 / Queries;  //!< columns of each query
  static constexpr int octets    = paired ? 1 : ceil_div(GroupSize, per_octet);
  //! Neighbours that hold the heads of one query: 1, 2 or 4.
  static constexpr int lanes = per_octet / 2;

  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr int query(int column) noexcept
  {
    return column % 8 / per_octet;
  }
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr int head(int column) noexcept
  {
    return paired ? column / 2 : column / 8 * per_octet + column % per_octet;
  }
};

//! Queries of one rounding against the keys of one format.
//! @tparam Codes  keys that are codes, else f16
//! @tparam Exact  16 bits as in attention itself, else 8 (lag_rounding::int8)
//! @tparam Paired  the columns 2 t and 2 t + 1 are the high and the low part of one head
template <int HeadDim, int Groups, bool Codes, int Octets, bool Exact, bool Paired>
struct lagged_queries {
  static constexpr int groups  = Groups;
  static constexpr int octets  = Octets;
  static constexpr bool codes  = Codes;
  static constexpr bool paired = Paired;
  using share                  = vector_share<HeadDim, Groups, 4>;
  static constexpr int steps   = share::elements / (Codes ? 8 : 4);
  //! A second set of columns for what is left.
  static constexpr bool two = (Exact || !Codes) && !Paired;

  std::uint32_t columns[Octets][steps][2];
  std::uint32_t rest[two ? Octets : 1][steps][2];
  float factor[Octets][2];        //!< of the columns 2 t and 2 t + 1
  float sums[Octets][2][groups];  //!< of the elements, times factor

  //! @param x      a lane's share of column 8 i + g; 0 where there is none
  //! @param scale  of logits
  //! @param unit   what a logit of 1 is multiplied with
  __device__ void set(int i, float const (&x)[share::elements], float scale, float unit,
                      fragment_lane at) noexcept
  {
    float const greatest = greatest_magnitude<4>(x);
    if constexpr (Codes && !Exact) {
      int8_elements<share::elements> const rounded{x, greatest};
#pragma unroll
      for (int w = 0; w < share::elements / 4; ++w) { columns[i][w / 2][w % 2] = rounded.word(w); }
      set_factor_of_codes(i, greatest, scale, unit, at);
    } else if constexpr (Codes) {
      float const step = greatest > 0.0f ? query_code_limit * reciprocal(greatest) : 0.0f;
      rounded_elements<share::elements> const rounded{x, step, integer_magic};
      rounded_elements<share::elements> const high{x, step, integer_magic + 128.0f};
#pragma unroll
      for (int w = 0; w < share::elements / 4; ++w) {
        std::uint32_t const low  = rounded.bytes(4 * w, low_bytes);
        columns[i][w / 2][w % 2] = Paired && at.g % 2 != 0 ? low : high.bytes(4 * w, second_bytes);
        if constexpr (two) { rest[i][w / 2][w % 2] = low; }
      }
      share_out(
        i, greatest * (scale * unit / query_code_limit),
        [&](int g) { return rounded.sum(g * share::per_group, share::per_group); }, at);
    } else {
      float const normal = f16_normaliser(greatest);
#pragma unroll
      for (int w = 0; w < share::elements / 2; ++w) {
        float const a            = x[2 * w] * normal;
        float const b            = x[2 * w + 1] * normal;
        columns[i][w / 2][w % 2] = pack_f16(a, b, Paired && at.g % 2 != 0);
        if constexpr (two) { rest[i][w / 2][w % 2] = pack_f16(a, b, true); }
      }
      share_out(
        i, greatest > 0.0f ? scale * unit / normal : 0.0f, [](int) { return 0.0f; }, at);
    }
  }
  //! The same of 8-bit codes.
  //! @param words     of a lane's share, four codes each
  //! @param greatest  magnitude of the column's query
  __device__ void set_codes(int i, std::uint32_t const (&words)[share::elements / 4],
                            float greatest, float scale, float unit, fragment_lane at) noexcept
  {
    static_assert(Codes && !Exact);
#pragma unroll
    for (int w = 0; w < share::elements / 4; ++w) { columns[i][w / 2][w % 2] = words[w]; }
    set_factor_of_codes(i, greatest, scale, unit, at);
  }

 private:
  //! @pre the codes of column 8 i + g are set
  __device__ void set_factor_of_codes(int i, float greatest, float scale, float unit,
                                      fragment_lane at) noexcept
  {
    auto const sum = [&](int g) {
      constexpr int words = share::per_group / 4;
      int total           = 0;
#pragma unroll
      for (int w = g * words; w < (g + 1) * words; ++w) {
        total = __dp4a(static_cast<int>(columns[i][w / 2][w % 2]), 0x01010101, total);
      }
      return static_cast<float>(total);
    };
    share_out(i, int8_query_factor(scale, greatest) * unit, sum, at);
  }
  //! Integers of one column per lane, of which lanes want two: factor, and sums over the groups.
  template <class Sum>
  __device__ void share_out(int i, float own_factor, Sum const& sum, fragment_lane at) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    factor[i][0]           = __shfl_sync(all, own_factor, 8 * at.t);
    factor[i][1]           = __shfl_sync(all, own_factor, 8 * at.t + 4);
    if constexpr (Codes) {
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        float const of_group = sum_over_lanes<4>(sum(g)) * own_factor;
        sums[i][0][g]        = __shfl_sync(all, of_group, 8 * at.t);
        sums[i][1][g]        = __shfl_sync(all, of_group, 8 * at.t + 4);
      }
    }
  }
};

//! Products of the keys of a block with the columns of lagged queries, made while attention has the
//! fragments at hand (key_products.cuh).
template <class Queries>
struct lagged_products {
  static constexpr int octets = Queries::octets;
  static constexpr bool codes = Queries::codes;
  static constexpr bool two   = Queries::two;
  using number                = std::conditional_t<codes, int, float>;

  Queries const& queries;
  number c[octets][4]{};
  number low[codes && two ? octets : 1][4]{};
  float x[octets][2]
         [2];  //!< of octet i: logits of token g + 8 r and column 2 t + n (paired: n = 0)

  //! @param start  added to the logits, of the columns
  __device__ lagged_products(Queries const& q, float const (&start)[octets][2]) noexcept
    : queries{q}
  {
#pragma unroll
    for (int i = 0; i < octets; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) { x[i][n / 2][n % 2] = start[i][n % 2]; }
    }
  }

  __device__ void add(int step, std::uint32_t const (&a)[4]) noexcept
  {
#pragma unroll
    for (int i = 0; i < octets; ++i) {
      auto const& column = queries.columns[i][step];
      if constexpr (codes) {
        mma_u8_s8(c[i], a, column);
        if constexpr (two) { mma_u8_s8(low[i], a, queries.rest[i][step]); }
      } else {
        mma_f16(c[i], a, column[0], column[1]);
        if constexpr (two) {
          auto const& rest = queries.rest[i][step];
          mma_f16(c[i], a, rest[0], rest[1]);
        }
      }
    }
  }

  template <class Tile>
  __device__ void close_group(int group, key_block<Tile> const& keys) noexcept
  {
#pragma unroll
    for (int i = 0; i < octets; ++i) {
      if constexpr (codes) {
        if constexpr (two) {
#pragma unroll
          for (int n = 0; n < 4; ++n) { c[i][n] = c[i][n] * 256 + low[i][n]; }
        }
        if constexpr (Queries::paired) {
          c[i][0] = c[i][0] * 256 + c[i][1];
          c[i][2] = c[i][2] * 256 + c[i][3];
        }
      } else if constexpr (Queries::paired) {
        c[i][0] += c[i][1];
        c[i][2] += c[i][3];
      }
#pragma unroll
      for (int n = 0; n < 4; n += Queries::paired ? 2 : 1) {
        int const r         = n / 2;
        int const column    = n % 2;
        float const product = static_cast<float>(c[i][n]) * queries.factor[i][column];
        if constexpr (codes) {
          float2 const affine = f16_pair(keys.affine[group][r]);
          float const unit    = r == 0 ? 1.0f : second_row_unit<Tile>;
          float const zero    = fmaf(affine.y, queries.sums[i][column][group], x[i][r][column]);
          x[i][r][column]     = fmaf(affine.x * unit, product, zero);
        } else {
          x[i][r][column] += product;
        }
      }
      if constexpr (codes) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          c[i][n] = 0;
          if constexpr (two) { low[i][n] = 0; }
        }
      }
    }
  }
};

}  // namespace diffkv::detail
