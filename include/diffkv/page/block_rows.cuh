// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codes of one side of 16 tokens on their way to a page: made where few lanes share a token, in
//! the same order for every format, they wait in shared memory, a byte each, and are stored in the order
//! of the page. So all formats share the long code that makes them: instruction caches are small.
//! Read before this: page/block_image.cuh.  Read next: compaction/vector_tile.cuh.
#include <diffkv/page/block_image.cuh>
#include <diffkv/quant/affine.hpp>

namespace diffkv {

//! Bytes of shared memory that the codes of a block take.
[[nodiscard]] constexpr int block_rows_bytes(int head_dim, int groups) noexcept
{
  return block_tokens * (stored_elements(head_dim, groups) + 16) + groups * block_tokens * 4;
}

//! A token's elements lie in `owners` lanes: of each scale group, padded to a multiple of 32, owner o
//! has the o-th share. A lane has one token a pass.
template <int HeadDim, int Groups>
struct block_rows {
  static constexpr int head_dim       = HeadDim;
  static constexpr int groups         = Groups;
  static constexpr int group_elements = head_dim / groups;
  static constexpr int group_stored   = detail::round_up(group_elements, 32);
  static constexpr int stored         = groups * group_stored;
  //! The fewer lanes share a token, the less they have to exchange.
  static constexpr int owners      = stored > 128 ? 4 : 2;
  static constexpr int passes      = owners / 2;
  static constexpr int pass_tokens = block_tokens / passes;
  static constexpr int owner_mask  = pass_tokens;  //!< lowest lane bit that tells owners apart
  static constexpr int share       = group_stored / owners;
  static constexpr int elements    = groups * share;
  static_assert(share % 8 == 0, "shares of a row are words");

  static constexpr int row_stride   = stored + 16;  //!< rows begin in different banks
  static constexpr int shared_bytes = block_rows_bytes(head_dim, groups);

  [[nodiscard]] static __device__ constexpr int owner(int lane) noexcept
  {
    return lane / pass_tokens;
  }
  [[nodiscard]] static __device__ constexpr int token(int lane, int pass) noexcept
  {
    return lane % pass_tokens + pass_tokens * pass;
  }

  std::byte* shared;  //!< shared_bytes of this warp alone

  __device__ __forceinline__ void put_scale(int pass, int group, affine a, int lane) const noexcept
  {
    if (owner(lane) != group % owners) { return; }
    scales()[group * block_tokens + token_place(token(lane, pass))] =
      static_cast<std::uint32_t>(a.scale) | static_cast<std::uint32_t>(a.zero) << 16;
  }

  //! Takes in codes of a lane's token, those from element `first` on, in the low bytes of words.
  template <int Count>
  __device__ __forceinline__ void put(int pass, int first, std::uint32_t const (&code)[Count],
                                      int lane) const noexcept
  {
    std::uint32_t word[Count / 4];
#pragma unroll
    for (int w = 0; w < Count / 4; ++w) {
      word[w] = __byte_perm(__byte_perm(code[4 * w], code[4 * w + 1], 0x0040),
                            __byte_perm(code[4 * w + 2], code[4 * w + 3], 0x0040), 0x5410);
    }
    std::byte* const row = shared + token(lane, pass) * row_stride + owner(lane) * share;
    write_words<Count>(row + first / share * group_stored + first % share, word);
  }

  //! Writes a block's codes. Of its slots only the first `count` are written to.
  //! @param codes  the block's place in the codes of a page
  //! @threads one warp, after all passes and __syncwarp
  template <class Layout, bool IsKey>
  __device__ __forceinline__ void store_codes(std::byte* codes, int count, int lane) const noexcept
  {
    using image_type = block_image<Layout, IsKey>;
    static_assert(image_type::groups == groups && Layout::head_dim == head_dim);
    image_type image;
    if constexpr (IsKey) {
      gather_keys(image, lane);
    } else {
      gather_values(image, lane);
    }
    image.store(codes, count, lane);
  }
  //! Writes a block's scales and zeros.
  //! @param to  the block's place in the metadata of a page
  //! @threads one warp, after all passes and __syncwarp
  __device__ __forceinline__ void store_scales(std::byte* to, int count, int lane) const noexcept
  {
    int const in_block = lane / 2 + 8 * (lane % 2);  // the token whose place is `lane`
    if (lane >= block_tokens || in_block >= count) { return; }
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      reinterpret_cast<std::uint32_t*>(to)[g * block_tokens + lane] =
        scales()[g * block_tokens + lane];
    }
  }

 private:
  //! Scale and zero of a token in a word, as in the page.
  [[nodiscard]] __device__ std::uint32_t* scales() const noexcept
  {
    return reinterpret_cast<std::uint32_t*>(shared + block_tokens * row_stride);
  }

  //! The codes of a token that a lane of the image has.
  template <class Image>
  __device__ __forceinline__ void read_row(std::uint32_t (&row)[Image::elements / 4], int token,
                                           int lane) const noexcept
  {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      read_words<Image::share>(
        row + g * Image::share / 4,
        shared + token * row_stride + g * group_stored + Image::owner(lane) * Image::share);
    }
  }

  template <class Image>
  __device__ __forceinline__ void gather_keys(Image& image, int lane) const noexcept
  {
    constexpr int words = Image::elements / 4;
    std::uint32_t row[2][words];
#pragma unroll
    for (int r = 0; r < 2; ++r) { read_row<Image>(row[r], Image::token(lane, r), lane); }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      if constexpr (Image::bits == 8) {
        image.word[4 * (k / 2) + 2 * (k % 2)]     = row[0][k];
        image.word[4 * (k / 2) + 2 * (k % 2) + 1] = row[1][k];
      } else if constexpr (Image::bits == 4) {
        image.word[k] = row[0][k] + (row[1][k] << 4);
      } else if (k % 2 == 0) {
        image.word[k / 2] =
          row[0][k] + (row[1][k] << 2) + (row[0][k + 1] << 4) + (row[1][k + 1] << 6);
      }
    }
  }

  //! A word of the image has a byte of each of four tokens.
  template <class Image>
  __device__ __forceinline__ void gather_values(Image& image, int lane) const noexcept
  {
    constexpr int bits  = Image::bits;
    constexpr int words = Image::elements / 4;
    std::uint32_t row[4][words];
#pragma unroll
    for (int j = 0; j < 4; ++j) { read_row<Image>(row[j], Image::token(lane, j), lane); }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      std::uint32_t four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) { four[j] = side_by_side<bits>(row[j][k]); }
      if constexpr (bits == 8) {
        std::uint32_t const low01  = __byte_perm(four[0], four[1], 0x5140);
        std::uint32_t const low23  = __byte_perm(four[2], four[3], 0x5140);
        std::uint32_t const high01 = __byte_perm(four[0], four[1], 0x7362);
        std::uint32_t const high23 = __byte_perm(four[2], four[3], 0x7362);
        image.word[4 * k]          = __byte_perm(low01, low23, 0x5410);
        image.word[4 * k + 1]      = __byte_perm(low01, low23, 0x7632);
        image.word[4 * k + 2]      = __byte_perm(high01, high23, 0x5410);
        image.word[4 * k + 3]      = __byte_perm(high01, high23, 0x7632);
      } else if constexpr (bits == 4) {
        std::uint32_t const both01 = __byte_perm(four[0], four[1], 0x7351);
        std::uint32_t const both23 = __byte_perm(four[2], four[3], 0x7351);
        image.word[2 * k]          = __byte_perm(both01, both23, 0x5410);
        image.word[2 * k + 1]      = __byte_perm(both01, both23, 0x7632);
      } else {
        std::uint32_t const mine = __byte_perm(__byte_perm(four[0], four[1], 0x0073),
                                               __byte_perm(four[2], four[3], 0x0073), 0x5410);
        if constexpr (bits == 2) {
          image.word[k] = mine;
        } else {
          image.word[k / 2] = k % 2 == 0 ? mine : image.word[k / 2] | mine << 4;
        }
      }
    }
  }

  //! Codes of `Bits` bits, given a byte each, beside each other: 4-bit codes in the bytes 1 and 3, four
  //! narrower ones in byte 3. The product is a sum of shifts whose bits do not meet there.
  template <int Bits>
  [[nodiscard]] static __device__ std::uint32_t side_by_side(std::uint32_t codes) noexcept
  {
    switch (Bits) {
      case 4:
        return codes * (1u << 8 | 1u << 4);
      case 2:
        return codes * (1u << 24 | 1u << 18 | 1u << 12 | 1u << 6);
      case 1:
        return codes * (1u << 24 | 1u << 17 | 1u << 10 | 1u << 3);
      default:
        return codes;
    }
  }

  //! Bytes of one access: all of a lane's share is aligned to it.
  template <int Bytes>
  static constexpr int unit_bytes = Bytes % 16 == 0  ? 16
                                    : Bytes % 8 == 0 ? 8
                                                     : 4;

  template <int Bytes>
  static __device__ __forceinline__ void write_words(std::byte* to,
                                                     std::uint32_t const* from) noexcept
  {
#pragma unroll
    for (int w = 0; w < Bytes / 4; w += unit_bytes<Bytes> / 4) {
      if constexpr (unit_bytes<Bytes> == 16) {
        reinterpret_cast<uint4*>(to)[w / 4] =
          make_uint4(from[w], from[w + 1], from[w + 2], from[w + 3]);
      } else {
        static_assert(unit_bytes<Bytes> == 8);
        reinterpret_cast<uint2*>(to)[w / 2] = make_uint2(from[w], from[w + 1]);
      }
    }
  }
  template <int Bytes>
  static __device__ __forceinline__ void read_words(std::uint32_t* to,
                                                    std::byte const* from) noexcept
  {
#pragma unroll
    for (int w = 0; w < Bytes / 4; w += unit_bytes<Bytes> / 4) {
      if constexpr (unit_bytes<Bytes> == 16) {
        uint4 const four = reinterpret_cast<uint4 const*>(from)[w / 4];
        to[w]            = four.x;
        to[w + 1]        = four.y;
        to[w + 2]        = four.z;
        to[w + 3]        = four.w;
      } else if constexpr (unit_bytes<Bytes> == 8) {
        uint2 const two = reinterpret_cast<uint2 const*>(from)[w / 2];
        to[w]           = two.x;
        to[w + 1]       = two.y;
      } else {
        to[w] = *reinterpret_cast<std::uint32_t const*>(from + 4 * w);
      }
    }
  }
};

}  // namespace diffkv
