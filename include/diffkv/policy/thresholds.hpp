// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The two numbers of a policy, and where each row finds its own.
//! Read before this: core/memory.hpp.  Read next: policy/importance.hpp.
#include <diffkv/core/error.hpp>  // DIFFKV_EXPECTS
#include <diffkv/core/types.hpp>

#include <cstddef>  // ptrdiff_t

namespace diffkv {

//! High above `high` times the reference, pruned below `low` times it, low tier between.
struct thresholds {
  float high = 2.0f;  //!< a_h
  float low  = 0.0f;  //!< a_l, at most a_h
};

//! @throws invalid_argument unless high >= low >= 0 (NaN is refused too)
inline void validate(thresholds t)
{
  DIFFKV_EXPECTS(t.low >= 0.0f && t.high >= t.low,
                 "thresholds: need threshold_high >= threshold_low >= 0, got " +
                   std::to_string(t.high) + " and " + std::to_string(t.low));
}

//! Thresholds per sequence slot, layer and head; a stride of 0 shares them along that dimension.
struct thresholds_ref {
  thresholds const* data      = nullptr;
  std::ptrdiff_t slot_stride  = 0;
  std::ptrdiff_t layer_stride = 0;
  std::ptrdiff_t head_stride  = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE thresholds of(std::uint32_t slot, std::uint32_t layer,
                                                 std::uint32_t head) const noexcept
  {
    return data[slot * slot_stride + layer * layer_stride + head * head_stride];
  }
};

}  // namespace diffkv
