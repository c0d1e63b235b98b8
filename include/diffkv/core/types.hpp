// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The words of the library as types: page ids, tiers, counts per tier.
//! Read before this: detail/config.hpp.  Read next: core/error.hpp.
#include <diffkv/detail/config.hpp>  // DIFFKV_HOST_DEVICE

#include <cstdint>  // uint32_t

namespace diffkv {

//! A page of the pool. An enum, so that it cannot pass for a token or a slot.
enum class page_id : std::uint32_t {};
inline constexpr page_id no_page{0xFFFF'FFFFu};

//! What a token deserves: many bits, few bits, or nothing.
enum class tier : std::uint8_t { high, low, pruned };
inline constexpr int num_stored_tiers = 2;

//! A place in one tier of one row: slots 0 .. count - 1 are in use, without holes; slot / tokens per
//! page is the ordinal of its page.
using slot_index                    = std::uint32_t;
inline constexpr slot_index no_slot = 0xFFFF'FFFFu;

//! One number per stored tier.
struct tier_counts {
  std::uint32_t high = 0;
  std::uint32_t low  = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t of(tier t) const noexcept
  {
    return t == tier::high ? high : low;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t sum() const noexcept
  {
    return high + low;
  }
  friend DIFFKV_HOST_DEVICE constexpr bool operator==(tier_counts a, tier_counts b) noexcept
  {
    return a.high == b.high && a.low == b.low;
  }
  friend DIFFKV_HOST_DEVICE constexpr bool operator!=(tier_counts a, tier_counts b) noexcept
  {
    return !(a == b);
  }
};

[[nodiscard]] constexpr char const* name(tier t) noexcept
{
  return t == tier::high ? "high" : t == tier::low ? "low" : "pruned";
}

}  // namespace diffkv
