// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Numbers from many times.
//! Read next: llama3/throughput/step_times.hpp.
#include <algorithm>  // max, sort
#include <cmath>      // ceil
#include <cstddef>    // size_t
#include <stdexcept>  // invalid_argument
#include <utility>    // pair
#include <vector>

namespace llama3 {

//! @throws std::invalid_argument without values
[[nodiscard]] inline double median(std::vector<double> values)
{
  if (values.empty()) { throw std::invalid_argument("median: of nothing"); }
  std::sort(values.begin(), values.end());
  std::size_t const middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

//! The value that a share of all values is not above: nearest rank.
//! @throws std::invalid_argument without values
[[nodiscard]] inline double quantile(std::vector<double> values, double share)
{
  if (values.empty()) { throw std::invalid_argument("quantile: of nothing"); }
  std::sort(values.begin(), values.end());
  double const rank = std::ceil(share * static_cast<double>(values.size()));
  return values[std::max<std::size_t>(1, static_cast<std::size_t>(rank)) - 1];
}

//! @throws std::invalid_argument without values
[[nodiscard]] inline double mean(std::vector<double> const& values)
{
  if (values.empty()) { throw std::invalid_argument("mean: of nothing"); }
  double sum = 0.0;
  for (double const value : values) { sum += value; }
  return sum / static_cast<double>(values.size());
}

//! Sum of f(i) for i in first .. last - 1, where f is known at some places and straight between them and
//! beyond them.
//! @param known  (place, f), at two places or more, ascending
[[nodiscard]] inline double sum_between(std::vector<std::pair<double, double>> const& known,
                                        int first, int last)
{
  if (known.size() < 2) { throw std::invalid_argument("sum_between: needs two places"); }
  double sum       = 0.0;
  std::size_t next = 1;
  for (int i = first; i < last; ++i) {
    while (next + 1 < known.size() && known[next].first < i) { ++next; }
    auto const& [a, at_a] = known[next - 1];
    auto const& [b, at_b] = known[next];
    sum += at_a + (at_b - at_a) * (i - a) / (b - a);
  }
  return sum;
}

}  // namespace llama3
