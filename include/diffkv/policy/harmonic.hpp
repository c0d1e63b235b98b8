// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The importance a token would have if every later query spread its attention evenly.
//! Read before this: policy/artifact.hpp.  Read next: policy/device_harmonic.hpp.
#include <diffkv/core/memory.hpp>  // buffer

#include <cstdint>

namespace diffkv {

//! h[n] = 1 + 1/2 + ... + 1/n in f64; one table serves host and device, so both see the same bits.
struct harmonic_ref {
  double const* sums      = nullptr;  //!< [max_tokens + 1], sums[0] = 0
  std::int32_t max_tokens = 0;

  //! u(i, N) = (1/(i+1) + ... + 1/N) / (N - i), and u(N, N) = 1/N.  @pre 1 <= i <= N <= max_tokens
  [[nodiscard]] DIFFKV_HOST_DEVICE float even_importance(std::int32_t number,
                                                         std::int32_t num_tokens) const noexcept
  {
    if (number >= num_tokens) { return static_cast<float>(1.0 / num_tokens); }
    return static_cast<float>((sums[num_tokens] - sums[number]) / (num_tokens - number));
  }
};

//! Owns the table in host memory.
//! @cost max_tokens + 1 doubles, once per cache
class harmonic_table {
 public:
  explicit harmonic_table(std::int32_t max_tokens)
    : sums_(static_cast<std::size_t>(max_tokens < 0 ? 0 : max_tokens) + 1)
  {
    for (std::size_t n = 1; n < sums_.size(); ++n) {
      sums_[n] = sums_[n - 1] + 1.0 / static_cast<double>(n);
    }
  }
  [[nodiscard]] harmonic_ref ref() const noexcept
  {
    return {sums_.data(), static_cast<std::int32_t>(sums_.size()) - 1};
  }

 private:
  buffer<double> sums_;
};

}  // namespace diffkv
