// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How far logits are from others, and a token from the one that would be chosen.
#include "llama3/token_id.hpp"
#include "support/catch.hpp"

#include <algorithm>  // max_element
#include <cmath>      // abs
#include <vector>

namespace llama3::test {

[[nodiscard]] inline double largest_difference(std::vector<float> const& a,
                                               std::vector<float> const& b)
{
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double const d = std::abs(static_cast<double>(a[i]) - b[i]);
    largest        = d <= largest ? largest : d;  // a NaN stays
  }
  return largest;
}

//! By how much the logit of `id` is below the best one.
[[nodiscard]] inline double behind(std::vector<float> const& logits, token_id id)
{
  return static_cast<double>(*std::max_element(logits.begin(), logits.end())) -
         logits[static_cast<std::size_t>(id)];
}

}  // namespace llama3::test
