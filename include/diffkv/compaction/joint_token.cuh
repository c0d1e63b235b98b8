// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Key and value of one token held by one warp together: half the instructions and a quarter of the
//! memory accesses of a warp per vector. For head_dim 128 and one scale group, keys of 8 and values of
//! 4 bits, or keys of 4 and values of 2.
//! Read before this: page/token_quads.cuh, quant/lane_rotation.cuh.
//! Read next: compaction/move_token.cuh.
//!
//! Lane h has elements 8 h .. 8 h + 7 of the key, lane 16 + h those of the value. In a page these eight
//! lie in 16 neighbouring bytes (8 in the low formats), among codes of other tokens.
#include <diffkv/page/token_quads.cuh>
#include <diffkv/quant/lane_rotation.cuh>

namespace diffkv {

//! Whether a warp can hold key and value of such a page's tokens together.
template <class Layout>
[[nodiscard]] constexpr bool is_joint(int key_bits, int value_bits) noexcept
{
  constexpr format_spec f = Layout::geometry.format;
  return f.key.bits == key_bits && f.value.bits == value_bits && f.key.groups == 1 &&
         f.value.groups == 1 && Layout::head_dim == 128;
}
template <class Layout>
inline constexpr bool is_joint_high_v = is_joint<Layout>(8, 4);
template <class Layout>
inline constexpr bool is_joint_low_v = is_joint<Layout>(4, 2);

//! Eight neighbouring elements of a lane.
struct joint_lane {
  static constexpr int elements = 8;
  static constexpr int owners   = 16;  //!< lanes of a vector

  [[nodiscard]] static __device__ bool has_value(int lane) noexcept { return lane >= owners; }
  //! First element.
  [[nodiscard]] static __device__ int first(int lane) noexcept { return lane % owners * elements; }
};

//! Codes of a lane, a byte each, and the scale and zero of its vector.
struct joint_codes {
  std::uint32_t bytes[2];
  affine group;
};

//! Encodes as encode_vector does, key and value side by side.
//! @param x           elements of the lane
//! @param min, max    of the lane's vector, NaN where one of them is; -0 for +0 does no harm
//! @param clip        of the lane's code_spec
//! @threads one warp
template <int KeyBits, int ValueBits>
[[nodiscard]] __device__ joint_codes encode_joint(float (&x)[joint_lane::elements], float min,
                                                  float max, float clip, int lane) noexcept
{
  bool const is_value = joint_lane::has_value(lane);
  bool is_number      = true;
  if (!(fabsf(min) <= f16_max && fabsf(max) <= f16_max)) {
    is_number = detail::is_finite(min) && detail::is_finite(max);
    min       = codec_input(min);
    max       = codec_input(max);
#pragma unroll
    for (float& e : x) { e = codec_input(e); }
  }
  min = detail::add_rn(min, 0.0f);  // -0 becomes +0
  max = detail::add_rn(max, 0.0f);
  joint_codes out{};
  out.group = fit_affine(min, max, clip, [is_value](float span) {
    float const as_key   = detail::div_by_short(span, (1u << KeyBits) - 1u);
    float const as_value = detail::div_by_short(span, (1u << ValueBits) - 1u);
    return is_value ? as_value : as_key;
  });
  if (!is_number) { out.group = {f16_nan, f16_nan}; }
  any_group_coder const code{out.group,
                             static_cast<float>(is_value ? 1u << ValueBits : 1u << KeyBits)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t const first = __byte_perm(code(x[4 * i]), code(x[4 * i + 1]), 0x0040);
    std::uint32_t const last  = __byte_perm(code(x[4 * i + 2]), code(x[4 * i + 3]), 0x0040);
    out.bytes[i]              = __byte_perm(first, last, 0x5410);
  }
  return out;
}

//! Where the shares of a token lie in a page. A lane's share are its eight codes of the key and its
//! eight of the value: those of the h-th eight elements belong to the lanes h and 16 + h.
//! @tparam Layout  is_joint_high_v or is_joint_low_v
template <class Layout>
struct joint_place {
  static_assert(is_joint_high_v<Layout> || is_joint_low_v<Layout>);
  static constexpr page_geometry geometry = Layout::geometry;
  static constexpr int key_bits           = geometry.format.key.bits;
  static constexpr int value_bits         = geometry.format.value.bits;
  static constexpr bool is_high           = key_bits == 8;

  std::uint32_t key    = 0;  //!< bytes from the page's start
  std::uint32_t value  = 0;
  std::uint32_t second = 0;  //!< 1: one of the last eight tokens of a block
  std::uint32_t byte   = 0;  //!< the token's byte in each word of the value's codes

  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr joint_place of(int token_in_page,
                                                                   int lane) noexcept
  {
    constexpr page_geometry g = geometry;
    auto const token          = static_cast<std::uint32_t>(token_in_page);
    auto const h              = static_cast<std::uint32_t>(lane) % joint_lane::owners;
    std::uint32_t const block = token / block_tokens;
    std::uint32_t const row   = token % 8;
    joint_place p{};
    p.second = token / 8 % 2;
    p.byte   = 2 * (token % 2) + p.second;
    if (is_high) {  // 16 bytes; the token's are two words of the key's, a byte of each of the
                    // value's
      p.key   = g.key_codes + block * 2048 + row * 64 + h / 4 * 16 + h % 4 * 512;
      p.value = g.value_codes + block * 1024 + row / 2 * 16 + h / 2 * 64 + h % 2 * 512;
    } else {  // 8 bytes; the token's are half of each byte of the key's, a byte of each word
      p.key   = g.key_codes + block * 1024 + row * 64 + h / 4 * 16 + h % 4 / 2 * 512 + h % 2 * 8;
      p.value = g.value_codes + block * 512 + row / 2 * 16 + h * 8 + h / 2 * 48;
    }
    return p;
  }
  //! Where a lane's label lies. Lane 0: scale and zero of the key, 1: the score, 16: scale and zero of
  //! the value, 17: the position; others as the one of these with the same lowest bit.
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint32_t label(int token_in_page,
                                                                        int lane) noexcept
  {
    constexpr page_geometry g    = geometry;
    auto const token             = static_cast<std::uint32_t>(token_in_page);
    std::uint32_t const of_key   = lane % 2 == 0 ? g.key_metadata : g.scores;
    std::uint32_t const of_value = lane % 2 == 0 ? g.value_metadata : g.positions;
    std::uint32_t const place    = (token & ~15u) + token % 8 * 2 + token / 8 % 2;
    return (lane >= joint_lane::owners ? of_value : of_key) + 4 * place;
  }
  [[nodiscard]] static __device__ bool stores_label(int lane) noexcept
  {
    return lane % joint_lane::owners < 2;
  }

  //! Whether all this is what the page's geometry says.
  [[nodiscard]] static constexpr bool is_right() noexcept
  {
    constexpr page_geometry g = geometry;
    for (int token = 0; token < 2 * block_tokens; ++token) {
      for (int lane = 0; lane < warp_lanes; ++lane) {
        joint_place const p = of(token, lane);
        bool const of_value = lane >= joint_lane::owners;
        std::uint32_t const place_of_label =
          of_value        ? lane % 2 == 0 ? g.value_affine(token, 0) : g.position(token)
                 : lane % 2 == 0 ? g.key_affine(token, 0)
                          : g.score(token);
        if (joint_place::label(token, lane) != place_of_label) { return false; }
        for (int e = 0; e < joint_lane::elements; ++e) {
          int const dim             = lane % joint_lane::owners * joint_lane::elements + e;
          auto const i              = static_cast<std::uint32_t>(e);
          std::uint32_t const first = p.key + i % 4;
          code_place const k        = is_high ? code_place{first + 4 * p.second + i / 4 * 8, 0}
                                              : code_place{first + i / 4 * 4, 4 * p.second};
          code_place const v        = is_high ? code_place{p.value + p.byte + i / 2 * 4, i % 2 * 4}
                                              : code_place{p.value + p.byte + i / 4 * 4, i % 4 * 2};
          if (!(g.key_code(token, dim) == k && g.value_code(token, dim) == v)) { return false; }
        }
      }
    }
    return true;
  }
};

//! Scale and zero in one word.
[[nodiscard]] __device__ inline std::uint32_t to_word(affine const& a) noexcept
{
  return static_cast<std::uint32_t>(a.scale) | static_cast<std::uint32_t>(a.zero) << 16;
}

//! Codes of 8 and 4 bits, that no other token shares a byte with.
template <class Layout>
struct joint_high_token {
  using place = joint_place<Layout>;
  static_assert(place::is_high && place::is_right());

  //! What a lane reads: 16 bytes of its own vector's codes.
  [[nodiscard]] static __device__ uint4 load(std::byte const* page, place const& at,
                                             int lane) noexcept
  {
    return detail::load_at<uint4>(page, joint_lane::has_value(lane) ? at.value : at.key);
  }
  //! The token's codes among them.
  static __device__ void take(uint4 const& from, place const& at, int lane,
                              std::uint32_t (&bytes)[2]) noexcept
  {
    std::uint32_t const picked = at.byte | (4u + at.byte) << 4;
    std::uint32_t const pairs =
      __byte_perm(__byte_perm(from.x, from.y, picked), __byte_perm(from.z, from.w, picked), 0x5410);
    auto const apart = [](std::uint32_t two) {
      return (two & 0x000F'000Fu) | (two & 0x00F0'00F0u) << 4;
    };
    bool const is_value = joint_lane::has_value(lane);
    bytes[0] = is_value ? apart(__byte_perm(pairs, 0, 0x4140)) : at.second != 0 ? from.y : from.x;
    bytes[1] = is_value ? apart(__byte_perm(pairs, 0, 0x4342)) : at.second != 0 ? from.w : from.z;
  }
};

//! Codes of 4 and 2 bits. Keys share bytes with other tokens, values do not.
template <class Layout>
struct joint_low_token {
  using place = joint_place<Layout>;
  static_assert(!place::is_high && place::is_right());

  //! What a store has to know of other tokens: the 8 bytes of a lane that has a key.
  [[nodiscard]] static __device__ uint2 others(std::byte const* page, place const& at,
                                               int lane) noexcept
  {
    return joint_lane::has_value(lane) ? uint2{} : detail::load_at<uint2>(page, at.key);
  }
  //! @param old  what `others` gave
  //! @threads one warp
  static __device__ void store(std::byte* page, place const& at, joint_codes const& codes,
                               uint2 const& old, int lane) noexcept
  {
    bool const is_value          = joint_lane::has_value(lane);
    std::uint32_t const shift    = 4 * at.second;
    std::uint32_t const of_token = 0x0F0F'0F0Fu << shift;
    auto const with_others       = [&](std::uint32_t others, std::uint32_t four) {
      return (others & ~of_token) | four << shift;
    };
    auto const in_byte = [](std::uint32_t four) {
      return (four | four >> 6 | four >> 12 | four >> 18) & 0xFFu;
    };
    // Of the two bytes of a value's share, lane h stores the first and lane 16 + h the second.
    std::uint32_t const first =
      __shfl_xor_sync(detail::whole_warp, in_byte(codes.bytes[0]), joint_lane::owners);
    if (!is_value) {
      detail::store_at(
        page, at.key,
        uint2{with_others(old.x, codes.bytes[0]), with_others(old.y, codes.bytes[1])});
    }
    detail::store_at(page, at.value + at.byte + (is_value ? 4u : 0u),
                     static_cast<std::uint8_t>(is_value ? in_byte(codes.bytes[1]) : first));
  }
};

}  // namespace diffkv
