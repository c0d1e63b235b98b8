// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the code of (token, dim) lies inside a code segment: the one mapping for host and device.
//! Read before this: quant/lag_rounding.hpp.  Read next: page/page_geometry.hpp.
//!
//! A segment is a sequence of blocks of 16 tokens. A block is an image of tensor-core fragments: the
//! lane L = 4g + t of a warp (g = 0..7, t = 0..3) owns `words_per_lane` words, and reads them in units
//! of four (16 bytes a lane, 512 contiguous bytes a warp); what is left after the last full unit is
//! one narrower unit. docs/page_format.md draws it.
#include <diffkv/detail/arithmetic.hpp>  // round_up
#include <diffkv/quant/code_spec.hpp>    // code_spec

#include <cstdint>

namespace diffkv {

inline constexpr int block_tokens = 16;
inline constexpr int warp_lanes   = 32;

//! Elements as stored: each group is padded with code 0 to a multiple of 32, the depth of one
//! tensor-core step, so that a group never shares a step with its neighbour.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int stored_elements(int head_dim, int groups) noexcept
{
  return groups * detail::round_up(head_dim / groups, 32);
}

//! 32-bit words that one lane owns of a block.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int words_per_lane(code_spec spec, int head_dim) noexcept
{
  int const bits = block_tokens * stored_elements(head_dim, spec.groups) * spec.bits;
  return detail::ceil_div(bits, warp_lanes * 32);
}

[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int block_bytes(code_spec spec, int head_dim) noexcept
{
  return words_per_lane(spec, head_dim) * warp_lanes * 4;
}

//! Byte offset in a block of word `word` of `lane`, where each lane owns `words` words.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int word_offset(int words, int lane, int word) noexcept
{
  int const in_full_units = words / 4 * 4;
  if (word < in_full_units) { return (word / 4) * 512 + lane * 16 + (word % 4) * 4; }
  return in_full_units * 128 + lane * (words - in_full_units) * 4 + (word - in_full_units) * 4;
}

//! A code: `bits` bits from bit `shift` of the byte at `byte`; a 16-bit element fills two bytes.
struct code_place {
  std::uint32_t byte  = 0;
  std::uint32_t shift = 0;

  friend DIFFKV_HOST_DEVICE constexpr bool operator==(code_place a, code_place b) noexcept
  {
    return a.byte == b.byte && a.shift == b.shift;
  }
};

//! Index of element `dim` among the stored ones; what no dim maps to is padding and holds code 0.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int stored_index(code_spec spec, int head_dim,
                                                            int dim) noexcept
{
  int const group_elements = head_dim / spec.groups;
  int const group_stored   = stored_elements(head_dim, spec.groups) / spec.groups;
  return dim / group_elements * group_stored + dim % group_elements;
}
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool is_padding(code_spec spec, int head_dim,
                                                           int stored) noexcept
{
  int const group_stored = stored_elements(head_dim, spec.groups) / spec.groups;
  return stored % group_stored >= head_dim / spec.groups;
}
static_assert(stored_index({4, 1}, 80, 79) == 79 && is_padding({4, 1}, 80, 80));

namespace detail {

//! Position of a stored element among those of its lane, counted over all groups.
struct lane_element {
  int owner;  //!< which of the lanes that split a group's elements
  int index;  //!< running index in that lane
};

[[nodiscard]] DIFFKV_HOST_DEVICE constexpr lane_element split_element(code_spec spec, int head_dim,
                                                                      int stored,
                                                                      int lanes) noexcept
{
  int const group_stored = stored_elements(head_dim, spec.groups) / spec.groups;
  int const per_lane     = group_stored / lanes;
  int const element      = stored % group_stored;
  return {element / per_lane, (stored / group_stored) * per_lane + element % per_lane};
}

}  // namespace detail

//! Place of key code (token, stored element) in the key segment. Lane (g, t) owns tokens g and g + 8
//! of a block and the t-th quarter of each group's elements: the A fragment of the product K q.
//! @pre token >= 0, 0 <= stored < stored_elements, bits of 16, 8, 4, 2
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place stored_key_place(code_spec spec, int head_dim,
                                                                       int token,
                                                                       int stored) noexcept
{
  auto const [t, e]  = detail::split_element(spec, head_dim, stored, 4);
  int const in_block = token % block_tokens;
  int const g        = in_block % 8;
  int const r        = in_block / 8;
  int word           = 0;
  int byte           = e % 4;
  int shift          = 0;
  switch (spec.bits) {
    case 16:
      word = 4 * (e / 4) + 2 * (e / 2 % 2) + r;
      byte = 2 * (e % 2);
      break;
    case 8:
      word = 4 * (e / 8) + 2 * (e / 4 % 2) + r;
      break;
    case 4:
      word  = e / 4;
      shift = 4 * r;
      break;
    default:
      word  = e / 8;
      shift = 4 * (e / 4 % 2) + 2 * r;
      break;
  }
  int const block = token / block_tokens * block_bytes(spec, head_dim);
  int const place = block + word_offset(words_per_lane(spec, head_dim), 4 * g + t, word) + byte;
  return {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(shift)};
}

//! Place of value code (token, stored element) in the value segment. Lane (g, t) owns the g-th eighth
//! of each group's elements and tokens 2t, 2t + 8, 2t + 1, 2t + 9 of a block (j = 0..3): the A
//! fragment of the product V^T p.
//! @pre token >= 0, 0 <= stored < stored_elements, bits of 16, 8, 4, 2, 1
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place stored_value_place(code_spec spec,
                                                                         int head_dim, int token,
                                                                         int stored) noexcept
{
  auto const [g, e]  = detail::split_element(spec, head_dim, stored, 8);
  int const in_block = token % block_tokens;
  int const t        = in_block % 8 / 2;
  int const j        = 2 * (in_block % 2) + in_block / 8;
  int const q        = e / 2;  // 16-dim step
  int const r        = e % 2;  // row g or g + 8 of the step
  int word           = 0;
  int byte           = j;
  int shift          = 0;
  switch (spec.bits) {
    case 16:
      word = 4 * q + 2 * (j / 2) + r;
      byte = 2 * (j % 2);
      break;
    case 8:
      word = 2 * q + r;
      break;
    case 4:
      word  = q;
      shift = 4 * r;
      break;
    case 2:
      word  = q / 2;
      shift = 4 * (q % 2) + 2 * r;
      break;
    default:
      word  = q / 4;
      shift = 2 * (q % 4) + r;
      break;
  }
  int const block = token / block_tokens * block_bytes(spec, head_dim);
  int const place = block + word_offset(words_per_lane(spec, head_dim), 4 * g + t, word) + byte;
  return {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(shift)};
}

//! The same for element `dim` of the vector.  @pre 0 <= dim < head_dim
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place key_place(code_spec spec, int head_dim,
                                                                int token, int dim) noexcept
{
  return stored_key_place(spec, head_dim, token, stored_index(spec, head_dim, dim));
}
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr code_place value_place(code_spec spec, int head_dim,
                                                                  int token, int dim) noexcept
{
  return stored_value_place(spec, head_dim, token, stored_index(spec, head_dim, dim));
}

//! Order of what is stored once per token (metadata, scores, positions): a lane finds those of its
//! tokens g and g + 8 side by side.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int token_place(int token) noexcept
{
  int const in_block = token % block_tokens;
  return token - in_block + 2 * (in_block % 8) + in_block / 8;
}
static_assert(token_place(8) == 1 && token_place(1) == 2 && token_place(16) == 16);

}  // namespace diffkv
