// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What follows at compile time from a configuration and a variant of decode attention: tiles, columns,
//! registers, shared memory, and the tuning.
//! Read before this: attention/decode_tile.hpp.  Read next: attention/query_codes.cuh.
#include <diffkv/attention/decode_tile.hpp>
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/table/static_config.hpp>

namespace diffkv::detail {

//! Measured on an H200: about 100 KiB under way per multiprocessor are enough; more make the shares of
//! the multiprocessors unequal.
struct decode_tuning_sm90 {
  static constexpr int warps                       = 8;   //!< of a CTA, fewer where memory is short
  static constexpr int more_warps                  = 12;  //!< as many as registers allow
  static constexpr std::uint32_t most_tile_bytes   = 17408;  //!< a page of 16-bit keys and values
  static constexpr std::uint32_t enough_tile_bytes = 9216;   //!< of small pages together
  static constexpr std::uint32_t warp_tile_bytes   = 13312;  //!< of all slots of a warp, about
  static constexpr int most_heads_times_dim        = 2048;   //!< of a pass: sums in registers
  static constexpr std::uint32_t long_run          = 6;      //!< tiles, worth code of their own
  //! Several times the L2 cache: the bytes of as many high pages as cost as much as the launch.
  static constexpr std::uint32_t large_launch_bytes = 384u << 20;
};

//! What headers behind this one keep in shared memory: row_note (page_walk.cuh) for each slot, scored_row
//! (score_path.cuh) for each warp.
inline constexpr std::uint32_t row_note_bytes   = 32;
inline constexpr std::uint32_t scored_row_bytes = 32;

template <class Config, class Variant>
struct decode_traits {
  using variant = Variant;
  using policy  = typename Config::policy_type;
  using layouts = typename Config::layouts;
  using tuning  = decode_tuning_sm90;

  static constexpr int head_dim         = layouts::head_dim;
  static constexpr bool has_low         = layouts::has_low;
  static constexpr int score_every      = Variant::score_every;
  static constexpr bool has_scores      = score_every > 0;
  static constexpr bool needs_positions = has_scores || Variant::sliding_window;
  static constexpr bool centred         = has(Config::conditioned, conditioning::centred);
  static constexpr bool rotated         = has(Config::conditioned, conditioning::rotated);

  //! Whether the lag ring holds 8-bit codes.
  static constexpr bool codes_in_ring =
    ring_rounding(layouts::high::geometry.format.key, layouts::low::geometry.format.key,
                  Variant::exact_lag) == lag_rounding::int8;

  //! Of the pages of a row.
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr row_cost cost_of(std::uint32_t high_pages,
                                                                     std::uint32_t low_pages,
                                                                     bool catches_up) noexcept
  {
    return {high_pages, low_pages, page_cost::of_layouts<layouts>(catches_up)};
  }

  // Heads: a row is read once for as many q_heads as the sums of a warp have registers for.
  static constexpr int group_size = Variant::group_size;
  static constexpr int passes =
    ceil_div(group_size, min_of(16, tuning::most_heads_times_dim / head_dim));
  static constexpr int heads = ceil_div(group_size, passes);  //!< of a pass
  static constexpr int sets  = ceil_div(heads, 4);  //!< of 4 heads: 8 columns, high and low
  static constexpr bool has_scale_groups =
    max_of(max_of(layouts::high::geometry.format.key.groups,
                  layouts::high::geometry.format.value.groups),
           max_of(layouts::low::geometry.format.key.groups,
                  layouts::low::geometry.format.value.groups)) > 1;
  //! Whether registers suffice for more warps. Rows with two tiers run two codes and wait longer for
  //! instructions, which more warps hide; with scores, twelve warps spill and miss more of their code.
  static constexpr bool fits_more_warps =
    sets == 1 && head_dim <= 128 && !has_scores && !has_scale_groups;
  //! Values of so few bits take about as long to compute as to read.
  static constexpr bool is_narrow = layouts::high::geometry.format.value.bits <= 2;
  static constexpr int warps =
    fits_more_warps && (has_low || is_narrow) ? tuning::more_warps : tuning::warps;

  //! Code for whole tiles only, beside that for any tile. Where code is long, fetching it costs more than
  //! it saves (docs/performance.md).
  static constexpr bool has_long_loops =
    !has_low && sets == 1 && !has_scores && !Variant::sliding_window;

  template <class Layout>
  using tile_of =
    decode_tile<Layout, needs_positions, tuning::most_tile_bytes, tuning::enough_tile_bytes>;
  using high_tile = tile_of<typename layouts::high>;
  using low_tile  = tile_of<typename layouts::low>;
  //! Order of the sums of a row before and after it is read, and while its low tier is read.
  static constexpr element_order values{head_dim, high_tile::value.groups};
  static constexpr element_order low_values{head_dim, low_tile::value.groups};
  static constexpr bool reorders = values.groups != low_values.groups;

  static constexpr std::uint32_t slot_bytes =
    round_up(max_of(high_tile::bytes, has_low ? low_tile::bytes : 0u), 128u);
  //! Tiles of a warp: one at hand, the others on their way.
  static constexpr int slots = static_cast<int>(
    min_of(4u, max_of(2u, (tuning::warp_tile_bytes + slot_bytes / 2) / slot_bytes)));

  // A partial result: sums [heads, head_dim], (maximum, sum) [heads], scale * q.c [heads] where
  // keys are centred, candidates [2, places].
  static constexpr int candidate_places = score_every;  //!< of a tier
  static constexpr int candidate_bytes =
    static_cast<int>(sizeof(candidate)) * num_stored_tiers * candidate_places;
  static constexpr int part_states          = heads * head_dim;  //!< float offset
  static constexpr int part_offsets         = part_states + 2 * heads;
  static constexpr int part_candidates      = part_offsets + (centred ? heads : 0);
  static constexpr int part_floats          = round_up(part_candidates + candidate_bytes / 4, 4);
  static constexpr std::uint32_t part_bytes = 4u * part_floats;

  // Shared memory of a warp. The last part of its range lies where its tiles were.
  static constexpr std::uint32_t ring_bytes =
    round_up(max_of(slot_bytes * slots, part_bytes), 128u);
  //! By way of shared memory go the columns of four queries, four vectors where a rotation has several
  //! blocks or queries are kept, and sums that change their order.
  static constexpr bool stages_vectors =
    (rotated && rotation_block(head_dim) != head_dim) || reorders || (has_scores && !codes_in_ring);
  static constexpr std::uint32_t stage_bytes =
    4u *
    static_cast<std::uint32_t>(max_of(stages_vectors ? 4 * head_dim : 0,
                                      max_of(high_tile::column_words, low_tile::column_words)));
  //! Candidates of the row at hand, and what they are judged by (scored_row, score_path.cuh).
  static constexpr std::uint32_t record_bytes =
    round_up(static_cast<std::uint32_t>(candidate_bytes), 16u) +
    (has_scores ? scored_row_bytes : 0u);
  static constexpr std::uint32_t note_bytes    = row_note_bytes * slots;
  static constexpr std::uint32_t barrier_bytes = 8u * slots;
  //! scale * q.c of the row at hand: wanted at its end only.
  static constexpr std::uint32_t offset_bytes = centred ? 16u * sets : 0u;
  static constexpr std::uint32_t warp_bytes =
    round_up(ring_bytes + part_bytes + stage_bytes + record_bytes + note_bytes + barrier_bytes +
               offset_bytes,
             128u);

  [[nodiscard]] static constexpr std::uint32_t shared_bytes(std::uint32_t warps) noexcept
  {
    return warps * warp_bytes;
  }
};

}  // namespace diffkv::detail
