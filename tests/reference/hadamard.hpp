// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The rotation R as a plain f64 matrix: block-diagonal, each block a Hadamard matrix in Sylvester
//! order over the square root of its size.
#include <cmath>
#include <vector>

namespace diffkv::test {

//! Entry (row, column) of the unscaled Sylvester matrix: -1 to the number of common bits.
[[nodiscard]] inline double sylvester(unsigned row, unsigned column)
{
  double sign = 1.0;
  for (unsigned common = row & column; common != 0; common &= common - 1) { sign = -sign; }
  return sign;
}

//! R x in f64, with blocks of `block` elements.
template <class T>
[[nodiscard]] std::vector<double> rotate_plain(std::vector<T> const& x, int block)
{
  std::vector<double> out(x.size());
  auto const size = static_cast<std::size_t>(block);
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::size_t const base = i / size * size;
    double sum             = 0.0;
    for (std::size_t j = 0; j < size; ++j) {
      sum += sylvester(static_cast<unsigned>(i - base), static_cast<unsigned>(j)) *
             static_cast<double>(x[base + j]);
    }
    out[i] = sum / std::sqrt(static_cast<double>(block));
  }
  return out;
}

}  // namespace diffkv::test
