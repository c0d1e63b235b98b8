// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A token moves to another slot, by a warp: requantised into the low tier, or copied within it.
//! Read before this: compaction/joint_token.cuh, compaction/step_record.hpp.
//! Read next: compaction/step.cuh.
#include <diffkv/compaction/joint_token.cuh>
#include <diffkv/page/tier_layouts.hpp>
#include <diffkv/pool/page_pool.hpp>

namespace diffkv {

//! One token on its way. Both pages belong to one row, and no other token enters `to` meanwhile.
struct token_move {  // no initialisers: it lies in shared memory
  page_id from;
  page_id to;                //!< of the low tier
  std::uint16_t from_token;  //!< within the page
  std::uint16_t to_token;
  bool demotes;  //!< from the high tier; else from the low tier, code by code
};

namespace detail {

//! Score and position travel unchanged.
template <class From, class To>
struct token_labels {
  std::uint32_t word;

  __device__ token_labels(page_pool_ref const& pool, token_move const& move, int lane) noexcept
    : word{0}
  {
    constexpr page_geometry g = From::geometry;
    if (lane < 2) {
      word = load_at<std::uint32_t>(
        pool.page(move.from), lane == 0 ? g.score(move.from_token) : g.position(move.from_token));
    }
  }
  __device__ void store(page_pool_ref const& pool, token_move const& move, int lane) const noexcept
  {
    constexpr page_geometry g = To::geometry;
    if (lane < 2) {
      store_at(pool.page(move.to), lane == 0 ? g.score(move.to_token) : g.position(move.to_token),
               word);
    }
  }
};

//! One side decoded to f32 and encoded anew.
template <class From, class To>
[[nodiscard]] __device__ typename To::codes requantise(typename From::codes const& codes,
                                                       float clip, int lane) noexcept
{
  return encode<To::bits, To::spec.groups>(decode(codes, lane), clip, lane,
                                           decode_is_regular(codes));
}

//! A token on its way from the high to the low tier, as host::demote_token: decoded and encoded again in
//! the conditioned domain. Read first and written later, so that a warp may read other ones meanwhile.
//! For any two formats.
template <class Layouts>
class split_demotion {
  using key_from   = token_key<typename Layouts::high>;
  using key_to     = token_key<typename Layouts::low>;
  using value_from = token_value<typename Layouts::high>;
  using value_to   = token_value<typename Layouts::low>;

 public:
  //! @threads one warp
  __device__ split_demotion(page_pool_ref const& pool, token_move const& move, int lane) noexcept
    : key_{key_from::load_token(pool.page(move.from), move.from_token, lane)},
      value_{value_from::load_token(pool.page(move.from), move.from_token, lane)},
      others_{key_to::neighbours_of(pool.page(move.to), move.to_token, lane)},
      labels_{pool, move, lane}
  {}
  //! @param low  format of the low tier, for its clips
  //! @threads one warp
  __device__ void store(page_pool_ref const& pool, token_move const& move, format_spec const& low,
                        int lane) const noexcept
  {
    key_to::store_token(pool.page(move.to), move.to_token,
                        requantise<key_from, key_to>(key_, low.key.clip, lane), others_, lane);
    value_to::store_token(pool.page(move.to), move.to_token,
                          requantise<value_from, value_to>(value_, low.value.clip, lane), {}, lane);
    labels_.store(pool, move, lane);
  }

 private:
  typename key_from::codes key_;
  typename value_from::codes value_;
  typename key_to::token_neighbours others_;
  token_labels<typename Layouts::high, typename Layouts::low> labels_;
};

//! The same where a warp can hold key and value together.
template <class Layouts>
class joint_demotion {
  using from       = joint_high_token<typename Layouts::high>;
  using to         = joint_low_token<typename Layouts::low>;
  using from_place = typename from::place;
  using to_place   = typename to::place;

 public:
  __device__ joint_demotion(page_pool_ref const& pool, token_move const& move, int lane) noexcept
    : codes_{from::load(pool.page(move.from), from_place::of(move.from_token, lane), lane)},
      others_{to::others(pool.page(move.to), to_place::of(move.to_token, lane), lane)},
      label_{load_at<std::uint32_t>(pool.page(move.from), from_place::label(move.from_token, lane))}
  {}
  __device__ void store(page_pool_ref const& pool, token_move const& move, format_spec const& low,
                        int lane) const noexcept
  {
    std::uint32_t bytes[2];
    from::take(codes_, from_place::of(move.from_token, lane), lane, bytes);
    std::uint32_t const raw = __shfl_sync(whole_warp, label_, lane & joint_lane::owners);
    affine const stored{static_cast<f16_bits>(raw & 0xFFFFu), static_cast<f16_bits>(raw >> 16)};
    float const scale = to_f32(stored.scale);
    float const zero  = to_f32(stored.zero);
    // Decoding keeps the order, so that the extremes are those of the codes.
    std::uint32_t extremes = least_and_inverted_greatest(bytes);
#pragma unroll
    for (int other = 1; other < joint_lane::owners; other *= 2) {
      extremes = __vminu2(extremes, __shfl_xor_sync(whole_warp, extremes, other));
    }
    float const min = affine_value(extremes & 0xFFFFu, scale, zero);
    float const max = affine_value(~extremes >> 16, scale, zero);
    float x[joint_lane::elements];
#pragma unroll
    for (int e = 0; e < joint_lane::elements; ++e) {
      // 2^23 + code, as bits: cheaper than a conversion.
      std::uint32_t const shifted = __byte_perm(bytes[e / 4], 0x4B00'0000u, 0x7440u + e % 4);
      x[e] = fma_rn(scale, sub_rn(__uint_as_float(shifted), 8388608.0f), zero);
    }
    float const clip = joint_lane::has_value(lane) ? low.value.clip : low.key.clip;
    joint_codes const now =
      encode_joint<to_place::key_bits, to_place::value_bits>(x, min, max, clip, lane);
    to_place const at = to_place::of(move.to_token, lane);
    to::store(pool.page(move.to), at, now, others_, lane);
    if (to_place::stores_label(lane)) {
      store_at(pool.page(move.to), to_place::label(move.to_token, lane),
               lane % 2 == 0 ? to_word(now.group) : label_);
    }
  }

 private:
  //! Of eight bytes, as 16-bit numbers: the least, and above it the greatest with its bits inverted.
  [[nodiscard]] static __device__ std::uint32_t least_and_inverted_greatest(
    std::uint32_t const (&bytes)[2]) noexcept
  {
    std::uint32_t const a     = bytes[0] & 0x00FF'00FFu;
    std::uint32_t const b     = bytes[0] >> 8 & 0x00FF'00FFu;
    std::uint32_t const c     = bytes[1] & 0x00FF'00FFu;
    std::uint32_t const d     = bytes[1] >> 8 & 0x00FF'00FFu;
    std::uint32_t const least = __vminu2(__vminu2(a, b), __vminu2(c, d));
    std::uint32_t const most  = ~__vmaxu2(__vmaxu2(a, b), __vmaxu2(c, d));
    return __vminu2(__byte_perm(least, most, 0x5410), __byte_perm(least, most, 0x7632));
  }

  uint4 codes_;
  uint2 others_;
  std::uint32_t label_;
};

template <class Layouts>
inline constexpr bool demotes_jointly_v =
  is_joint<typename Layouts::high>(8, 4) && is_joint<typename Layouts::low>(4, 2);

}  // namespace detail

template <class Layouts>
using demotion =
  std::conditional_t<detail::demotes_jointly_v<Layouts>, detail::joint_demotion<Layouts>,
                     detail::split_demotion<Layouts>>;

//! As host::copy_token, within the low tier.
//! @threads one warp
template <class Layouts>
__device__ void copy_token(page_pool_ref const& pool, token_move const& move, int lane) noexcept
{
  using key         = token_key<typename Layouts::low>;
  using value       = token_value<typename Layouts::low>;
  auto const k      = key::load_token(pool.page(move.from), move.from_token, lane);
  auto const v      = value::load_token(pool.page(move.from), move.from_token, lane);
  auto const others = key::neighbours_of(pool.page(move.to), move.to_token, lane);
  detail::token_labels<typename Layouts::low, typename Layouts::low> const labels{pool, move, lane};
  key::store_token(pool.page(move.to), move.to_token, k, others, lane);
  value::store_token(pool.page(move.to), move.to_token, v, {}, lane);
  labels.store(pool, move, lane);
}

}  // namespace diffkv
