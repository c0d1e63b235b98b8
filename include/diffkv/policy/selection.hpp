// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The k-th largest of a list by bisection on the bits: no sort, no memory, the same on any number of
//! threads.
//! Read before this: policy/relative.hpp.  Read next: policy/static_budget.hpp.
#include <diffkv/detail/arithmetic.hpp>  // float_bits

#include <cstdint>

namespace diffkv {

//! Unsigned keys that order as the floats do; NaN above everything, so that it is kept.
[[nodiscard]] DIFFKV_HOST_DEVICE inline std::uint32_t ordered_key(float x) noexcept
{
  if (detail::is_nan(x)) { return 0xFFFF'FFFFu; }
  std::uint32_t const bits = detail::float_bits(x == 0.0f ? 0.0f : x);
  return (bits & 0x8000'0000u) != 0 ? ~bits : bits | 0x8000'0000u;
}

//! Key of the k-th largest of `values[0 .. count)`.  @pre 1 <= k <= count
//! @cost 32 passes over the values
[[nodiscard]] DIFFKV_HOST_DEVICE inline std::uint32_t kth_largest_key(float const* values,
                                                                      std::int32_t count,
                                                                      std::int32_t k) noexcept
{
  std::uint32_t key = 0;
  for (int bit = 31; bit >= 0; --bit) {
    std::uint32_t const trial = key | (1u << bit);
    std::int32_t at_least     = 0;
    for (std::int32_t i = 0; i < count; ++i) {
      at_least += ordered_key(values[i]) >= trial ? 1 : 0;
    }
    if (at_least >= k) { key = trial; }
  }
  return key;
}

}  // namespace diffkv
