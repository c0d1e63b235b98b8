// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The pages of a warp's range, row after row: asks for tiles ahead of what is computed.
//! Read before this: attention/row_output.cuh.  Read next: attention/row_merge.cuh.
#include <diffkv/attention/page_stream.cuh>
#include <diffkv/attention/row_output.cuh>

namespace diffkv::detail {

//! What is known of a row when its first tile is asked for, left for when that has come. In shared
//! memory, one for each slot.
struct alignas(16) row_note {
  std::uint32_t index;  //!< row of the launch
  std::uint32_t ordinal;  //!< of its first page in this warp
  std::uint32_t pages;    //!< of the row
  std::uint32_t flags;    //!< row_flag
};

namespace row_flag {
inline constexpr std::uint32_t stored     = 1;  //!< as in planned_row
inline constexpr std::uint32_t catches_up = 2;
}  // namespace row_flag

//! What is known of a tile, in a word: tokens, flags, and the block of the page where it begins.
struct tile_note {
  std::uint32_t word = 0;

  static constexpr std::uint32_t low       = 1u << 16;  //!< tier
  static constexpr std::uint32_t begins    = 1u << 17;  //!< first of its row in this warp
  static constexpr std::uint32_t ends_page = 1u << 18;
  static constexpr std::uint32_t ends      = 1u << 19;  //!< last of its row in this warp

  [[nodiscard]] __device__ int tokens() const noexcept { return static_cast<int>(word & 0xFFFFu); }
  [[nodiscard]] __device__ std::uint32_t block() const noexcept { return word >> 20; }
  [[nodiscard]] __device__ bool is(std::uint32_t flag) const noexcept { return (word & flag) != 0; }
};

//! The part of a copy for which all constants are known.
template <class Tile, class Stream>
__device__ void copy_tile(Stream const& stream, int slot, std::uint32_t to, std::byte const* page,
                          std::uint32_t tokens, std::uint32_t first_block, bool all_segments,
                          tile_geometry const& cut, int lane) noexcept
{
  constexpr std::uint32_t read_bytes =
    Tile::cut.segments[3].in_tile +
    Tile::cut.segments[3].per_block * static_cast<std::uint32_t>(Tile::tile_blocks);
  bool const everything = Tile::with_scores && all_segments;
  if (Tile::tiles_per_page == 1 && tokens > Tile::tile_tokens - block_tokens) {
    std::uint32_t const bytes = everything ? Tile::bytes : read_bytes;
    stream.begin(slot, bytes, lane);
    stream.copy(slot, to, page, bytes, lane);  // the page from its first byte on
  } else {
    std::uint32_t const blocks = ceil_div(tokens, static_cast<std::uint32_t>(block_tokens));
    int const segments         = everything ? Tile::cut.num_read : 4;
    std::uint32_t bytes        = 0;
#pragma unroll 1
    for (int s = 0; s < segments; ++s) { bytes += cut.segments[s].per_block * blocks; }
    stream.begin(slot, bytes, lane);
#pragma unroll 1
    for (int s = 0; s < segments; ++s) {
      tile_segment const& segment = cut.segments[s];
      stream.copy(slot, to + segment.in_tile,
                  page + segment.in_page + segment.per_block * first_block,
                  segment.per_block * blocks, lane);
    }
  }
  stream.end();
}

//! Row descriptions are read two rows ahead and page ids one row (or 32 pages) ahead, so that no tile
//! waits for them. A run is the pages of one tier of a row.
template <class Traits, class T, class Out>
struct page_walk {
  using high_tile = typename Traits::high_tile;
  using low_tile  = typename Traits::low_tile;

  decode_params<Traits, T, Out> const& p;
  int lane;
  std::uint32_t index;  //!< row of the launch
  std::uint32_t left;   //!< pages of the warp that were not asked for
  planned_row row;
  planned_row next_row{};
  planned_row row_after{};
  page_id ids;             //!< of pages window + lane of the row
  page_id ids_ahead{};     //!< 32 further ones
  page_id next_ids{};      //!< first ones of the next row
  std::uint32_t window;
  std::uint32_t cursor = 0;      //!< next page: window + cursor
  std::uint32_t run_left = 0;    //!< pages of the run
  std::uint32_t last_tokens = 0;  //!< of its last page
  std::uint32_t tile = 0;        //!< of the page
  bool is_low        = false;
  bool begins        = true;  //!< no tile of this row was asked for

  __device__ page_walk(decode_params<Traits, T, Out> const& params_of_launch,
                       warp_range const& range, int lane_of_thread) noexcept
    : p{params_of_launch},
      lane{lane_of_thread},
      index{range.index},
      left{range.num_pages},
      row{range.of},
      ids{range.page},
      window{range.first_page}
  {
    begin_run(range.first_page);
  }

  [[nodiscard]] __device__ bool has_more() const noexcept { return left > 0; }

  //! Reads what the walk will need; the first tile is asked for before this.
  __device__ void look_ahead() noexcept
  {
    if (left == 0) { return; }
    std::uint32_t const of_row = pages_of(row) - window;
    ids                        = id_at(row, window + static_cast<std::uint32_t>(lane));
    ids_ahead                  = id_at(row, window + 32u + static_cast<std::uint32_t>(lane));
    std::uint32_t const warp_pages = left + cursor;
    if (warp_pages > of_row) {
      next_row = row_at(index + 1);
      if (warp_pages > of_row + pages_of(next_row)) { row_after = row_at(index + 2); }
      next_ids = id_at(next_row, static_cast<std::uint32_t>(lane));
    }
  }

  //! Asks for the next tile.
  //! @param slot_address  where it goes
  //! @param note          what is left for the one who computes, if a row begins
  //! @param page          likewise
  //! @pre has_more; look_ahead was called, unless this is the first request
  //! @threads one warp; followed by __syncwarp before the note is read
  template <class Stream>
  [[nodiscard]] __device__ tile_note request(Stream const& stream, int slot,
                                             std::uint32_t slot_address, row_note* note,
                                             page_id& page) noexcept
  {
    if (run_left == 0 || cursor == 32) { move(); }
    page = page_id{
      __shfl_sync(0xFFFF'FFFFu, static_cast<std::uint32_t>(ids), static_cast<int>(cursor))};
    std::byte const* const from =
      p.cache.pool.base + std::size_t{Traits::layouts::page_bytes} * static_cast<std::uint32_t>(page);
    // Without scores to update, scores and positions stay where they are.
    bool const all_segments =
      Traits::variant::sliding_window || (Traits::has_scores && row.catches_up != 0);
    tile_note made;
    if (Traits::has_low && is_low) {
      made = cut<low_tile>();
      copy_tile<low_tile>(stream, slot, slot_address, from,
                          static_cast<std::uint32_t>(made.tokens()), made.block(), all_segments,
                          p.cut[1], lane);
      made.word |= tile_note::low;
    } else {
      made = cut<high_tile>();
      copy_tile<high_tile>(stream, slot, slot_address, from,
                           static_cast<std::uint32_t>(made.tokens()), made.block(), all_segments,
                           p.cut[0], lane);
    }
    if (begins) {
      made.word |= tile_note::begins;
      begins = false;
      if (lane == 0) {
        *note = row_note{index, window + cursor, pages_of(row),
                         (row.stored != 0 ? row_flag::stored : 0u) |
                           (row.catches_up != 0 ? row_flag::catches_up : 0u)};
      }
    }
    if (!made.is(tile_note::ends_page)) {
      ++tile;
      return made;
    }
    if (left == 1 || (run_left == 1 && (is_low || row.low == 0))) { made.word |= tile_note::ends; }
    tile = 0;
    ++cursor;
    --run_left;
    --left;
    return made;
  }

 private:
  template <class Tile>
  [[nodiscard]] static __device__ std::uint32_t pages_for(std::uint32_t tokens) noexcept
  {
    return ceil_div(tokens, static_cast<std::uint32_t>(Tile::page_tokens));
  }
  [[nodiscard]] static __device__ std::uint32_t pages_of(planned_row const& r) noexcept
  {
    return pages_for<high_tile>(r.high) + pages_for<low_tile>(r.low);
  }
  [[nodiscard]] __device__ planned_row row_at(std::uint32_t i) const noexcept
  {
    uint4 const bits = *reinterpret_cast<uint4 const*>(&p.row(i));
    return {bits.x, bits.y, bits.z, static_cast<std::uint16_t>(bits.w & 0xFFFFu),
            static_cast<std::uint16_t>(bits.w >> 16)};
  }
  [[nodiscard]] __device__ page_id id_at(planned_row const& r, std::uint32_t i) const noexcept
  {
    std::uint32_t const high = pages_for<high_tile>(r.high);
    bool const is_high       = i < high;
    if (!is_high && i - high >= pages_for<low_tile>(r.low)) { return no_page; }
    return p.cache.table.entry(r.row, is_high ? tier::high : tier::low, is_high ? i : i - high);
  }

  //! The present tile of the present page, without what is known of the row.
  template <class Tile>
  [[nodiscard]] __device__ tile_note cut() const noexcept
  {
    constexpr auto page_tokens = static_cast<std::uint32_t>(Tile::page_tokens);
    constexpr auto tile_tokens = static_cast<std::uint32_t>(Tile::tile_tokens);
    std::uint32_t const tokens = run_left == 1 ? last_tokens : page_tokens;
    if constexpr (Tile::tiles_per_page == 1) {
      return {tokens | tile_note::ends_page};
    } else {
      std::uint32_t const rest = tokens - tile * tile_tokens;
      return {min_of(rest, tile_tokens) | (rest <= tile_tokens ? tile_note::ends_page : 0u) |
              (tile * tile_tokens / block_tokens) << 20};
    }
  }

  //! The run that page `ordinal` of the row belongs to.
  __device__ void begin_run(std::uint32_t ordinal) noexcept
  {
    std::uint32_t const high = pages_for<high_tile>(row.high);
    is_low                   = Traits::has_low && ordinal >= high;
    if (is_low) {
      std::uint32_t const low = pages_for<low_tile>(row.low);
      run_left                = high + low - ordinal;
      last_tokens             = row.low - (low - 1) * static_cast<std::uint32_t>(low_tile::page_tokens);
    } else {
      run_left    = high - ordinal;
      last_tokens = row.high - (high - 1) * static_cast<std::uint32_t>(high_tile::page_tokens);
    }
  }

  //! On to the next run or row, or further page ids.
  __device__ void move() noexcept
  {
    if (run_left == 0 && (is_low || row.low == 0)) {
      do {
        ++index;
        row                       = next_row;
        ids                       = next_ids;
        std::uint32_t const pages = pages_of(row);
        if (left > pages) {
          next_row = row_after;
          if (left > pages + pages_of(next_row)) { row_after = row_at(index + 2); }
          next_ids = id_at(next_row, static_cast<std::uint32_t>(lane));
        }
      } while (row.high + row.low == 0);
      window    = 0;
      cursor    = 0;
      begins    = true;
      ids_ahead = id_at(row, 32u + static_cast<std::uint32_t>(lane));
    } else if (cursor == 32) {
      window += 32;
      cursor    = 0;
      ids       = ids_ahead;
      ids_ahead = id_at(row, window + 32u + static_cast<std::uint32_t>(lane));
    }
    if (run_left == 0) { begin_run(window + cursor); }
  }
};

}  // namespace diffkv::detail
