// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codes of 16 tokens as a warp holds and stores them: the image of page/fragment_order.hpp in
//! registers, written in 16-byte units.
//! Read before this: quant/lane_rotation.cuh, page/page_layout.hpp.
//! Read next: page/block_rows.cuh.
#include <diffkv/page/page_layout.hpp>

#include <cstddef>  // byte

namespace diffkv {

//! One side (K or V) of a block. A token's elements lie in `owners` lanes: of each scale group, padded
//! to a multiple of 32, owner o has the o-th share. A lane has `tokens` tokens.
template <class Layout, bool IsKey>
struct block_image {
  using layout                 = Layout;
  static constexpr bool is_key = IsKey;
  static constexpr code_spec spec =
    IsKey ? Layout::geometry.format.key : Layout::geometry.format.value;
  static constexpr int bits           = spec.bits;
  static constexpr int groups         = spec.groups;
  static constexpr int head_dim       = Layout::head_dim;
  static constexpr int group_elements = head_dim / groups;
  static constexpr int owners         = IsKey ? 4 : 8;
  static constexpr int owner_mask     = IsKey ? 1 : 4;  //!< lowest lane bit that tells owners apart
  static constexpr int tokens         = IsKey ? 2 : 4;
  static constexpr int share          = detail::round_up(group_elements, 32) / owners;
  static constexpr int elements       = groups * share;
  static constexpr int words          = words_per_lane(spec, head_dim);

  [[nodiscard]] static __device__ constexpr int owner(int lane) noexcept
  {
    return IsKey ? lane % 4 : lane / 4;
  }
  //! A lane's i-th token.
  [[nodiscard]] static __device__ constexpr int token(int lane, int i) noexcept
  {
    return IsKey ? lane / 4 + 8 * i : lane % 4 * 2 + 8 * (i % 2) + i / 2;
  }

  std::uint32_t word[words];

  //! Takes in the i-th token of 16-bit elements, i = 0, 1, ... in this order; each element fills the low
  //! half of a clean word.
  __device__ __forceinline__ void put(int i, std::uint32_t const (&element)[elements]) noexcept
  {
    static_assert(bits == 16);
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (IsKey) {
        int const e = 4 * (w / 4) + 2 * (w / 2 % 2);
        if (w % 2 == i) { word[w] = element[e] | element[e + 1] << 16; }
      } else {
        if (w / 2 % 2 != i / 2) { continue; }
        std::uint32_t const mine = element[2 * (w / 4) + w % 2];
        word[w]                  = i % 2 == 0 ? mine : word[w] | mine << 16;
      }
    }
  }

  //! Writes a block. Of its slots only the first `count` are written to.
  //! @param codes  the block's place in the codes of a page
  //! @threads one warp
  __device__ __forceinline__ void store(std::byte* codes, int count, int lane) noexcept
  {
    if (__builtin_expect(count < block_tokens, 0) != 0) {
      unsigned present = 0;
#pragma unroll
      for (int i = 0; i < tokens; ++i) { present |= token(lane, i) < count ? 1u << i : 0u; }
      keep_absent(codes, present, lane);
    }
    store_words(codes, lane);
  }

 private:
  //! Bits of a word that belong to the tokens in `present`.
  [[nodiscard]] static __device__ constexpr std::uint32_t bits_of(int w, unsigned present) noexcept
  {
    std::uint32_t mask = 0;
    for (int i = 0; i < tokens; ++i) {
      std::uint32_t mine = 0;
      if (IsKey) {
        mine = bits >= 8 ? (w % 2 == i ? 0xFFFF'FFFFu : 0u)
                         : (bits == 4 ? 0x0F0F'0F0Fu : 0x3333'3333u) << (i == 0 ? 0 : bits);
      } else if (bits == 16) {
        mine = w / 2 % 2 == i / 2 ? 0xFFFFu << 16 * (i % 2) : 0u;
      } else {
        mine = 0xFFu << 8 * i;
      }
      mask |= (present >> i & 1u) != 0 ? mine : 0u;
    }
    return mask;
  }
  __device__ __forceinline__ void keep_absent(std::byte const* codes, unsigned present,
                                              int lane) noexcept
  {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      std::uint32_t const mask = bits_of(w, present);
      auto const old = *reinterpret_cast<std::uint32_t const*>(codes + word_offset(words, lane, w));
      word[w]        = (word[w] & mask) | (old & ~mask);
    }
  }

  __device__ __forceinline__ void store_words(std::byte* codes, int lane) const noexcept
  {
    constexpr int full = words / 4 * 4;
    constexpr int rest = words - full;
#pragma unroll
    for (int w = 0; w < full; w += 4) {
      *reinterpret_cast<uint4*>(codes + word_offset(words, lane, w)) =
        make_uint4(word[w], word[w + 1], word[w + 2], word[w + 3]);
    }
    if constexpr (rest == 2) {
      *reinterpret_cast<uint2*>(codes + word_offset(words, lane, full)) =
        make_uint2(word[full], word[full + 1]);
    } else {
#pragma unroll
      for (int w = full; w < words; ++w) {
        *reinterpret_cast<std::uint32_t*>(codes + word_offset(words, lane, w)) = word[w];
      }
    }
  }
};

}  // namespace diffkv
