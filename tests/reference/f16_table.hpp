// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! IEEE binary16 from its definition, by a table of all its numbers: slow, plain, and independent of
//! the CUDA headers that the library rounds with.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace diffkv::test {

//! The number that f16 bits stand for.
[[nodiscard]] inline double f16_value(std::uint16_t bits)
{
  int const exponent    = (bits >> 10) & 31;
  int const mantissa    = bits & 1023;
  double const positive = exponent == 31  ? (mantissa == 0 ? HUGE_VAL : NAN)
                          : exponent == 0 ? std::ldexp(mantissa, -24)
                                          : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -positive : positive;
}

//! Bits of the f16 nearest to `x`; of two equally near ones the even one. Zero is always +0.
//! @pre |x| <= 65504
[[nodiscard]] inline std::uint16_t f16_nearest(double x)
{
  static std::vector<double> const table = [] {
    std::vector<double> numbers;
    for (std::uint16_t bits = 0; bits < 0x7C00; ++bits) { numbers.push_back(f16_value(bits)); }
    return numbers;
  }();
  double const size = std::fabs(x);
  auto const above  = std::lower_bound(table.begin(), table.end(), size);
  auto bits         = static_cast<std::uint16_t>(above - table.begin());
  if (above == table.end()) { --bits; }
  if (bits > 0 && *above != size) {
    double const down = size - table[bits - 1u];
    double const up   = table[bits] - size;
    if (down < up || (down == up && bits % 2 == 1)) { --bits; }
  }
  if (bits == 0) { return 0; }
  return static_cast<std::uint16_t>(bits | (x < 0 ? 0x8000 : 0));
}

//! Half the distance between neighbouring f16 numbers around `x`: what rounding to f16 may err by.
[[nodiscard]] inline double f16_half_step(double x)
{
  double const size = std::fabs(x);
  if (size < std::ldexp(1.0, -14)) { return std::ldexp(1.0, -25); }
  return std::ldexp(1.0, std::ilogb(size) - 11);
}

}  // namespace diffkv::test
