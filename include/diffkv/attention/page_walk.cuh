// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The pages of a warp's range, row after row: asks for tiles ahead of what is computed.
//! Read before this: attention/row_output.cuh.  Read next: attention/row_merge.cuh.
#include <diffkv/attention/page_stream.cuh>
#include <diffkv/attention/row_output.cuh>
#include <diffkv/core/launch.cuh>  // load_uncached

namespace diffkv::detail {

//! What is known of a row when its first tile is asked for, left for when that has come. In shared
//! memory, one for each slot.
struct alignas(16) row_note {
  std::uint32_t index;    //!< row of the launch
  std::uint32_t ordinal;  //!< of its first page in this warp
  std::uint32_t pages;    //!< of the row
  std::uint32_t flags;    //!< row_flag
  std::uint32_t kept;     //!< where its queries go in the lag ring, in places; or not_kept
  std::uint32_t high_pages;
};

static_assert(sizeof(row_note) == row_note_bytes);

namespace row_flag {
inline constexpr std::uint32_t catches_up = 1;
}  // namespace row_flag

//! What is known of a tile, in a word.
struct tile_note {
  std::uint32_t word = 0;

  static constexpr std::uint32_t low      = 1u << 16;  //!< tier
  static constexpr std::uint32_t begins   = 1u << 17;  //!< first of its row in this warp
  static constexpr std::uint32_t ends     = 1u << 18;  //!< last of its row in this warp
  static constexpr std::uint32_t pages_at = 20;  //!< from here four bits: pages that end in it
  static constexpr std::uint32_t block_at = 24;  //!< from here: block of the page where it begins

  [[nodiscard]] __device__ int tokens() const noexcept { return static_cast<int>(word & 0xFFFFu); }
  [[nodiscard]] __device__ std::uint32_t pages() const noexcept { return word >> pages_at & 0xFu; }
  [[nodiscard]] __device__ std::uint32_t block() const noexcept { return word >> block_at; }
  [[nodiscard]] __device__ bool is(std::uint32_t flag) const noexcept { return (word & flag) != 0; }

  //! Of a tile of whole pages that neither begins nor ends a row.
  template <class Tile>
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr tile_note plain(bool is_low) noexcept
  {
    return {static_cast<std::uint32_t>(Tile::tile_tokens) |
            static_cast<std::uint32_t>(Tile::pages_per_tile) << pages_at | (is_low ? low : 0u)};
  }
};

//! Row descriptions are read two rows ahead and page ids one row (or 32 pages) ahead, so that no tile
//! waits for them; past the first-level cache, as the first ones are read before the kernel in front
//! has ended. A run is the pages of one tier of a row. Within a run nearly all tiles are alike:
//! they are counted ahead, and asking for one of them is short.
template <class Traits, class T, class Out>
struct page_walk {
  using high_tile = typename Traits::high_tile;
  using low_tile  = typename Traits::low_tile;

  decode_params<Traits, T, Out> const& p;
  int lane;
  std::uint32_t index;  //!< row of the launch
  std::uint32_t left;   //!< pages of the warp that were not asked for, nor counted as alike
  planned_row row;
  planned_row next_row{};
  planned_row row_after{};
  page_id ids{};        //!< of pages window + lane of the row
  page_id ids_ahead{};  //!< 32 further ones
  page_id next_ids{};   //!< first ones of the next row
  std::uint32_t window;
  std::uint32_t cursor      = 0;  //!< next page: window + cursor
  std::uint32_t run_left    = 0;  //!< pages of the run, as `left`
  std::uint32_t last_tokens = 0;  //!< of its last page
  std::uint32_t alike       = 0;  //!< tiles of the run to come that are whole, and not the last
  std::uint32_t tile        = 0;  //!< of the page
  bool is_low               = false;
  bool begins               = true;   //!< no tile of this row was asked for
  bool goes_on              = false;  //!< with the next row

  __device__ page_walk(decode_params<Traits, T, Out> const& params_of_launch,
                       warp_range const& range, int lane_of_thread) noexcept
    : p{params_of_launch},
      lane{lane_of_thread},
      index{range.index},
      left{range.num_pages},
      row{range.of},
      window{range.first_page}
  {
    ids       = id_at(row, window + static_cast<std::uint32_t>(lane));
    ids_ahead = id_at(row, window + 32u + static_cast<std::uint32_t>(lane));
    goes_on   = left > pages_of(row) - window;
    if (goes_on) { next_row = row_at(index + 1); }  // and what that leads to, later
    begin_run(range.first_page);
    count_alike();
  }

  [[nodiscard]] __device__ bool has_more() const noexcept { return left > 0; }

  //! Tiles that may be asked for before the kernel in front has ended, which may be writing the step's
  //! token to its page.
  //! @param range  of the constructor; nothing was asked for yet
  [[nodiscard]] __device__ int tiles_ahead(warp_range const& range) const noexcept
  {
    // As many as there are slots; of little to read one, as queries would wait for more.
    constexpr auto per_tile = static_cast<std::uint32_t>(
      max_of(high_tile::pages_per_tile, Traits::has_low ? low_tile::pages_per_tile : 1));
    constexpr std::uint32_t in_slots = Traits::slots * per_tile;
    bool const is_long  = range.num_pages >= 3 * in_slots && pages_of(row) - window >= in_slots;
    std::uint32_t pages = is_long ? in_slots : per_tile;
    return range.appends_within(pages) ? 0 : is_long ? Traits::slots : 1;
  }

  //! Further into what will be needed, once the next row's description has come.
  __device__ void look_further() noexcept
  {
    if (!goes_on) { return; }
    std::uint32_t const of_row     = pages_of(row) - window - cursor;
    std::uint32_t const warp_pages = left + pages_alike();
    if (warp_pages > of_row + pages_of(next_row)) { row_after = row_at(index + 2); }
    next_ids = id_at(next_row, static_cast<std::uint32_t>(lane));
  }

  //! Asks for the next tile, which is a plain one.  @pre alike > 0; else as `request`
  //! @return its first page
  template <class Tile, class Stream>
  [[nodiscard]] __device__ page_id request_alike(Stream const& stream, int slot,
                                                 std::uint32_t slot_address) noexcept
  {
    --alike;
    return copy_alike<Tile>(stream, slot, slot_address);
  }

  //! Asks for the next tile.
  //! @param slot_address  where it goes
  //! @param note          what is left for the one who computes, if a row begins
  //! @param page          first page of the tile
  //! @pre has_more; look_further was called, unless the warp's first row has as many tiles as were asked
  //!      for and this one
  //! @threads one warp; followed by __syncwarp before the note is read
  template <class Stream>
  [[nodiscard]] __device__ tile_note request(Stream const& stream, int slot,
                                             std::uint32_t slot_address, row_note* note,
                                             page_id& page) noexcept
  {
    if (alike == 0 && (run_left == 0 || cursor >= 32)) {
      move();
      count_alike();
    }
    std::uint32_t first_of_row = 0;
    if (begins) {
      first_of_row = tile_note::begins;
      begins       = false;
      if (lane == 0) { *note = describe(); }
    }
    if (alike > 0) {
      if (Traits::has_low && is_low) {
        page = request_alike<low_tile>(stream, slot, slot_address);
        return {tile_note::plain<low_tile>(true).word | first_of_row};
      }
      page = request_alike<high_tile>(stream, slot, slot_address);
      return {tile_note::plain<high_tile>(false).word | first_of_row};
    }
    page = id_of(0);
    tile_note made{first_of_row};
    if (Traits::has_low && is_low) {
      made.word |= copy_next<low_tile>(stream, slot, slot_address, p.cut[1]) | tile_note::low;
    } else {
      made.word |= copy_next<high_tile>(stream, slot, slot_address, p.cut[0]);
    }
    std::uint32_t const pages = made.pages();
    if (pages > 0 && (left == pages || (run_left == pages && (is_low || row.low == 0)))) {
      made.word |= tile_note::ends;
    }
    tile = pages > 0 ? 0 : tile + 1;
    cursor += pages;
    run_left -= pages;
    left -= pages;
    count_alike();
    return made;
  }

 private:
  //! What is known of the row at hand.
  [[nodiscard]] __device__ row_note describe() const noexcept
  {
    std::uint32_t kept = not_kept;
    if (Traits::has_scores && row.stored != 0) {
      constexpr auto places = static_cast<std::uint32_t>(Traits::score_every + 1);
      kept                  = p.num_heads.quotient(row.row) * places + row.stored - 1u;
    }
    return {index,         window + cursor,
            pages_of(row), row.catches_up != 0 ? row_flag::catches_up : 0u,
            kept,          pages_for<high_tile>(row.high)};
  }
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
    return load_uncached(p.rows[i]);
  }
  [[nodiscard]] __device__ page_id id_at(planned_row const& r, std::uint32_t i) const noexcept
  {
    std::uint32_t const high = pages_for<high_tile>(r.high);
    bool const is_high       = i < high;
    if (!is_high && i - high >= pages_for<low_tile>(r.low)) { return no_page; }
    return load_uncached(
      p.table.entry(r.row, is_high ? tier::high : tier::low, is_high ? i : i - high));
  }
  //! Of the n-th page from the cursor on.  @pre cursor < 32, n < 32
  [[nodiscard]] __device__ page_id id_of(std::uint32_t n) const noexcept
  {
    std::uint32_t const from = cursor + n;
    page_id const held       = n > 0 && from >= 32 ? ids_ahead : ids;
    return page_id{
      __shfl_sync(0xFFFF'FFFFu, static_cast<std::uint32_t>(held), static_cast<int>(from % 32))};
  }
  [[nodiscard]] __device__ std::byte const* address_of(page_id id) const noexcept
  {
    return p.pages + std::size_t{Traits::layouts::page_bytes} * static_cast<std::uint32_t>(id);
  }
  //! Whether scores and positions come along.
  [[nodiscard]] __device__ bool wants_scores() const noexcept
  {
    return Traits::variant::sliding_window || (Traits::has_scores && row.catches_up != 0);
  }

  //! A tile of whole pages.  @return its first page
  template <class Tile, class Stream>
  [[nodiscard]] __device__ page_id copy_alike(Stream const& stream, int slot,
                                              std::uint32_t to) noexcept
  {
    std::uint32_t const bytes =
      Tile::with_scores && wants_scores() ? Tile::page_bytes : Tile::read_bytes;
    if (cursor >= 32) { read_further_ids(); }
    page_id const first = id_of(0);
    stream.begin(slot, bytes * Tile::pages_per_tile, lane);
    stream.copy(slot, to, address_of(first), bytes, lane);
#pragma unroll
    for (int i = 1; i < Tile::pages_per_tile; ++i) {
      auto const n = static_cast<std::uint32_t>(i);
      stream.copy(slot, to + n * Tile::page_stride, address_of(id_of(n)), bytes, lane);
    }
    stream.end();
    cursor += Tile::pages_per_tile;
    return first;
  }

  //! Any tile.  @return its note, without what is known of the row
  template <class Tile, class Stream>
  [[nodiscard]] __device__ std::uint32_t copy_next(Stream const& stream, int slot, std::uint32_t to,
                                                   tile_geometry const& cut) const noexcept
  {
    constexpr auto page_tokens = static_cast<std::uint32_t>(Tile::page_tokens);
    constexpr auto part_tokens = static_cast<std::uint32_t>(Tile::part_blocks * block_tokens);
    std::uint32_t const pages =
      min_of(static_cast<std::uint32_t>(Tile::pages_per_tile), min_of(run_left, left));
    bool const everything     = Tile::with_scores && wants_scores();
    std::uint32_t const first = tile * part_tokens;  // token of the page
    // All pages but the run's last one are full.
    std::uint32_t const rest        = (run_left == pages ? last_tokens : page_tokens) - first;
    std::uint32_t const tokens      = min_of(rest, part_tokens);  // of the last page
    std::uint32_t const blocks      = ceil_div(tokens, static_cast<std::uint32_t>(block_tokens));
    std::uint32_t const whole_bytes = everything ? Tile::page_bytes : Tile::read_bytes;
    std::uint32_t const last_bytes =
      blocks * (everything ? Tile::block_bytes : Tile::read_block_bytes);
    stream.begin(slot, (pages - 1) * whole_bytes + last_bytes, lane);
    for (std::uint32_t i = 0; i + 1 < pages; ++i) {
      stream.copy(slot, to + i * Tile::page_stride, address_of(id_of(i)), whole_bytes, lane);
    }
    std::byte const* const from = address_of(id_of(pages - 1));
    std::uint32_t const last_to = to + (pages - 1) * Tile::page_stride;
    if (Tile::tiles_per_page == 1 && blocks == static_cast<std::uint32_t>(Tile::part_blocks)) {
      stream.copy(slot, last_to, from, last_bytes, lane);  // the page from its first byte on
    } else {
#pragma unroll 1
      for (int s = 0; s < (everything ? Tile::cut.num_read : 4); ++s) {
        tile_segment const& segment = cut.segments[s];
        stream.copy(slot, last_to + segment.in_tile,
                    from + segment.in_page + segment.per_block * (first / block_tokens),
                    segment.per_block * blocks, lane);
      }
    }
    stream.end();
    return ((pages - 1) * page_tokens + tokens) |
           (tokens == rest ? pages : 0u) << tile_note::pages_at |
           (first / block_tokens) << tile_note::block_at;
  }

  //! Plain tiles to come: of the run at hand, without its last one and the warp's.
  __device__ void count_alike() noexcept
  {
    if (run_left == 0 || left == 0) { return; }
    std::uint32_t const but_one = min_of(run_left, left) - 1u;
    if (Traits::has_low && is_low) {
      alike = low_tile::tiles_per_page > 1 ? 0u : but_one / low_tile::pages_per_tile;
    } else {
      alike = high_tile::tiles_per_page > 1 ? 0u : but_one / high_tile::pages_per_tile;
    }
    run_left -= pages_alike();
    left -= pages_alike();
  }
  //! Their pages.
  [[nodiscard]] __device__ std::uint32_t pages_alike() const noexcept
  {
    return alike *
           (Traits::has_low && is_low ? low_tile::pages_per_tile : high_tile::pages_per_tile);
  }

  //! The run that page `ordinal` of the row belongs to.
  __device__ void begin_run(std::uint32_t ordinal) noexcept
  {
    std::uint32_t const high = pages_for<high_tile>(row.high);
    is_low                   = Traits::has_low && ordinal >= high;
    if (is_low) {
      std::uint32_t const low = pages_for<low_tile>(row.low);
      run_left                = high + low - ordinal;
      last_tokens = row.low - (low - 1) * static_cast<std::uint32_t>(low_tile::page_tokens);
    } else {
      run_left    = high - ordinal;
      last_tokens = row.high - (high - 1) * static_cast<std::uint32_t>(high_tile::page_tokens);
    }
  }

  //! The window of ids moves on.
  __device__ void read_further_ids() noexcept
  {
    window += 32;
    cursor -= 32;
    ids       = ids_ahead;
    ids_ahead = id_at(row, window + 32u + static_cast<std::uint32_t>(lane));
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
    } else if (cursor >= 32) {
      read_further_ids();
    }
    if (run_left == 0) { begin_run(window + cursor); }
  }
};

}  // namespace diffkv::detail
