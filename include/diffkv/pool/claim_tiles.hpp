// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the rows of a claim are shared out to CTAs.
//! Read before this: pool/claim_request.hpp.  Read next: table/cache_shape.hpp.
#include <diffkv/core/error.hpp>         // DIFFKV_EXPECTS
#include <diffkv/detail/arithmetic.hpp>  // ceil_div

#include <cstdint>

namespace diffkv {

//! Measured on an H200: one wave of CTAs, each thread with neighbouring rows.
struct claim_tuning_sm90 {
  static constexpr std::uint32_t rows_per_thread = 8;
  static constexpr std::uint32_t least_threads   = 128;  //!< they sum the tiles' totals
  static constexpr std::uint32_t max_threads     = 1024;
  static constexpr std::uint32_t wanted_tiles    = 132;
  static constexpr std::uint32_t least_rows      = 256;  //!< of a tile, where there are many
  //! Longer sequences may be shared by several CTAs.
  static constexpr std::uint32_t whole_sequence_rows = 1024;
};

//! A tile is the rows of one CTA: some whole sequences, or a part of one.
struct claim_tiles {
  std::uint32_t count        = 0;  //!< tiles
  std::uint32_t rows         = 0;  //!< of a tile; the last one (of a sequence) may have fewer
  std::uint32_t sequences    = 1;  //!< whole sequences in a tile
  std::uint32_t per_sequence = 1;  //!< tiles of one sequence; above 1, `sequences` is 1
  std::uint32_t threads      = 32;
};

//! @throws invalid_argument if there are more rows than a grid can take
template <class Tuning = claim_tuning_sm90>
[[nodiscard]] constexpr claim_tiles make_claim_tiles(std::uint32_t num_sequences,
                                                     std::uint32_t rows_per_sequence)
{
  constexpr std::uint64_t most = std::uint64_t{Tuning::max_threads} * Tuning::rows_per_thread;
  std::uint64_t const per_seq  = rows_per_sequence;
  std::uint64_t const total    = num_sequences * per_seq;
  std::uint64_t wanted         = detail::ceil_div<std::uint64_t>(total, Tuning::wanted_tiles);
  wanted = detail::min_of(detail::max_of<std::uint64_t>(wanted, Tuning::least_rows), most);

  std::uint64_t rows = 0, sequences = 1, per_sequence = 1;
  if (per_seq > wanted && per_seq > Tuning::whole_sequence_rows) {
    std::uint64_t const parts = detail::ceil_div(per_seq, wanted);
    rows                      = detail::ceil_div(per_seq, parts);
    rows                      = detail::round_up<std::uint64_t>(rows, Tuning::rows_per_thread);
    per_sequence              = detail::ceil_div(per_seq, rows);
  } else if (per_seq > 0) {
    std::uint64_t const fit = most / per_seq;
    sequences               = detail::min_of(detail::ceil_div(wanted, per_seq), fit);
    // A warp for each sequence leaves none of them idle, and 16-byte loads stay aligned.
    std::uint64_t const even = detail::ceil_div<std::uint64_t>(sequences, 8) * 8;
    if (sequences > 4 && even <= fit) { sequences = even; }
    rows = sequences * per_seq;
  } else {
    sequences = most;
  }
  std::uint64_t const count = per_sequence > 1
                                ? num_sequences * per_sequence
                                : detail::ceil_div<std::uint64_t>(num_sequences, sequences);
  DIFFKV_EXPECTS(count <= 0x7FFF'FFFFu, "rows_per_sequence: " + std::to_string(num_sequences) +
                                          " sequences of " + std::to_string(rows_per_sequence) +
                                          " rows are more than one launch can take");
  std::uint64_t const threads = detail::max_of<std::uint64_t>(
    detail::round_up<std::uint64_t>(detail::ceil_div<std::uint64_t>(rows, Tuning::rows_per_thread),
                                    32),
    Tuning::least_threads);
  return {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(rows),
          static_cast<std::uint32_t>(sequences), static_cast<std::uint32_t>(per_sequence),
          static_cast<std::uint32_t>(threads)};
}

}  // namespace diffkv
