// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A checked ring's record of who is held, on the device. Bits of a word belong to different pages, so
//! they are set and cleared atomically.
//! Read before this: pool/free_ring.hpp.  Read next: pool/claim.cuh.
#include <diffkv/pool/free_ring.hpp>

#include <cstdint>

namespace diffkv {

//! A page of the pool leaves the ring.  @pre ring.is_checked()
__device__ inline void mark_held(free_ring_ref const& ring, page_id id) noexcept
{
  auto const p = static_cast<std::uint32_t>(id);
  atomicOr(ring.held + p / 32, 1u << (p % 32));
}

//! What becomes of a page that is given back.
enum class release_outcome : std::uint8_t { released, foreign, repeated };

//! Strikes a page off the record. Where several threads give back one page, one of them releases it.
//! In an unchecked ring everything is released.
[[nodiscard]] __device__ inline release_outcome strike_off(free_ring_ref const& ring,
                                                           page_id id) noexcept
{
  if (!ring.is_checked()) { return release_outcome::released; }
  auto const p = static_cast<std::uint32_t>(id);
  if (p >= ring.capacity) { return release_outcome::foreign; }
  std::uint32_t const bit = 1u << (p % 32);
  bool const was_held     = (atomicAnd(ring.held + p / 32, ~bit) & bit) != 0;
  return was_held ? release_outcome::released : release_outcome::repeated;
}

}  // namespace diffkv
