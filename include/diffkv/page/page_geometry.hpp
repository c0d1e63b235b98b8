// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Every offset inside a page: six segments, derived from format, head_dim and page size.
//! Read before this: page/fragment_order.hpp.  Read next: page/page_size.hpp.
#include <diffkv/page/fragment_order.hpp>

namespace diffkv {

inline constexpr int page_alignment = 128;

//! Head dims for which the mapping of page/fragment_order.hpp holds.
[[nodiscard]] constexpr bool is_legal_head_dim(int head_dim) noexcept
{
  return head_dim >= 32 && head_dim <= 256 && head_dim % 16 == 0;
}

//! A page of `page_bytes` bytes holding `tokens_per_page` tokens of one format. Segments in order:
//! key codes, key metadata, value codes, value metadata, scores (f32), positions (i32); attention
//! reads the contiguous prefix before the scores. Offsets are bytes from the start of the page.
struct page_geometry {
  format_spec format{};
  int head_dim                 = 0;
  std::uint32_t page_bytes     = 0;
  int tokens_per_page          = 0;
  std::uint32_t key_codes      = 0;
  std::uint32_t key_metadata   = 0;
  std::uint32_t value_codes    = 0;
  std::uint32_t value_metadata = 0;
  std::uint32_t scores         = 0;
  std::uint32_t positions      = 0;
  std::uint32_t end            = 0;  //!< first byte behind the last segment

  //! Place of the code of (token, dim), byte counted from the start of the page.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place key_code(int token, int dim) const noexcept
  {
    code_place place = key_place(format.key, head_dim, token, dim);
    place.byte += key_codes;
    return place;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place value_code(int token,
                                                                   int dim) const noexcept
  {
    code_place place = value_place(format.value, head_dim, token, dim);
    place.byte += value_codes;
    return place;
  }
  //! Offset of (scale, zero) of one group of one token: per block of 16 tokens, group after group.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t key_affine(int token,
                                                                      int group) const noexcept
  {
    return key_metadata + affine_offset(format.key.groups, token, group);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t value_affine(int token,
                                                                        int group) const noexcept
  {
    return value_metadata + affine_offset(format.value.groups, token, group);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t score(int token) const noexcept
  {
    return scores + 4u * static_cast<std::uint32_t>(token_place(token));
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t position(int token) const noexcept
  {
    return positions + 4u * static_cast<std::uint32_t>(token_place(token));
  }

  //! Code bits of one token, nothing else, in bytes.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr double nominal_bytes_per_token() const noexcept
  {
    return head_dim * (format.key.bits + format.value.bits) / 8.0;
  }
  //! Everything: codes, metadata, scores, positions, padding, the unused end of the page.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr double real_bytes_per_token() const noexcept
  {
    return static_cast<double>(page_bytes) / tokens_per_page;
  }

 private:
  [[nodiscard]] DIFFKV_HOST_DEVICE static constexpr std::uint32_t affine_offset(int groups,
                                                                                int token,
                                                                                int group) noexcept
  {
    int const block = token / block_tokens;
    int const place = token_place(token) % block_tokens;
    return 4u * static_cast<std::uint32_t>((block * groups + group) * block_tokens + place);
  }
};

//! Bytes that 16 tokens of a format take in a page, all six segments.
[[nodiscard]] constexpr int bytes_per_block(format_spec const& format, int head_dim) noexcept
{
  constexpr int score_and_position = 8;
  return block_bytes(format.key, head_dim) + block_bytes(format.value, head_dim) +
         block_tokens *
           (format.key.metadata_bytes() + format.value.metadata_bytes() + score_and_position);
}

//! As many whole blocks of 16 tokens as fit; 0 tokens if none does.
[[nodiscard]] constexpr int tokens_per_page(format_spec const& format, int head_dim,
                                            std::uint32_t page_bytes) noexcept
{
  return static_cast<int>(page_bytes) / bytes_per_block(format, head_dim) * block_tokens;
}

//! @pre is_legal(format, head_dim), is_legal_head_dim(head_dim), at least one block fits
[[nodiscard]] constexpr page_geometry make_page_geometry(format_spec format, int head_dim,
                                                         std::uint32_t page_bytes) noexcept
{
  page_geometry g{};
  g.format          = format;
  g.head_dim        = head_dim;
  g.page_bytes      = page_bytes;
  g.tokens_per_page = tokens_per_page(format, head_dim, page_bytes);
  auto const tokens = static_cast<std::uint32_t>(g.tokens_per_page);
  auto const blocks = tokens / block_tokens;
  auto const bytes  = [](int n) { return static_cast<std::uint32_t>(n); };
  g.key_codes       = 0;
  g.key_metadata    = g.key_codes + blocks * bytes(block_bytes(format.key, head_dim));
  g.value_codes     = g.key_metadata + tokens * bytes(format.key.metadata_bytes());
  g.value_metadata  = g.value_codes + blocks * bytes(block_bytes(format.value, head_dim));
  g.scores          = g.value_metadata + tokens * bytes(format.value.metadata_bytes());
  g.positions       = g.scores + 4 * tokens;
  g.end             = g.positions + 4 * tokens;
  return g;
}

//! @throws invalid_argument naming head_dim or format and the legal values
inline void validate(format_spec format, int head_dim)
{
  DIFFKV_EXPECTS(is_legal_head_dim(head_dim),
                 "head_dim: " + std::to_string(head_dim) +
                   " is not supported, use a multiple of 16 from 32 to 256");
  DIFFKV_EXPECTS(is_legal(format, head_dim),
                 "format: " + diffkv::name(format) + " with " + std::to_string(format.key.groups) +
                   " and " + std::to_string(format.value.groups) +
                   " groups is not supported at head_dim " + std::to_string(head_dim) +
                   ": keys of 16, 8, 4, 2 bits, values of 16, 8, 4, 2, 1 bits, 1, 2 or 4 groups of "
                   "at least 32 elements (1 at 16 bits), clip in (0, 1]");
}

//! make_page_geometry for sizes known at run time.
//! @throws invalid_argument naming the argument and its legal values
[[nodiscard]] inline page_geometry checked_page_geometry(format_spec format, int head_dim,
                                                         std::uint32_t page_bytes)
{
  validate(format, head_dim);
  DIFFKV_EXPECTS(page_bytes % page_alignment == 0 && page_bytes <= (1u << 20) &&
                   tokens_per_page(format, head_dim, page_bytes) > 0,
                 "page_bytes: " + std::to_string(page_bytes) +
                   " must be a multiple of 128, at most 1 MiB, with room for 16 tokens of " +
                   diffkv::name(format) + " (" + std::to_string(bytes_per_block(format, head_dim)) +
                   " bytes)");
  return make_page_geometry(format, head_dim, page_bytes);
}

}  // namespace diffkv
