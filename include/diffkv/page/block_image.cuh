// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codes of 16 tokens as a warp holds and stores them: the image of page/fragment_order.hpp in
//! registers, written in 16-byte units.
//! Read before this: quant/lane_rotation.cuh, page/page_layout.hpp.
//! Read next: compaction/encode_block.cuh.
#include <diffkv/page/page_layout.hpp>
#include <diffkv/quant/affine.hpp>

#include <cstddef>  // byte

namespace diffkv {

//! Stores scale and zero of the tokens of a block: lanes that own the same tokens take turns by group.
//! @tparam Side  says whose: layout, is_key, groups, owner, token, tokens
template <class Side, int Tokens, int Groups>
__device__ __forceinline__ void store_block_scales(std::byte* page, int block, int count,
                                                   affine const (&scales)[Tokens][Groups],
                                                   int lane) noexcept
{
  constexpr page_geometry geometry = Side::layout::geometry;
  auto const bits_of               = [](affine a) {
    return static_cast<std::uint32_t>(a.scale) | static_cast<std::uint32_t>(a.zero) << 16;
  };
#pragma unroll
  for (int g = 0; g < Groups; ++g) {
    if (Side::owner(lane) != g) { continue; }
    int const first = block * block_tokens + Side::token(lane, 0);
    std::byte* const at =
      page + (Side::is_key ? geometry.key_affine(first, g) : geometry.value_affine(first, g));
    if (count == block_tokens) {  // a lane's tokens lie side by side
      if constexpr (Tokens == 2) {
        *reinterpret_cast<uint2*>(at) = make_uint2(bits_of(scales[0][g]), bits_of(scales[1][g]));
      } else {
        *reinterpret_cast<uint4*>(at) = make_uint4(bits_of(scales[0][g]), bits_of(scales[1][g]),
                                                   bits_of(scales[2][g]), bits_of(scales[3][g]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < Tokens; ++i) {
        if (Side::token(lane, i) >= count) { continue; }
        reinterpret_cast<std::uint32_t*>(at)[i] = bits_of(scales[i][g]);
      }
    }
  }
}

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
  affine scales[tokens][groups];

  __device__ __forceinline__ void put_scale(int i, int group, affine a, int) noexcept
  {
    scales[i][group] = a;
  }

  //! Takes in the codes of the i-th token, i = 0, 1, ... in this order. Quantised codes are in the low
  //! `bits` bits, the next bits up to bit 15 are 0; f16 elements fill the low half of a clean word.
  __device__ __forceinline__ void put(int i, std::uint32_t const (&code)[elements], int) noexcept
  {
    if constexpr (bits == 16) {
      put_halves(i, code);
    } else if constexpr (IsKey) {
      put_key(i, code);
    } else {
      put_value(i, code);
    }
  }

  //! Writes block `block` of a page. Of the block's slots only the first `count` are written to.
  //! @threads one warp
  __device__ __forceinline__ void store(std::byte* page, int block, int count, int lane) noexcept
  {
    store_codes(page, block, count, lane);
    if constexpr (bits < 16) { store_block_scales<block_image>(page, block, count, scales, lane); }
  }
  //! The codes alone.
  __device__ __forceinline__ void store_codes(std::byte* page, int block, int count,
                                              int lane) noexcept
  {
    std::byte* const codes = page + (IsKey ? Layout::key_codes : Layout::value_codes) +
                             block * block_bytes(spec, head_dim);
    if (count < block_tokens) {
      unsigned present = 0;
#pragma unroll
      for (int i = 0; i < tokens; ++i) { present |= token(lane, i) < count ? 1u << i : 0u; }
      keep_absent(codes, present, lane);
    }
    store_words(codes, lane);
  }

 private:
  //! The low bytes of four words.
  [[nodiscard]] static __device__ std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b,
                                                          std::uint32_t c, std::uint32_t d) noexcept
  {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }

  __device__ __forceinline__ void put_halves(int i, std::uint32_t const (&code)[elements]) noexcept
  {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (IsKey) {
        int const e = 4 * (w / 4) + 2 * (w / 2 % 2);
        if (w % 2 == i) { word[w] = code[e] | code[e + 1] << 16; }
      } else {
        if (w / 2 % 2 != i / 2) { continue; }
        std::uint32_t const element = code[2 * (w / 4) + w % 2];
        word[w]                     = i % 2 == 0 ? element : word[w] | element << 16;
      }
    }
  }
  __device__ __forceinline__ void put_key(int i, std::uint32_t const (&code)[elements]) noexcept
  {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (bits == 8) {
        int const e = 8 * (w / 4) + 4 * (w / 2 % 2);
        if (w % 2 == i) { word[w] = low_bytes(code[e], code[e + 1], code[e + 2], code[e + 3]); }
      } else {
        std::uint32_t byte[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          byte[b] = bits == 4 ? code[4 * w + b] : code[8 * w + b] + (code[8 * w + 4 + b] << 4);
        }
        std::uint32_t const mine = low_bytes(byte[0], byte[1], byte[2], byte[3]);
        word[w]                  = i == 0 ? mine : word[w] + (mine << bits);
      }
    }
  }
  __device__ __forceinline__ void put_value(int i, std::uint32_t const (&code)[elements]) noexcept
  {
    constexpr int per_byte = 8 / bits;
#pragma unroll
    for (int w = 0; w < words; ++w) {
      std::uint32_t byte = code[per_byte * w];
#pragma unroll
      for (int k = 1; k < per_byte; ++k) {
        if (per_byte * w + k < elements) { byte += code[per_byte * w + k] << bits * k; }
      }
      // Byte i of the word; what lies above it is overwritten by the tokens to come.
      word[w] = i == 0 ? byte
                       : __byte_perm(word[w], byte,
                                     i == 1   ? 0x3240
                                     : i == 2 ? 0x3410
                                              : 0x4210);
    }
  }

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
