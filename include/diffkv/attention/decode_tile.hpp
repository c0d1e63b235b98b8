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

//! A tile is some blocks of a page, with the segments in the order of the page, in shared memory; a
//! whole page where that is small enough.
struct tile_geometry {
  static constexpr int num_segments = 6;

  int page_blocks    = 0;
  int tile_blocks    = 0;  //!< copied at a time
  int tiles_per_page = 0;
  int num_read       = 0;  //!< segments that come along: 4, or 6 with scores and positions
  std::uint32_t bytes = 0;  //!< of a tile
  tile_segment segments[num_segments]{};
};

//! @param with_scores  scores and positions come along
//! @param most_bytes   a tile has at least one block, whatever this says
[[nodiscard]] constexpr tile_geometry cut_page(page_geometry const& page, bool with_scores,
                                               std::uint32_t most_bytes) noexcept
{
  tile_geometry cut{};
  auto const size       = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
  code_spec const key   = page.format.key;
  code_spec const value = page.format.value;
  cut.num_read          = with_scores ? 6 : 4;
  cut.segments[0]       = {page.key_codes, 0, size(block_bytes(key, page.head_dim))};
  cut.segments[1]       = {page.key_metadata, 0, size(key.metadata_bytes() * block_tokens)};
  cut.segments[2]       = {page.value_codes, 0, size(block_bytes(value, page.head_dim))};
  cut.segments[3]       = {page.value_metadata, 0, size(value.metadata_bytes() * block_tokens)};
  cut.segments[4]       = {page.scores, 0, size(4 * block_tokens)};
  cut.segments[5]       = {page.positions, 0, size(4 * block_tokens)};
  std::uint32_t per_block = 0;
  for (int s = 0; s < cut.num_read; ++s) { per_block += cut.segments[s].per_block; }
  cut.page_blocks    = page.tokens_per_page / block_tokens;
  int const most     = max_of(1, static_cast<int>(most_bytes / per_block));
  cut.tiles_per_page = ceil_div(cut.page_blocks, most);
  cut.tile_blocks    = ceil_div(cut.page_blocks, cut.tiles_per_page);
  for (int s = 0; s < cut.num_read; ++s) {
    cut.segments[s].in_tile = cut.bytes;
    cut.bytes += cut.segments[s].per_block * static_cast<std::uint32_t>(cut.tile_blocks);
  }
  return cut;
}

//! The same as a type.
template <class Layout, bool WithScores, std::uint32_t MostBytes>
struct decode_tile {
  using layout                     = Layout;
  static constexpr int head_dim    = Layout::head_dim;
  static constexpr code_spec key   = Layout::geometry.format.key;
  static constexpr code_spec value = Layout::geometry.format.value;
  static constexpr int key_words   = words_per_lane(key, head_dim);
  static constexpr int value_words = words_per_lane(value, head_dim);
  static constexpr bool with_scores = WithScores;

  static constexpr tile_geometry cut  = cut_page(Layout::geometry, WithScores, MostBytes);
  static constexpr int page_tokens    = Layout::tokens_per_page;
  static constexpr int tile_blocks    = cut.tile_blocks;
  static constexpr int tile_tokens    = cut.tile_blocks * block_tokens;
  static constexpr int tiles_per_page = cut.tiles_per_page;
  static constexpr std::uint32_t bytes = cut.bytes;

  static constexpr std::uint32_t key_codes       = cut.segments[0].in_tile;
  static constexpr std::uint32_t key_metadata    = cut.segments[1].in_tile;
  static constexpr std::uint32_t value_codes     = cut.segments[2].in_tile;
  static constexpr std::uint32_t value_metadata  = cut.segments[3].in_tile;
  static constexpr std::uint32_t scores          = cut.segments[4].in_tile;
  static constexpr std::uint32_t positions       = cut.segments[5].in_tile;
  static constexpr std::uint32_t key_block_bytes   = cut.segments[0].per_block;
  static constexpr std::uint32_t value_block_bytes = cut.segments[2].per_block;
};

//! Order in which lanes hold the elements of keys or values: where two formats share it, they share
//! queries or sums.
struct element_order {
  int head_dim = 0;
  int groups   = 1;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int group_dims() const noexcept { return head_dim / groups; }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int group_stored() const noexcept { return round_up(group_dims(), 32); }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int stored() const noexcept { return groups * group_stored(); }
};

}  // namespace diffkv::detail
