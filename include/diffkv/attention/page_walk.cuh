// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The pages of a warp's range, row after row: asks for tiles ahead of what is computed.
//! Read before this: attention/row_output.cuh.  Read next: attention/decode.cuh.
#include <diffkv/attention/page_stream.cuh>
#include <diffkv/attention/row_output.cuh>

namespace diffkv::detail {

//! What is known of a tile when it is asked for, left for when it has come. In shared memory.
struct alignas(16) tile_note {
  page_id page;
  std::uint32_t index;    //!< row of the launch
  std::uint32_t ordinal;  //!< of the page in its row
  slot_index first;       //!< slot of its first token
  std::uint16_t tokens;   //!< of the tile
  std::uint8_t flags;
  std::uint8_t block;          //!< of the page, where the tile begins
  std::uint32_t pages_of_row;
  std::uint32_t spare[2];
};
static_assert(sizeof(tile_note) == 32);

namespace tile_flag {
inline constexpr std::uint8_t low        = 1;   //!< tier
inline constexpr std::uint8_t begins     = 2;   //!< first of its row in this warp
inline constexpr std::uint8_t ends_page  = 4;
inline constexpr std::uint8_t ends       = 8;   //!< last of its row in this warp
inline constexpr std::uint8_t stored     = 16;  //!< of the row's plan
inline constexpr std::uint8_t catches_up = 32;
}  // namespace tile_flag

//! Row descriptions are read two rows ahead and page ids one row (or 32 pages) ahead, so that no tile
//! waits for them.
template <class Traits, class T, class Out>
struct page_walk {
  decode_params<Traits, T, Out> const& p;
  int lane;
  std::uint32_t index;    //!< row of the launch
  std::uint32_t ordinal;  //!< page of the row
  std::uint32_t left;     //!< pages of the warp, this one included
  std::uint32_t pages;    //!< of the row
  planned_row row;
  planned_row next_row{};
  planned_row row_after{};
  page_id ids{};      //!< of pages window + lane
  page_id ids_ahead{};  //!< 32 further ones
  page_id next_ids{};   //!< first ones of the next row
  std::uint32_t window;
  std::uint32_t tile = 0;  //!< of the page
  page_id page;
  bool begins    = true;   //!< no tile of this row was asked for
  bool page_done = false;  //!< the next request moves on first

  __device__ page_walk(decode_params<Traits, T, Out> const& params_of_launch,
                       warp_range const& range, int lane_of_thread) noexcept
    : p{params_of_launch},
      lane{lane_of_thread},
      index{range.index},
      ordinal{range.first_page},
      left{range.num_pages},
      pages{pages_of(range.of)},
      row{range.of},
      window{range.first_page},
      page{range.page}
  {}

  [[nodiscard]] __device__ bool has_more() const noexcept { return left > 0; }

  //! Reads what the walk will need; the first tile is asked for before this.
  __device__ void look_ahead() noexcept
  {
    if (left == 0) { return; }
    if (left > 1) {
      ids       = id_at(row, pages, window + lane);
      ids_ahead = id_at(row, pages, window + 32 + lane);
    }
    if (left > pages - ordinal) {
      next_row = row_at(index + 1);
      if (left > pages - ordinal + pages_of(next_row)) { row_after = row_at(index + 2); }
      next_ids = id_at(next_row, pages_of(next_row), lane);
    }
  }

  //! Asks for the next tile.
  //! @pre has_more; look_ahead was called, unless this is the first request
  //! @param slot_address  where it goes
  //! @param note          what is left for the one who computes
  //! @threads one warp; followed by __syncwarp before the note is read
  template <class Stream>
  __device__ void request(Stream const& stream, int slot, std::uint32_t slot_address,
                          tile_note* note) noexcept
  {
    if (page_done) { move(); }
    std::uint32_t const high = high_pages(row);
    bool const is_low        = ordinal >= high;
    auto const page_tokens   = static_cast<std::uint32_t>(
      is_low ? Traits::low_tile::page_tokens : Traits::high_tile::page_tokens);
    auto const tile_tokens = static_cast<std::uint32_t>(
      is_low ? Traits::low_tile::tile_tokens : Traits::high_tile::tile_tokens);
    std::uint32_t const in_tier = is_low ? ordinal - high : ordinal;
    std::uint32_t const slots   = in_tier * page_tokens + tile * tile_tokens;
    std::uint32_t const behind  = (is_low ? row.low : row.high) - slots;  // tokens from here on
    std::uint32_t const in_page = page_tokens - tile * tile_tokens;
    std::uint32_t const tokens  = min_of(min_of(tile_tokens, in_page), behind);
    bool const ends_page        = tokens == min_of(in_page, behind);
    bool const ends             = ends_page && (left == 1 || ordinal + 1 == pages);

    // Without scores to update, scores and positions stay where they are.
    bool const all_segments =
      Traits::variant::sliding_window || (Traits::has_scores && row.catches_up != 0);
    tile_geometry const& cut = p.cut[is_low ? 1 : 0];
    std::byte const* from    = p.cache.pool.base +
                            std::size_t{Traits::layouts::page_bytes} * static_cast<std::uint32_t>(page);
    copy_tile(stream, slot, slot_address, from, cut, tokens, tile * tile_tokens / block_tokens,
              all_segments);
    if (lane == 0) {
      std::uint8_t flags = 0;
      if (is_low) { flags |= tile_flag::low; }
      if (begins) { flags |= tile_flag::begins; }
      if (ends_page) { flags |= tile_flag::ends_page; }
      if (ends) { flags |= tile_flag::ends; }
      if (row.stored != 0) { flags |= tile_flag::stored; }
      if (row.catches_up != 0) { flags |= tile_flag::catches_up; }
      *note = tile_note{page,
                        index,
                        ordinal,
                        slots,
                        static_cast<std::uint16_t>(tokens),
                        flags,
                        static_cast<std::uint8_t>(tile * tile_tokens / block_tokens),
                        pages,
                        {}};
    }
    begins    = false;
    page_done = ends_page;
    tile      = ends_page ? 0 : tile + 1;
    left -= ends_page ? 1 : 0;
  }

 private:
  [[nodiscard]] static __device__ std::uint32_t high_pages(planned_row const& r) noexcept
  {
    return ceil_div(r.high, static_cast<std::uint32_t>(Traits::high_tile::page_tokens));
  }
  [[nodiscard]] static __device__ std::uint32_t pages_of(planned_row const& r) noexcept
  {
    return high_pages(r) + ceil_div(r.low, static_cast<std::uint32_t>(Traits::low_tile::page_tokens));
  }
  [[nodiscard]] __device__ planned_row row_at(std::uint32_t i) const noexcept
  {
    uint4 const bits = *reinterpret_cast<uint4 const*>(&p.row(i));
    return {bits.x, bits.y, bits.z, static_cast<std::uint16_t>(bits.w & 0xFFFFu),
            static_cast<std::uint16_t>(bits.w >> 16)};
  }
  [[nodiscard]] __device__ page_id id_at(planned_row const& r, std::uint32_t pages_of_row,
                                         std::uint32_t i) const noexcept
  {
    if (i >= pages_of_row) { return no_page; }
    std::uint32_t const high = high_pages(r);
    return i < high ? p.cache.table.entry(r.row, tier::high, i)
                    : p.cache.table.entry(r.row, tier::low, i - high);
  }
  //! On to the next page.
  __device__ void move() noexcept
  {
    page_done = false;
    ++ordinal;
    if (ordinal == pages) {
      next();
    } else if (ordinal == window + 32) {
      window += 32;
      ids       = ids_ahead;
      ids_ahead = id_at(row, pages, window + 32 + lane);
    }
    page = page_id{
      __shfl_sync(0xFFFF'FFFFu, static_cast<std::uint32_t>(ids), static_cast<int>(ordinal - window))};
  }

  //! On to the next row that has pages.
  __device__ void next() noexcept
  {
    do {
      ++index;
      row   = next_row;
      ids   = next_ids;
      pages = pages_of(row);
      if (left > pages) {
        next_row = row_after;
        if (left > pages + pages_of(next_row)) { row_after = row_at(index + 2); }
        next_ids = id_at(next_row, pages_of(next_row), static_cast<std::uint32_t>(lane));
      }
    } while (pages == 0);
    ordinal   = 0;
    window    = 0;
    begins    = true;
    ids_ahead = id_at(row, pages, 32u + static_cast<std::uint32_t>(lane));
  }

  template <class Stream>
  __device__ void copy_tile(Stream const& stream, int slot, std::uint32_t to, std::byte const* from,
                            tile_geometry const& cut, std::uint32_t tokens,
                            std::uint32_t first_block, bool all_segments) const noexcept
  {
    std::uint32_t const blocks = ceil_div(tokens, static_cast<std::uint32_t>(block_tokens));
    int const segments         = all_segments ? cut.num_read : 4;
    bool const whole =
      cut.tiles_per_page == 1 && blocks == static_cast<std::uint32_t>(cut.tile_blocks);
    std::uint32_t bytes = 0;
    if (whole) {  // the page from its first byte on
      bytes = all_segments ? cut.bytes : cut.segments[3].in_tile + cut.segments[3].per_block * blocks;
    } else {
#pragma unroll 1
      for (int s = 0; s < segments; ++s) { bytes += cut.segments[s].per_block * blocks; }
    }
    stream.begin(slot, bytes, lane);
#pragma unroll 1
    for (int s = 0; s < (whole ? 1 : segments); ++s) {
      tile_segment const& segment = cut.segments[s];
      stream.copy(slot, to + segment.in_tile,
                  from + segment.in_page + segment.per_block * first_block,
                  whole ? bytes : segment.per_block * blocks, lane);
    }
    stream.end();
  }
};

}  // namespace diffkv::detail
