// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Attention of a row over some blocks of a tile: logits, weights, sums of values.
//! Read before this: attention/score_path.cuh.  Read next: attention/partial_row.cuh.
#include <diffkv/attention/key_products.cuh>
#include <diffkv/attention/score_path.cuh>
#include <diffkv/attention/value_products.cuh>

namespace diffkv::detail {

//! What does not change while a row is read.
template <class Traits>
struct row_queries {
  using high_type              = queries_for<typename Traits::high_tile, Traits::sets>;
  using low_type               = queries_for<typename Traits::low_tile, Traits::sets>;
  static constexpr bool shared = std::is_same_v<high_type, low_type>;
  struct nothing {};

  high_type high;
  std::conditional_t<shared, nothing, low_type> low;
  float offset[Traits::sets];   //!< scale * q.c of head 4 s + t, if a soft-cap wants it
  std::int32_t first_position;  //!< of the sliding window

  template <class Tile>
  [[nodiscard]] __device__ queries_for<Tile, Traits::sets> const& of() const noexcept
  {
    if constexpr (std::is_same_v<queries_for<Tile, Traits::sets>, high_type>) {
      return high;
    } else {
      return low;
    }
  }
};

//! Weights times scales of the value codes of one scale group, and their sums with the zeros.
template <class Tile, int Blocks, class Traits>
__device__ void fold_affine(row_accumulator<Traits>& row, int s, int group,
                            float const (&weights)[2 * Blocks],
                            std::uint32_t const (&affine)[Blocks][2],
                            float (&w)[2 * Blocks]) noexcept
{
#pragma unroll
  for (int i = 0; i < 2 * Blocks; ++i) {
    float2 const scale_zero = f16_pair(affine[i / 2][i % 2]);
    w[i]                    = weights[i] * scale_zero.x;
    row.zeros[s][group]     = fmaf(weights[i], scale_zero.y, row.zeros[s][group]);
  }
}

//! Pairs of blocks.
template <int Blocks>
inline constexpr int pairs_of = ceil_div(Blocks, 2);

//! Logits of the tokens of some blocks, as `multiply`, and what is added to their scores. Two blocks at a
//! time, in a loop: the code of both tiers is more than a multiprocessor keeps at hand, and fetching it
//! costs more than moving logits along.
//! @param add  score_path::of_two_blocks, if the row catches up
template <class Tile, int Blocks, class Traits, bool All>
__device__ void multiply_and_score(float (&logits)[Traits::sets][2 * Blocks],
                                   float (&add)[pairs_of<Blocks>], std::uint32_t tile,
                                   int first_block, float soft_cap,
                                   row_queries<Traits> const& queries,
                                   score_path<Traits, All> const& scores, fragment_lane at) noexcept
{
  constexpr int sets     = Traits::sets;
  constexpr int at_once  = min_of(Blocks, 2);
  constexpr int in_pairs = round_up(Blocks, at_once);
  constexpr int pairs    = pairs_of<Blocks>;
  float moving[sets][2 * in_pairs]{};
#pragma unroll
  for (int i = 0; i < pairs; ++i) { add[i] = 0.0f; }
#pragma unroll 1
  for (int begin = 0; begin < Blocks; begin += at_once) {
    float sum[2]{};
#pragma unroll
    for (int b = 0; b < at_once; ++b) {
      int const block = first_block + begin + b;
#pragma unroll
      for (int s = 0; s < sets; ++s) {
#pragma unroll
        for (int i = 0; i + 2 < 2 * in_pairs; ++i) { moving[s][i] = moving[s][i + 2]; }
      }
      float x[sets][2]{};
      if (Blocks == in_pairs || begin + b < Blocks) {
        key_block<Tile> keys;
        keys.load(tile, block, at);
        if (scores.catches_up()) {
          auto products = scores.template products<Tile>();
          multiply(keys, queries.template of<Tile>(), x, products);
          sum[b] = scores.template of_block<Tile>(products, tile, block, soft_cap, at);
        } else {
          multiply(keys, queries.template of<Tile>(), x, no_more_columns{});
        }
      }
#pragma unroll
      for (int s = 0; s < sets; ++s) {
        moving[s][2 * in_pairs - 2] = x[s][0];
        moving[s][2 * in_pairs - 1] = x[s][1];
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < pairs; ++i) { add[i] = add[i + 1]; }
    if (scores.catches_up()) {
      int const rest = Blocks == in_pairs ? at_once : min_of(Blocks - begin, at_once);
      add[pairs - 1] =
        scores.template of_two_blocks<Tile>(sum[0], sum[1], tile, first_block + begin, rest, at);
    }
  }
#pragma unroll
  for (int s = 0; s < sets; ++s) {
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) { logits[s][i] = moving[s][i]; }
  }
}

//! @tparam Whole       all tokens are attended to; else it is looked at
//! @tparam Scores      score_path, or no_scores
//! @param tile         shared memory
//! @param first_block  of the tile
//! @param tokens       from there on, that exist
//! @threads one warp
template <class Tile, int Blocks, bool Whole, class Traits, class Scores>
__device__ void attend_blocks(std::uint32_t tile, int first_block, int tokens, float soft_cap,
                              row_queries<Traits> const& queries, row_accumulator<Traits>& row,
                              Scores& scores, weight_exchange const& exchange,
                              fragment_lane at) noexcept
{
  constexpr int sets         = Traits::sets;
  constexpr int value_groups = Tile::value.groups;
  constexpr bool quantised   = Tile::value.is_quantised();
  bool const whole = Whole || (!Traits::variant::sliding_window && tokens >= Blocks * block_tokens);
  token_filter<Tile, Traits::variant::sliding_window> const filter{
    tokens, queries.first_position,
    tile + Tile::positions + static_cast<std::uint32_t>(64 * first_block)};

  float logits[sets][2 * Blocks];
  if constexpr (Scores::enabled) {
    float add[pairs_of<Blocks>];
    multiply_and_score<Tile, Blocks>(logits, add, tile, first_block, soft_cap, queries, scores, at);
    if (scores.catches_up()) {
      scores.template update<Tile, Blocks>(add, tile, first_block, tokens, at);
    }
  } else {
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      key_block<Tile> keys;
      keys.load(tile, first_block + b, at);
      float x[sets][2];
      multiply(keys, queries.template of<Tile>(), x, no_more_columns{});
#pragma unroll
      for (int s = 0; s < sets; ++s) {
        logits[s][2 * b]     = x[s][0];
        logits[s][2 * b + 1] = x[s][1];
      }
    }
  }

  std::uint32_t kept = ~0u;  // bit i: token 16 (i / 2) + g + 8 (i % 2)
  if (!whole) {
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      if (!filter.keeps(16 * (i / 2) + at.g + 8 * (i % 2))) { kept &= ~(1u << i); }
    }
  }
  std::uint32_t affine[value_groups][Blocks][2];
  if constexpr (quantised) {
#pragma unroll
    for (int i = 0; i < value_groups; ++i) {
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
        load_shared(affine[i][b], tile + Tile::template at<Tile::value_metadata>(first_block + b) +
                                    static_cast<std::uint32_t>(i * 64 + at.g * 8));
        if (!whole) {
          if ((kept >> (2 * b) & 1u) == 0) { affine[i][b][0] = 0u; }
          if ((kept >> (2 * b + 1) & 1u) == 0) { affine[i][b][1] = 0u; }
        }
      }
    }
  }

  weight_columns<Blocks, quantised> columns[sets][value_groups];
#pragma unroll
  for (int s = 0; s < sets; ++s) {
    float factor = queries.template of<Tile>().factor[s];
    if constexpr (Traits::variant::soft_cap) {
#pragma unroll
      for (int i = 0; i < 2 * Blocks; ++i) {
        logits[s][i] = capped_logit(fmaf(logits[s][i], factor, queries.offset[s]), soft_cap);
      }
      factor = 1.0f;
    }
    if (!whole) {
#pragma unroll
      for (int i = 0; i < 2 * Blocks; ++i) {
        if ((kept >> i & 1u) == 0) { logits[s][i] = minus_infinity; }
      }
    }
    float weights[2 * Blocks];
    weigh_tokens(row, s, logits[s], factor, weights);
#pragma unroll
    for (int i = 0; i < value_groups; ++i) {
      if constexpr (quantised) {
        float w[2 * Blocks];
        fold_affine<Tile, Blocks>(row, s, i, weights, affine[i], w);
        columns[s][i].set(w, exchange);
      } else {
        columns[s][i].set(weights, exchange);
      }
    }
  }
  add_values<Tile, Blocks>(row, columns, tile, first_block, whole, filter, at);
}

//! The whole of a tile.
//! @tparam Whole   all its tokens are attended to; else it is looked at
//! @tparam Scores  score_path, or no_scores
//! @param tokens   of it, that exist; at least 1
template <class Tile, bool Whole, class Traits, class Scores>
__device__ void attend_tile(std::uint32_t tile, int tokens, float soft_cap,
                            row_queries<Traits> const& queries, row_accumulator<Traits>& row,
                            Scores& scores, weight_exchange const& exchange,
                            fragment_lane at) noexcept
{
  constexpr int at_once = min_of(Tile::tile_blocks, most_blocks_at_once);
  constexpr int rest    = Tile::tile_blocks % at_once;
  constexpr int whole   = Tile::tile_blocks / at_once;
  if constexpr (whole == 1) {
    attend_blocks<Tile, at_once, Whole>(tile, 0, tokens, soft_cap, queries, row, scores, exchange,
                                        at);
  } else {
#pragma unroll 1
    for (int i = 0; i < whole; ++i) {
      int const first_block = i * at_once;
      if (!Whole && tokens <= first_block * block_tokens) { return; }
      attend_blocks<Tile, at_once, Whole>(tile, first_block, tokens - first_block * block_tokens,
                                          soft_cap, queries, row, scores, exchange, at);
    }
  }
  if constexpr (rest > 0) {
    constexpr int first_block = whole * at_once;
    if (!Whole && tokens <= first_block * block_tokens) { return; }
    attend_blocks<Tile, rest, Whole>(tile, first_block, tokens - first_block * block_tokens,
                                     soft_cap, queries, row, scores, exchange, at);
  }
}

}  // namespace diffkv::detail
