// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One side of 16 tokens in two passes of eight: codes are made where four lanes share a token, wait in
//! shared memory as few bytes, and are stored in the order of the page. Short code and few registers,
//! so that many warps hide each other's loads.
//! Read before this: page/block_image.cuh.  Read next: compaction/encode_block.cuh.
#include <diffkv/page/block_image.cuh>

namespace diffkv {

//! Members as in block_image, but a lane has one token a pass.
template <class Layout, bool IsKey>
struct block_rows {
  using layout                        = Layout;
  using image_type                    = block_image<Layout, IsKey>;
  static constexpr bool is_key        = IsKey;
  static constexpr int bits           = image_type::bits;
  static constexpr int groups         = image_type::groups;
  static constexpr int head_dim       = image_type::head_dim;
  static constexpr int group_elements = image_type::group_elements;
  static constexpr int owners         = 4;
  static constexpr int owner_mask     = 1;
  static constexpr int share          = detail::round_up(group_elements, 32) / owners;
  static constexpr int elements       = groups * share;
  static constexpr int passes         = 2;

  //! A row is a token. Key codes take a byte each, as their bytes are shared between tokens; value
  //! codes that follow each other share a byte, as in the page.
  static constexpr int codes_per_byte = IsKey || bits > 8 ? 1 : 8 / bits;
  static constexpr int share_bytes    = share / codes_per_byte;  //!< of a group in one lane
  static constexpr int group_bytes    = share_bytes * owners;
  static constexpr int row_stride  = groups * group_bytes + 16;  //!< rows begin in different banks
  static constexpr int scale_bytes = groups * block_tokens * 4;
  //! Whether the codes of a lane are whole words here, and whole words or half a word in the image.
  static constexpr bool is_possible =
    bits < 16 && share % codes_per_byte == 0 &&
    (IsKey ? share_bytes % 8 == 0 : share_bytes == 4 || share_bytes % 8 == 0);
  static constexpr int shared_bytes = is_possible ? block_tokens * row_stride + scale_bytes : 16;

  [[nodiscard]] static __device__ constexpr int owner(int lane) noexcept { return lane % 4; }
  [[nodiscard]] static __device__ constexpr int token(int lane, int pass) noexcept
  {
    return lane / 4 + 8 * pass;
  }

  std::byte* shared;  //!< shared_bytes of this warp alone

  __device__ __forceinline__ void put_scale(int pass, int group, affine a, int lane) noexcept
  {
    if (owner(lane) != group) { return; }
    reinterpret_cast<affine*>(
      shared + block_tokens * row_stride)[group * block_tokens + token_place(token(lane, pass))] =
      a;
  }

  //! Takes in the codes of a lane's token.
  __device__ __forceinline__ void put(int pass, std::uint32_t const (&code)[elements],
                                      int lane) noexcept
  {
    constexpr int words = elements / codes_per_byte / 4;
    std::uint32_t word[words];
#pragma unroll
    for (int w = 0; w < words; ++w) {
      std::uint32_t byte[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        int const first = (4 * w + b) * codes_per_byte;
        byte[b]         = code[first];
#pragma unroll
        for (int k = 1; k < codes_per_byte; ++k) { byte[b] += code[first + k] << bits * k; }
      }
      word[w] = __byte_perm(__byte_perm(byte[0], byte[1], 0x0040),
                            __byte_perm(byte[2], byte[3], 0x0040), 0x5410);
    }
    std::byte* const row = shared + token(lane, pass) * row_stride + owner(lane) * share_bytes;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      write_words<share_bytes>(row + g * group_bytes, word + g * share_bytes / 4);
    }
  }

  //! @threads one warp, after both passes
  __device__ __forceinline__ void store(std::byte* page, int block, int count, int lane) noexcept
  {
    __syncwarp();
    image_type image;
    if constexpr (IsKey) {
      gather_keys(image, lane);
    } else {
      gather_values(image, lane);
    }
    image.store_codes(page, block, count, lane);
    constexpr page_geometry geometry = Layout::geometry;
    int const in_block = lane / 2 + 8 * (lane % 2);  // the token whose place is `lane`
    if (lane < block_tokens && in_block < count) {
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        int const at = block * block_tokens + in_block;
        *reinterpret_cast<std::uint32_t*>(
          page + (IsKey ? geometry.key_affine(at, g) : geometry.value_affine(at, g))) =
          reinterpret_cast<std::uint32_t const*>(shared + block_tokens *
                                                            row_stride)[g * block_tokens + lane];
      }
    }
  }

 private:
  __device__ __forceinline__ void gather_keys(image_type& image, int lane) const noexcept
  {
    constexpr int words = elements / 4;
    std::uint32_t row[2][words];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        read_words<share_bytes>(
          row[r] + g * share_bytes / 4,
          shared + token(lane, r) * row_stride + g * group_bytes + owner(lane) * share_bytes);
      }
    }
#pragma unroll
    for (int k = 0; k < words; ++k) {
      if constexpr (bits == 8) {
        image.word[4 * (k / 2) + 2 * (k % 2)]     = row[0][k];
        image.word[4 * (k / 2) + 2 * (k % 2) + 1] = row[1][k];
      } else if constexpr (bits == 4) {
        image.word[k] = row[0][k] + (row[1][k] << 4);
      } else if (k % 2 == 0) {
        image.word[k / 2] =
          row[0][k] + (row[1][k] << 2) + (row[0][k + 1] << 4) + (row[1][k + 1] << 6);
      }
    }
  }
  __device__ __forceinline__ void gather_values(image_type& image, int lane) const noexcept
  {
    constexpr int bytes = share_bytes / 2;  // of a group in a lane of the image
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      std::uint32_t row[4][detail::ceil_div(bytes, 4)];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        read_words<bytes>(row[j], shared + image_type::token(lane, j) * row_stride +
                                    g * group_bytes + image_type::owner(lane) * bytes);
      }
      // Word w of the image has byte w of each of the four rows.
#pragma unroll
      for (int w = 0; w < bytes; w += 4) {
        std::uint32_t const low01  = __byte_perm(row[0][w / 4], row[1][w / 4], 0x5140);
        std::uint32_t const low23  = __byte_perm(row[2][w / 4], row[3][w / 4], 0x5140);
        std::uint32_t const high01 = __byte_perm(row[0][w / 4], row[1][w / 4], 0x7362);
        std::uint32_t const high23 = __byte_perm(row[2][w / 4], row[3][w / 4], 0x7362);
        std::uint32_t* const to    = image.word + g * bytes + w;
        to[0]                      = __byte_perm(low01, low23, 0x5410);
        to[1]                      = __byte_perm(low01, low23, 0x7632);
        if constexpr (bytes > 2) {
          to[2] = __byte_perm(high01, high23, 0x5410);
          to[3] = __byte_perm(high01, high23, 0x7632);
        }
      }
    }
  }

  //! Bytes of one access: all of a lane's share is aligned to it.
  template <int Bytes>
  static constexpr int unit_bytes = Bytes % 16 == 0  ? 16
                                    : Bytes % 8 == 0 ? 8
                                    : Bytes % 4 == 0 ? 4
                                                     : 2;

  template <int Bytes>
  static __device__ __forceinline__ void write_words(std::byte* to,
                                                     std::uint32_t const* from) noexcept
  {
#pragma unroll
    for (int w = 0; w < Bytes / 4; w += unit_bytes<Bytes> / 4) {
      if constexpr (unit_bytes<Bytes> == 16) {
        reinterpret_cast<uint4*>(to)[w / 4] =
          make_uint4(from[w], from[w + 1], from[w + 2], from[w + 3]);
      } else if constexpr (unit_bytes<Bytes> == 8) {
        reinterpret_cast<uint2*>(to)[w / 2] = make_uint2(from[w], from[w + 1]);
      } else {
        reinterpret_cast<std::uint32_t*>(to)[w] = from[w];
      }
    }
  }
  template <int Bytes>
  static __device__ __forceinline__ void read_words(std::uint32_t* to,
                                                    std::byte const* from) noexcept
  {
    if constexpr (Bytes == 2) {
      to[0] = *reinterpret_cast<std::uint16_t const*>(from);
    } else {
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
          to[w] = reinterpret_cast<std::uint32_t const*>(from)[w];
        }
      }
    }
  }
};

}  // namespace diffkv
