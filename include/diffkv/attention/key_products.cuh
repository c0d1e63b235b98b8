// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Products of the keys of a block of 16 tokens with the columns of queries.
//! Read before this: attention/query_fragments.cuh.  Read next: attention/row_accumulator.cuh.
//!
//! Codes narrower than a byte stay where they are in it: those of row g + 8 are multiples of 2^bits.
#include <diffkv/attention/query_fragments.cuh>

namespace diffkv::detail {

//! A lane's key codes of one block and its (scale, zero) of tokens g and g + 8.
template <class Tile>
struct key_block {
  std::uint32_t words[Tile::key_words];
  std::uint32_t affine[Tile::key.groups][2];

  __device__ void load(std::uint32_t tile, int block, fragment_lane at) noexcept
  {
    load_fragment(words, tile + Tile::template at<Tile::key_codes>(block), at.lane);
    if constexpr (Tile::key.is_quantised()) {
      std::uint32_t const metadata = tile + Tile::template at<Tile::key_metadata>(block);
#pragma unroll
      for (int i = 0; i < Tile::key.groups; ++i) {
        load_shared(affine[i], metadata + static_cast<std::uint32_t>(i * 64 + at.g * 8));
      }
    }
  }

  //! A fragment of 32 elements (16 for f16 keys).
  __device__ void fragment(int step, std::uint32_t (&a)[4]) const noexcept
  {
    if constexpr (Tile::key.bits >= 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) { a[i] = words[4 * step + i]; }
    } else if constexpr (Tile::key.bits == 4) {
      a[0] = words[2 * step] & 0x0F0F0F0Fu;
      a[1] = words[2 * step] & 0xF0F0F0F0u;
      a[2] = words[2 * step + 1] & 0x0F0F0F0Fu;
      a[3] = words[2 * step + 1] & 0xF0F0F0F0u;
    } else {
      std::uint32_t const w = words[step];
      std::uint32_t const v = w >> 4;
      a[0]                  = w & 0x03030303u;
      a[1]                  = w & 0x0C0C0C0Cu;
      a[2]                  = v & 0x03030303u;
      a[3]                  = v & 0x0C0C0C0Cu;
    }
  }
};

//! What a product with the codes of row g + 8 counts for.
template <class Tile>
inline constexpr float second_row_unit = Tile::key.bits == 4   ? 1.0f / 16
                                         : Tile::key.bits == 2 ? 1.0f / 4
                                                               : 1.0f;

//! No columns beside those of attention's own queries; see `multiply`.
struct no_more_columns {
  __device__ void add(int /*step*/, std::uint32_t const (&/*fragment*/)[4]) const noexcept {}
  template <class Tile>
  __device__ void close_group(int /*group*/, key_block<Tile> const& /*keys*/) const noexcept
  {}
};

//! Logits of tokens g and g + 8 for head 4 s + t, in units of factor.
//! @param more  is given each fragment while it is at hand, and told when a scale group is complete
template <class Tile, int Sets, class More>
__device__ void multiply(key_block<Tile> const& keys,
                         code_queries<Tile::head_dim, Tile::key.groups, Sets> const& queries,
                         float (&x)[Sets][2], More&& more) noexcept
{
  constexpr int groups          = Tile::key.groups;
  constexpr int steps_per_group = code_queries<Tile::head_dim, groups, Sets>::steps / groups;
#pragma unroll
  for (int i = 0; i < groups; ++i) {
    int c[Sets][4]{};
#pragma unroll
    for (int s = 0; s < steps_per_group; ++s) {
      std::uint32_t a[4];
      keys.fragment(i * steps_per_group + s, a);
#pragma unroll
      for (int k = 0; k < Sets; ++k) {
        mma_u8_s8(c[k], a, queries.columns[k][i * steps_per_group + s]);
      }
      more.add(i * steps_per_group + s, a);
    }
    more.close_group(i, keys);
    float2 const affine_0 = f16_pair(keys.affine[i][0]);
    float2 const affine_1 = f16_pair(keys.affine[i][1]);
#pragma unroll
    for (int k = 0; k < Sets; ++k) {
      int const row_0  = c[k][0] * 256 + c[k][1];
      int const row_1  = c[k][2] * 256 + c[k][3];
      float const f0   = static_cast<float>(row_0);
      float const f1   = static_cast<float>(row_1) * second_row_unit<Tile>;
      float const sum  = queries.sums[k][i];
      float const rest = i == 0 ? affine_0.y * sum : fmaf(affine_0.y, sum, x[k][0]);
      x[k][0]          = fmaf(affine_0.x, f0, rest);
      x[k][1] = fmaf(affine_1.x, f1, i == 0 ? affine_1.y * sum : fmaf(affine_1.y, sum, x[k][1]));
    }
  }
}
template <class Tile, int Sets, class More>
__device__ void multiply(key_block<Tile> const& keys,
                         f16_queries<Tile::head_dim, Sets> const& queries, float (&x)[Sets][2],
                         More&& more) noexcept
{
  float c[Sets][4]{};
#pragma unroll
  for (int s = 0; s < f16_queries<Tile::head_dim, Sets>::steps; ++s) {
    std::uint32_t a[4];
    keys.fragment(s, a);
#pragma unroll
    for (int k = 0; k < Sets; ++k) {
      mma_f16(c[k], a, queries.columns[k][s][0], queries.columns[k][s][1]);
    }
    more.add(s, a);
  }
  more.close_group(0, keys);
#pragma unroll
  for (int k = 0; k < Sets; ++k) {
    x[k][0] = c[k][0] + c[k][1];
    x[k][1] = c[k][2] + c[k][3];
  }
}

//! cap * tanh(x / cap), in units of log2.
[[nodiscard]] __device__ inline float capped_logit(float x, float cap) noexcept
{
  // tanh(y) = 1 - 2 / (exp(2 y) + 1); right at both ends.
  float const e = fast_exp2(x * (2.0f * log2_of_e) / cap);
  return log2_of_e * cap * (1.0f - 2.0f * reciprocal(e + 1.0f));
}

}  // namespace diffkv::detail
