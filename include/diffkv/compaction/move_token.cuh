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
struct token_move {
  std::byte const* from    = nullptr;  //!< page
  std::byte* to            = nullptr;  //!< page of the low tier
  std::uint16_t from_token = 0;        //!< within the page
  std::uint16_t to_token   = 0;
  bool demotes             = false;  //!< from the high tier; else from the low tier, code by code
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
  return encode<To::bits, To::spec.groups>(decode(codes, lane), clip, lane);
}

}  // namespace detail

//! As host::demote_token: decoded and encoded again in the conditioned domain.
//! @param low  format of the low tier, for its clips
//! @threads one warp
template <class Layouts>
__device__ void demote_token(token_move const& move, format_spec const& low, int lane) noexcept
{
  using key_from   = token_key<typename Layouts::high>;
  using key_to     = token_key<typename Layouts::low>;
  using value_from = token_value<typename Layouts::high>;
  using value_to   = token_value<typename Layouts::low>;
  // All loads before the first use.
  auto const key    = key_from::load_token(move.from, move.from_token, lane);
  auto const value  = value_from::load_token(move.from, move.from_token, lane);
  auto const others = key_to::neighbours_of(move.to, move.to_token, lane);
  detail::token_labels<typename Layouts::high, typename Layouts::low> const labels{move, lane};
  key_to::store_token(move.to, move.to_token,
                      detail::requantise<key_from, key_to>(key, low.key.clip, lane), others, lane);
  value_to::store_token(move.to, move.to_token,
                        detail::requantise<value_from, value_to>(value, low.value.clip, lane), {},
                        lane);
  labels.store(move, lane);
}

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
