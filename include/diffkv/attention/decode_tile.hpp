// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How a page is cut for decode attention: the part that is copied at a time, and the blocks that are
//! computed at a time.
//! Read before this: attention/page_stream.cuh.  Read next: attention/decode_traits.hpp.
#include <diffkv/page/tier_layouts.hpp>

namespace diffkv::detail {

//! One of the six segments: where it begins in a page and in a tile, and its bytes per block.
struct tile_segment {
  std::uint32_t in_page   = 0;
  std::uint32_t in_tile   = 0;
  std::uint32_t per_block = 0;
};

//! Tokens computed at a time: what fits in registers.
inline constexpr int most_blocks_at_once = 4;

//! A tile is what is copied at a time and lies in shared memory: a part of a page, a page, or some
//! pages, each with its segments in the order of the page.
struct tile_geometry {
  static constexpr int num_segments = 6;

  int part_blocks     = 0;  //!< of a page, in a tile
  int tiles_per_page  = 0;
  int pages_per_tile  = 0;
  int num_read        = 0;  //!< segments that come along: 4, or 6 with scores and positions
  std::uint32_t bytes = 0;  //!< of a page, in a tile
  tile_segment segments[num_segments]{};
};

//! @param with_scores  scores and positions come along
//! @param most_bytes    of a tile; it has at least one block, whatever this says
//! @param enough_bytes  pages are taken together up to this
[[nodiscard]] constexpr tile_geometry cut_page(page_geometry const& page, bool with_scores,
                                               std::uint32_t most_bytes,
                                               std::uint32_t enough_bytes) noexcept
{
  tile_geometry cut{};
  auto const size         = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
  code_spec const key     = page.format.key;
  code_spec const value   = page.format.value;
  cut.num_read            = with_scores ? 6 : 4;
  cut.segments[0]         = {page.key_codes, 0, size(block_bytes(key, page.head_dim))};
  cut.segments[1]         = {page.key_metadata, 0, size(key.metadata_bytes() * block_tokens)};
  cut.segments[2]         = {page.value_codes, 0, size(block_bytes(value, page.head_dim))};
  cut.segments[3]         = {page.value_metadata, 0, size(value.metadata_bytes() * block_tokens)};
  cut.segments[4]         = {page.scores, 0, size(4 * block_tokens)};
  cut.segments[5]         = {page.positions, 0, size(4 * block_tokens)};
  std::uint32_t per_block = 0;
  for (int s = 0; s < cut.num_read; ++s) { per_block += cut.segments[s].per_block; }
  int const blocks   = page.tokens_per_page / block_tokens;
  int const most     = max_of(1, static_cast<int>(most_bytes / per_block));
  cut.tiles_per_page = ceil_div(blocks, most);
  cut.part_blocks    = ceil_div(blocks, cut.tiles_per_page);
  // Small pages are computed together, except by the score path, which looks at one at a time.
  int const together = min_of(most_blocks_at_once, static_cast<int>(enough_bytes / per_block));
  cut.pages_per_tile = with_scores ? 1 : max_of(1, together / blocks);
  for (int s = 0; s < cut.num_read; ++s) {
    cut.segments[s].in_tile = cut.bytes;
    cut.bytes += cut.segments[s].per_block * static_cast<std::uint32_t>(cut.part_blocks);
  }
  return cut;
}

//! The same as a type.
template <class Layout, bool WithScores, std::uint32_t MostBytes, std::uint32_t EnoughBytes>
struct decode_tile {
  static constexpr int head_dim     = Layout::head_dim;
  static constexpr code_spec key    = Layout::geometry.format.key;
  static constexpr code_spec value  = Layout::geometry.format.value;
  static constexpr int key_words    = words_per_lane(key, head_dim);
  static constexpr int value_words  = words_per_lane(value, head_dim);
  static constexpr bool with_scores = WithScores;
  //! Of four queries in two planes: bytes beside codes, else f16.
  static constexpr int column_words =
    2 * 4 * stored_elements(head_dim, key.groups) / (key.is_quantised() ? 4 : 2);

  static constexpr tile_geometry cut =
    cut_page(Layout::geometry, WithScores, MostBytes, EnoughBytes);
  static constexpr int page_tokens          = Layout::tokens_per_page;
  static constexpr int tiles_per_page       = cut.tiles_per_page;
  static constexpr int pages_per_tile       = cut.pages_per_tile;
  static constexpr int part_blocks          = cut.part_blocks;
  static constexpr int tile_blocks          = part_blocks * pages_per_tile;
  static constexpr int tile_tokens          = tile_blocks * block_tokens;
  static constexpr std::uint32_t page_bytes = cut.bytes;  //!< of a page, in a tile
  //! From one page of a tile to the next.
  static constexpr std::uint32_t page_stride = round_up(cut.bytes, 128u);
  static constexpr std::uint32_t bytes       = page_stride * pages_per_tile;
  //! What attention reads of a page, without scores.
  static constexpr std::uint32_t read_bytes =
    cut.segments[3].in_tile + cut.segments[3].per_block * static_cast<std::uint32_t>(part_blocks);

  //! The same of a block.
  static constexpr std::uint32_t block_bytes = cut.bytes / static_cast<std::uint32_t>(part_blocks);
  static constexpr std::uint32_t read_block_bytes =
    read_bytes / static_cast<std::uint32_t>(part_blocks);

  static constexpr std::uint32_t scores    = cut.segments[4].in_tile;
  static constexpr std::uint32_t positions = cut.segments[5].in_tile;

  //! Byte offset of a block of the tile in one of the segments.
  template <int Segment>
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint32_t at(int block) noexcept
  {
    constexpr std::uint32_t begin     = cut.segments[Segment].in_tile;
    constexpr std::uint32_t per_block = cut.segments[Segment].per_block;
    if constexpr (pages_per_tile == 1) {
      return begin + static_cast<std::uint32_t>(block) * per_block;
    } else {
      return static_cast<std::uint32_t>(block / part_blocks) * page_stride + begin +
             static_cast<std::uint32_t>(block % part_blocks) * per_block;
    }
  }
  static constexpr int key_codes      = 0;
  static constexpr int key_metadata   = 1;
  static constexpr int value_codes    = 2;
  static constexpr int value_metadata = 3;
};

//! Order in which lanes hold the elements of keys or values: where two formats share it, they share
//! queries or sums.
struct element_order {
  int head_dim = 0;
  int groups   = 1;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int group_dims() const noexcept
  {
    return head_dim / groups;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int stored() const noexcept
  {
    return stored_elements(head_dim, groups);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int group_stored() const noexcept
  {
    return stored() / groups;
  }
};

}  // namespace diffkv::detail
