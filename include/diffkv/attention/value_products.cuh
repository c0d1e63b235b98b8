// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums of values over the tokens of some blocks: weights become the columns of tensor-core products.
//! Read before this: attention/row_accumulator.cuh.  Read next: attention/lagged_queries.cuh.
//!
//! Weight * scale is rounded to 16 bits of the greatest one among the tokens at hand, so that the tail
//! behind a token that takes nearly all of the weight is not lost; two 8-bit columns hold it. Codes
//! narrower than a byte stay where they are in it: the c-th of a byte is a multiple of 2^(bits c).
#include <diffkv/attention/query_fragments.cuh>  // pack_f16
#include <diffkv/attention/row_accumulator.cuh>

namespace diffkv::detail {

//! Which tokens of a run of blocks are attended to: those that exist and lie in the sliding window.
template <class Tile, bool Windowed>
struct token_filter {
  int tokens                  = 0;  //!< that exist
  std::int32_t first_position = 0;  //!< of the window
  std::uint32_t positions     = 0;  //!< of the run, shared memory

  [[nodiscard]] __device__ bool keeps(int token) const noexcept
  {
    if (token >= tokens) { return false; }
    if constexpr (Windowed) {
      auto const place = static_cast<std::uint32_t>(token_place(token));
      return static_cast<std::int32_t>(load_shared(positions + 4u * place)) >= first_position;
    }
    return true;
  }
  //! Masks for the halves of the value fragments of block b: tokens 2 t, 2 t + 8; 2 t + 1, 2 t + 9.
  __device__ void value_masks(int b, int t, std::uint32_t (&pairs)[2]) const noexcept
  {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const token = block_tokens * b + 2 * t + i;
      pairs[i]        = (keeps(token) ? 0xFFFFu : 0u) | (keeps(token + 8) ? 0xFFFF0000u : 0u);
    }
  }
};

//! Elements of a lane's share of the values of a tier.
template <class Tile>
inline constexpr int value_elements = stored_elements(Tile::head_dim, Tile::value.groups) / 8;

//! Codes of a tier's values in a byte; 1 where a code is a byte or more.
template <class Tile>
inline constexpr int value_codes_per_byte = Tile::value.bits < 8 ? 8 / Tile::value.bits : 1;

//! Which lanes exchange weights, and which bytes of them. A lane has tokens g and g + 8 of a head and
//! wants one column, the high or the low bytes of head g / 2, for tokens 2 t, 2 t + 8, 2 t + 1, 2 t + 9.
struct weight_exchange {
  int first_source;
  int second_source;
  std::uint32_t first_sent;  //!< plane that goes out first: selector of bytes
  std::uint32_t second_sent;
  std::uint32_t even_block;  //!< how received bytes make a column of the first block, of the second
  std::uint32_t odd_block;
  bool is_rest;  //!< odd g: wants the low bytes (or what f16 rounding left), and sends them first

  explicit __device__ weight_exchange(fragment_lane at) noexcept
  {
    constexpr std::uint32_t low_plane  = 0x5410u;
    constexpr std::uint32_t high_plane = 0x7632u;
    bool const odd                     = at.g % 2 != 0;
    int const even_source              = 8 * at.t + at.g / 2;
    // Lanes of even g send the high plane first, lanes of odd g the low one; who wants the low
    // plane asks a lane of odd g first.
    first_source  = even_source + (odd ? 4 : 0);
    second_source = even_source + (odd ? 0 : 4);
    first_sent    = odd ? low_plane : high_plane;
    second_sent   = odd ? high_plane : low_plane;
    even_block    = odd ? 0x1054u : 0x5410u;
    odd_block     = odd ? 0x3276u : 0x7632u;
    is_rest       = odd;
  }
};

//! Columns of one head set and scale group over some blocks.
template <int Blocks, bool Quantised>
struct weight_columns {
  std::uint32_t words[Quantised ? Blocks : 2 * Blocks];
  float unit;  //!< what a product of 1 stands for, for the lowest code of a byte

  //! @param w  weights (times scales) of tokens g and g + 8 of each block
  __device__ void set(float const (&w)[2 * Blocks], weight_exchange const& exchange) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    float greatest         = 1e-30f;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) { greatest = fmaxf(greatest, w[i]); }
    greatest = max_over_g(greatest);
    if constexpr (Quantised) {
      constexpr float limit = 65024.0f;    // 254 * 256
      constexpr float magic = 8388608.0f;  // 2^23: the low 16 bits of the sum are the integer
      float const scale     = limit * reciprocal(greatest);
      unit                  = greatest * (1.0f / limit);
      std::uint32_t u[2 * Blocks];
#pragma unroll
      for (int i = 0; i < 2 * Blocks; ++i) { u[i] = __float_as_uint(fmaf(w[i], scale, magic)); }
#pragma unroll
      for (int b = 0; b < Blocks; b += 2) {
        bool const pair          = b + 1 < Blocks;
        std::uint32_t const even = __byte_perm(u[2 * b], u[2 * b + 1], 0x5140u);
        std::uint32_t const odd =
          pair ? __byte_perm(u[(2 * b + 2) % (2 * Blocks)], u[(2 * b + 3) % (2 * Blocks)], 0x5140u)
               : 0u;
        std::uint32_t const first =
          __shfl_sync(all, __byte_perm(even, odd, exchange.first_sent), exchange.first_source);
        std::uint32_t const second =
          __shfl_sync(all, __byte_perm(even, odd, exchange.second_sent), exchange.second_source);
        words[b] = __byte_perm(first, second, exchange.even_block);
        if (pair) { words[(b + 1) % Blocks] = __byte_perm(first, second, exchange.odd_block); }
      }
    } else {
      constexpr float limit = 32768.0f;
      float const scale     = limit * reciprocal(greatest);
      unit                  = greatest * (1.0f / limit);
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
        float const w0           = w[2 * b] * scale;
        float const w1           = w[2 * b + 1] * scale;
        std::uint32_t const high = pack_f16(w0, w1, false);
        std::uint32_t const rest = pack_f16(w0, w1, true);
        std::uint32_t const first =
          __shfl_sync(all, exchange.is_rest ? rest : high, exchange.first_source);
        std::uint32_t const second =
          __shfl_sync(all, exchange.is_rest ? high : rest, exchange.second_source);
        words[2 * b]     = exchange.is_rest ? second : first;
        words[2 * b + 1] = exchange.is_rest ? first : second;
      }
    }
  }
};

//! Rows g and g + 8 of 16-element step `step`, out of the words of one block.
template <int Bits, int Words>
__device__ void value_fragment(std::uint32_t const (&words)[Words], int step, std::uint32_t& row_0,
                               std::uint32_t& row_1) noexcept
{
  if constexpr (Bits == 8) {
    row_0 = words[2 * step];
    row_1 = words[2 * step + 1];
  } else {
    constexpr int steps_per_word   = 4 / Bits;  // 4 bits: 1, 2 bits: 2, 1 bit: 4
    std::uint32_t const w          = words[step / steps_per_word];
    int const code                 = step % steps_per_word * 2;  // of row_0 in a byte
    constexpr std::uint32_t lowest = ((1u << Bits) - 1u) * 0x01010101u;
    row_0                          = w & lowest << Bits * code;
    row_1                          = w & lowest << Bits * (code + 1);
  }
}

//! Adds the values of some blocks, from shared memory, to the sums of a row.
//! @param first_block  of the tile
//! @param whole        no token is left out
template <class Tile, int Blocks, class Traits>
__device__ void add_values(row_accumulator<Traits>& row,
                           weight_columns<Blocks, Tile::value.is_quantised()> const (
                             &columns)[Traits::sets][Tile::value.groups],
                           std::uint32_t tile, int first_block, bool whole,
                           token_filter<Tile, Traits::variant::sliding_window> const& filter,
                           fragment_lane at) noexcept
{
  constexpr int bits            = Tile::value.bits;
  constexpr int groups          = Tile::value.groups;
  constexpr int steps           = value_elements<Tile> / 2;
  constexpr int steps_per_group = steps / groups;
  constexpr int sets            = Traits::sets;
  constexpr int words           = Tile::value_words;
  constexpr int unit            = words < 4 ? words : 4;  // words read at a time
  constexpr int steps_per_unit  = bits == 16 ? unit / 4 : bits == 8 ? unit / 2 : unit * 4 / bits;
  constexpr int per_byte        = value_codes_per_byte<Tile>;
  float unit_of[sets][groups][per_byte];  // of the c-th code of a byte
#pragma unroll
  for (int s = 0; s < sets; ++s) {
#pragma unroll
    for (int i = 0; i < groups; ++i) {
#pragma unroll
      for (int c = 0; c < per_byte; ++c) {
        unit_of[s][i][c] = columns[s][i].unit * (1.0f / static_cast<float>(1 << bits * c));
      }
    }
  }
  // A slot that was never written may hold NaN, which no weight of 0 makes harmless.
  std::uint32_t masks[Blocks][2];
  if constexpr (bits == 16) {
#pragma unroll
    for (int b = 0; b < Blocks; ++b) { masks[b][0] = masks[b][1] = ~0u; }
    if (!whole) {
#pragma unroll
      for (int b = 0; b < Blocks; ++b) { filter.value_masks(b, at.t, masks[b]); }
    }
  }
#pragma unroll
  for (int u = 0; u < ceil_div(words, unit); ++u) {
    constexpr int rest = words % unit;  // the last unit is narrower
    std::uint32_t w[Blocks][unit];
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      std::uint32_t const block = tile + Tile::template at<Tile::value_codes>(first_block + b);
      if (rest != 0 && u == words / unit) {
        std::uint32_t narrow[rest == 0 ? 1 : rest];
        load_fragment(narrow, block + static_cast<std::uint32_t>(u * unit * 128), at.lane);
#pragma unroll
        for (int i = 0; i < rest; ++i) { w[b][i] = narrow[i]; }
#pragma unroll
        for (int i = rest; i < unit; ++i) { w[b][i] = 0u; }
      } else {
        load_fragment(w[b], block + static_cast<std::uint32_t>(u * unit * 128), at.lane);
      }
    }
#pragma unroll
    for (int i = 0; i < steps_per_unit; ++i) {
      int const step = u * steps_per_unit + i;
      if (step >= steps) { continue; }
      int const group = step / steps_per_group;
      if constexpr (bits == 16) {
        float c[sets][4]{};
#pragma unroll
        for (int b = 0; b < Blocks; ++b) {
          std::uint32_t a[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) { a[n] = w[b][4 * i + n]; }
#pragma unroll
          for (int n = 0; n < 4; ++n) { a[n] &= masks[b][n / 2]; }
#pragma unroll
          for (int s = 0; s < sets; ++s) {
            mma_f16(c[s], a, columns[s][0].words[2 * b], columns[s][0].words[2 * b + 1]);
          }
        }
#pragma unroll
        for (int s = 0; s < sets; ++s) {
          float* const out = row.out[s] + 2 * step;
          out[0]           = fmaf(unit_of[s][0][0], c[s][0] + c[s][1], out[0]);
          out[1]           = fmaf(unit_of[s][0][0], c[s][2] + c[s][3], out[1]);
        }
      } else {
        int c[sets][4]{};
#pragma unroll
        for (int b = 0; b < Blocks; b += 2) {
          std::uint32_t a[4];
          value_fragment<bits>(w[b], i, a[0], a[1]);
          if (b + 1 < Blocks) {
            value_fragment<bits>(w[(b + 1) % Blocks], i, a[2], a[3]);
#pragma unroll
            for (int s = 0; s < sets; ++s) {
              auto const& column = columns[s][group].words;
              mma_u8_u8(c[s], a, column[b], column[(b + 1) % Blocks]);
            }
          } else {
#pragma unroll
            for (int s = 0; s < sets; ++s) {
              mma_u8_u8(c[s], a[0], a[1], columns[s][group].words[b]);
            }
          }
        }
#pragma unroll
        for (int s = 0; s < sets; ++s) {
          float const(&units)[per_byte] = unit_of[s][group];
          float* const out              = row.out[s] + 2 * step;
          float const sum_0             = static_cast<float>(c[s][0] * 256 + c[s][1]);
          float const sum_1             = static_cast<float>(c[s][2] * 256 + c[s][3]);
          out[0]                        = fmaf(units[2 * step % per_byte], sum_0, out[0]);
          out[1]                        = fmaf(units[(2 * step + 1) % per_byte], sum_1, out[1]);
        }
      }
    }
  }
}

}  // namespace diffkv::detail
