// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The mean of keys in one order of summation, so that host and device find the same offsets.
//! Read before this: compaction/step_plan.hpp.  Read next: attention/softmax_state.hpp.
#include <diffkv/detail/arithmetic.hpp>  // is_finite

#include <cstdint>

namespace diffkv {

//! Tokens are summed one after the other in chunks of so many, then the chunks in their order, all in
//! f64; the mean is rounded to f32 once.
inline constexpr std::int32_t calibration_chunk = 256;

//! Sum of one element of some keys. Elements that are no number do not count.
struct key_sum {
  double sum         = 0.0;
  std::int64_t count = 0;

  DIFFKV_HOST_DEVICE void add(float x) noexcept
  {
    if (!detail::is_finite(x)) { return; }
    sum += static_cast<double>(x);
    ++count;
  }
  DIFFKV_HOST_DEVICE void add(key_sum const& chunk) noexcept
  {
    sum += chunk.sum;
    count += chunk.count;
  }
  //! 0 where nothing was summed.
  [[nodiscard]] DIFFKV_HOST_DEVICE float mean() const noexcept
  {
    return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
  }
};

}  // namespace diffkv
