// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How far numbers are apart, so that a failed check prints it: `CHECK(difference(a, b) <= 1e-5)`.
#include <cmath>
#include <limits>
#include <vector>

namespace diffkv::test {

//! |a - b|; 0 for equal infinities, infinite where NaN meets anything.
[[nodiscard]] inline double difference(double a, double b) noexcept
{
  if (a == b) { return 0.0; }
  double const d = std::fabs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

//! The largest one, element by element; infinite if the sizes differ.
template <class A, class B>
[[nodiscard]] double difference(std::vector<A> const& a, std::vector<B> const& b) noexcept
{
  if (a.size() != b.size()) { return std::numeric_limits<double>::infinity(); }
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double const d = difference(static_cast<double>(a[i]), static_cast<double>(b[i]));
    largest        = d > largest ? d : largest;
  }
  return largest;
}

}  // namespace diffkv::test
