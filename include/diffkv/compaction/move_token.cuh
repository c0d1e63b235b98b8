// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A token moves to another slot, by a warp: requantised into the low tier, or copied within it.
//! Read before this: page/token_quads.cuh, compaction/step_record.hpp.
//! Read next: compaction/step.cuh.
#include <diffkv/page/tier_layouts.hpp>
#include <diffkv/page/token_quads.cuh>

namespace diffkv {

//! One token on its way. Both pages belong to one row, and no other token enters `to` meanwhile.
struct token_move {          // no initialisers: it lies in shared memory
  std::byte const* from;     //!< page
  std::byte* to;             //!< page of the low tier
  std::uint16_t from_token;  //!< within the page
  std::uint16_t to_token;
  bool demotes;  //!< from the high tier; else from the low tier, code by code
};

namespace detail {

//! Score and position travel unchanged.
template <class From, class To>
struct token_labels {
  std::uint32_t word = 0;

  __device__ token_labels(token_move const& move, int lane) noexcept
  {
    constexpr page_geometry g = From::geometry;
    if (lane < 2) {
      word = load_at<std::uint32_t>(
        move.from, lane == 0 ? g.score(move.from_token) : g.position(move.from_token));
    }
  }
  __device__ void store(token_move const& move, int lane) const noexcept
  {
    constexpr page_geometry g = To::geometry;
    if (lane < 2) {
      store_at(move.to, lane == 0 ? g.score(move.to_token) : g.position(move.to_token), word);
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

}  // namespace detail

//! A token on its way from the high to the low tier, as host::demote_token: decoded and encoded again in
//! the conditioned domain. Read first and written later, so that a warp may read the next one meanwhile.
template <class Layouts>
class demotion {
  using key_from   = token_key<typename Layouts::high>;
  using key_to     = token_key<typename Layouts::low>;
  using value_from = token_value<typename Layouts::high>;
  using value_to   = token_value<typename Layouts::low>;

 public:
  //! @threads one warp
  __device__ demotion(token_move const& move, int lane) noexcept
    : move_{move},
      key_{key_from::load_token(move.from, move.from_token, lane)},
      value_{value_from::load_token(move.from, move.from_token, lane)},
      others_{key_to::neighbours_of(move.to, move.to_token, lane)},
      labels_{move, lane}
  {}
  //! @param low  format of the low tier, for its clips
  //! @threads one warp
  __device__ void store(format_spec const& low, int lane) const noexcept
  {
    key_to::store_token(move_.to, move_.to_token,
                        detail::requantise<key_from, key_to>(key_, low.key.clip, lane), others_,
                        lane);
    value_to::store_token(move_.to, move_.to_token,
                          detail::requantise<value_from, value_to>(value_, low.value.clip, lane),
                          {}, lane);
    labels_.store(move_, lane);
  }

 private:
  token_move move_;
  typename key_from::codes key_;
  typename value_from::codes value_;
  typename key_to::token_neighbours others_;
  detail::token_labels<typename Layouts::high, typename Layouts::low> labels_;
};

//! As host::copy_token, within the low tier.
//! @threads one warp
template <class Layouts>
__device__ void copy_token(token_move const& move, int lane) noexcept
{
  using key         = token_key<typename Layouts::low>;
  using value       = token_value<typename Layouts::low>;
  auto const k      = key::load_token(move.from, move.from_token, lane);
  auto const v      = value::load_token(move.from, move.from_token, lane);
  auto const others = key::neighbours_of(move.to, move.to_token, lane);
  detail::token_labels<typename Layouts::low, typename Layouts::low> const labels{move, lane};
  key::store_token(move.to, move.to_token, k, others, lane);
  value::store_token(move.to, move.to_token, v, {}, lane);
  labels.store(move, lane);
}

}  // namespace diffkv
