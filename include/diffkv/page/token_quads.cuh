// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One token of a page read and written by a warp, a quad (quant/warp_vector.cuh) at a time: small
//! accesses, for tokens that come one by one. Whole blocks of 16 tokens are the prompt's business.
//! Read before this: quant/warp_vector.cuh, page/page_layout.hpp.
//! Read next: compaction/joint_token.cuh.
//!
//! Bytes that tokens share: low 4-bit and 2-bit keys share a byte between tokens t and t + 8, so only
//! one warp may write to a block at a time. Values share none.
#include <diffkv/page/page_layout.hpp>
#include <diffkv/quant/warp_vector.cuh>

namespace diffkv {

namespace detail {

template <class T>
[[nodiscard]] __device__ T load_at(std::byte const* page, std::uint32_t offset) noexcept
{
  return *reinterpret_cast<T const*>(page + offset);
}
template <class T>
__device__ void store_at(std::byte* page, std::uint32_t offset, T value) noexcept
{
  *reinterpret_cast<T*>(page + offset) = value;
}

}  // namespace detail

//! The codes of one side (K or V) of the tokens of a page, quad by quad.
template <class Layout, bool IsKey>
struct token_quads {
  static constexpr page_geometry geometry = Layout::geometry;
  static constexpr code_spec spec         = IsKey ? geometry.format.key : geometry.format.value;
  static constexpr int bits               = spec.bits;
  static constexpr int head_dim           = Layout::head_dim;
  static constexpr std::uint32_t max_code = spec.max_code();
  using codes                             = warp_codes<bits, spec.groups, head_dim>;
  using quad_type                         = code_quad<bits>;

  //! Two quads of one token lie in one byte: lanes take turns.
  static constexpr bool lanes_share_bytes = IsKey ? bits == 2 : bits == 1;
  //! A quad's word holds bits of other tokens, and no other quad's of this token.
  static constexpr bool tokens_share_words = IsKey && bits == 4;

  static constexpr int group_elements = head_dim / spec.groups;
  static constexpr int group_stored   = stored_elements(head_dim, spec.groups) / spec.groups;
  //! Quads of padding behind each group. Lanes that hold no quad of the vector write them, as code 0.
  static constexpr int group_padding = (group_stored - group_elements) / 4;
  static constexpr int stored_quads  = stored_elements(head_dim, spec.groups) / 4;
  static_assert(stored_quads <= 32 * warp_vector<head_dim>::quads_per_lane);

  //! First stored element of a quad; quads behind the vector's are those of the padding.
  [[nodiscard]] static __device__ constexpr int stored(int quad) noexcept
  {
    if constexpr (group_padding == 0) {
      return 4 * quad;
    } else {
      int const pad = quad - warp_vector<head_dim>::num_quads;
      return pad < 0
               ? 4 * quad / group_elements * group_stored + 4 * quad % group_elements
               : pad / group_padding * group_stored + group_elements + pad % group_padding * 4;
    }
  }
  //! Place of element e of a quad.
  [[nodiscard]] static __device__ constexpr code_place place(int token, int quad,
                                                             int e = 0) noexcept
  {
    code_place at = IsKey ? stored_key_place(spec, head_dim, token, stored(quad) + e)
                          : stored_value_place(spec, head_dim, token, stored(quad) + e);
    at.byte += IsKey ? geometry.key_codes : geometry.value_codes;
    return at;
  }
  [[nodiscard]] static __device__ constexpr std::uint32_t affine_place(int token,
                                                                       int group) noexcept
  {
    constexpr page_geometry g = geometry;
    if constexpr (IsKey) {
      return g.key_affine(token, group);
    } else {
      return g.value_affine(token, group);
    }
  }

  [[nodiscard]] static __device__ quad_type load(std::byte const* page, int token,
                                                 int quad) noexcept
  {
    using detail::load_at;
    code_place const at = place(token, quad);
    if constexpr (IsKey && bits == 16) {
      quad_type const first = load_at<std::uint32_t>(page, at.byte);
      return first | quad_type{load_at<std::uint32_t>(page, place(token, quad, 2).byte)} << 32;
    } else if constexpr (IsKey) {
      return (load_at<std::uint32_t>(page, at.byte) >> at.shift) & (max_code * 0x0101'0101u);
    } else if constexpr (bits == 16) {
      quad_type codes = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        quad_type const code = load_at<std::uint16_t>(page, place(token, quad, e).byte);
        codes |= code << 16 * e;
      }
      return codes;
    } else if constexpr (bits == 8) {
      // The token's byte of four neighbouring words.
      auto const words            = load_at<uint4>(page, at.byte & ~3u);
      std::uint32_t const j       = at.byte & 3u;
      std::uint32_t const picked  = j | (4u + j) << 4;
      std::uint32_t const of_low  = __byte_perm(words.x, words.y, picked);
      std::uint32_t const of_high = __byte_perm(words.z, words.w, picked);
      return __byte_perm(of_low, of_high, 0x5410);
    } else if constexpr (bits == 4) {
      auto const words          = load_at<uint2>(page, at.byte & ~3u);
      std::uint32_t const j     = at.byte & 3u;
      std::uint32_t const bytes = __byte_perm(words.x, words.y, j | (4u + j) << 4);
      return (bytes & 0xFu) | (bytes & 0xF0u) << 4 | (bytes & 0xF00u) << 8 |
             (bytes & 0xF000u) << 12;
    } else {
      std::uint32_t const byte = load_at<std::uint8_t>(page, at.byte) >> at.shift;
      std::uint32_t codes      = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) { codes |= (byte >> bits * e & max_code) << 8 * e; }
      return codes;
    }
  }

  //! What a store will need to know of the other tokens; to be asked early, as it is a read.
  [[nodiscard]] static __device__ std::uint32_t neighbours(std::byte const* page, int token,
                                                           int quad) noexcept
  {
    if constexpr (tokens_share_words) {
      return detail::load_at<std::uint32_t>(page, place(token, quad).byte);
    } else {
      return 0;
    }
  }

  //! @param present  false: the lane takes part without a quad
  //! @param others   what `neighbours` said
  //! @threads one warp
  static __device__ void store(std::byte* page, int token, int quad, quad_type codes, bool present,
                               std::uint32_t others) noexcept
  {
    using detail::store_at;
    code_place const at = place(token, quad);
    if constexpr (lanes_share_bytes) {
      std::uint32_t const mine = IsKey ? 0x0303'0303u << at.shift : 0xFu << at.shift;
      std::uint32_t const bits_of_mine =
        IsKey ? codes : (codes | codes >> 7 | codes >> 14 | codes >> 21) & 0xFu;
      for (std::uint32_t turn = 0; turn < 2; ++turn) {
        if (present && at.shift / 4 == turn) {
          if constexpr (IsKey) {
            auto const word = detail::load_at<std::uint32_t>(page, at.byte);
            store_at(page, at.byte, (word & ~mine) | bits_of_mine << at.shift);
          } else {
            std::uint32_t const byte = detail::load_at<std::uint8_t>(page, at.byte);
            store_at(page, at.byte,
                     static_cast<std::uint8_t>((byte & ~mine) | bits_of_mine << at.shift));
          }
        }
        __syncwarp();
      }
      return;
    } else {
      if (!present) { return; }
    }
    if constexpr (IsKey && bits == 16) {
      store_at(page, at.byte, static_cast<std::uint32_t>(codes));
      store_at(page, place(token, quad, 2).byte, static_cast<std::uint32_t>(codes >> 32));
    } else if constexpr (IsKey && bits == 8) {
      store_at(page, at.byte, codes);
    } else if constexpr (IsKey && bits == 4) {
      store_at(page, at.byte, (others & ~(0x0F0F'0F0Fu << at.shift)) | codes << at.shift);
    } else if constexpr (!IsKey && (bits == 16 || bits == 8)) {
      using element = std::conditional_t<bits == 16, std::uint16_t, std::uint8_t>;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        store_at(page, place(token, quad, e).byte, static_cast<element>(code_of<bits>(codes, e)));
      }
    } else if constexpr (!IsKey && bits == 4) {
      std::uint32_t const pairs = codes | codes >> 4;  // bytes 0 and 2: two codes each
      store_at(page, at.byte, static_cast<std::uint8_t>(pairs));
      store_at(page, place(token, quad, 2).byte, static_cast<std::uint8_t>(pairs >> 16));
    } else if constexpr (!IsKey && bits == 2) {
      std::uint32_t const all = codes | codes >> 6 | codes >> 12 | codes >> 18;
      store_at(page, at.byte, static_cast<std::uint8_t>(all));
    }
  }

  //! Whether a lane's i-th quad, or padding in its place, is stored.
  [[nodiscard]] static __device__ constexpr bool stores(int lane, int i) noexcept
  {
    return stored_quads % 32 == 0 || warp_vector<head_dim>::quad(lane, i) < stored_quads;
  }

  //! All of a token: codes, scales and zeros.  @threads one warp
  [[nodiscard]] static __device__ codes load_token(std::byte const* page, int token,
                                                   int lane) noexcept
  {
    using vector = warp_vector<head_dim>;
    codes all;
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      if (vector::has(lane, i)) { all.quads[i] = load(page, token, vector::quad(lane, i)); }
    }
    if constexpr (bits < 16) {
#pragma unroll
      for (int g = 0; g < spec.groups; ++g) {
        auto const raw = detail::load_at<std::uint32_t>(page, affine_place(token, g));
        all.groups[g]  = {static_cast<f16_bits>(raw & 0xFFFFu), static_cast<f16_bits>(raw >> 16)};
      }
    }
    return all;
  }

  //! What stores of a whole token need to know of other tokens.
  struct token_neighbours {
    std::uint32_t words[warp_vector<head_dim>::quads_per_lane];
  };
  [[nodiscard]] static __device__ token_neighbours neighbours_of(std::byte const* page, int token,
                                                                 int lane) noexcept
  {
    using vector = warp_vector<head_dim>;
    token_neighbours all{};
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      if (stores(lane, i)) { all.words[i] = neighbours(page, token, vector::quad(lane, i)); }
    }
    return all;
  }
  static __device__ void store_token(std::byte* page, int token, codes const& all,
                                     token_neighbours const& others, int lane) noexcept
  {
    using vector = warp_vector<head_dim>;
#pragma unroll
    for (int i = 0; i < vector::quads_per_lane; ++i) {
      store(page, token, vector::quad(lane, i), all.quads[i], stores(lane, i), others.words[i]);
    }
    if constexpr (bits < 16) {
#pragma unroll
      for (int g = 0; g < spec.groups; ++g) {
        if (lane == g) { detail::store_at(page, affine_place(token, g), all.groups[g]); }
      }
    }
  }
};

template <class Layout>
using token_key = token_quads<Layout, true>;
template <class Layout>
using token_value = token_quads<Layout, false>;

}  // namespace diffkv
