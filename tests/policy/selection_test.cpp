// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/policy/selection.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace {

// The k-th largest by the standard library, NaN above everything, -0 equal to +0.
bool above(float a, float b)
{
  if (std::isnan(a) || std::isnan(b)) { return std::isnan(a) && !std::isnan(b); }
  return a > b;
}

}  // namespace

TEST_CASE("selection: keys order as the floats do", "[policy]")
{
  float const rising[] = {-HUGE_VALF, -3.4e38f, -1.0f, -0.5f,    -1e-38f, -1e-45f,   0.0f, 1e-45f,
                          1e-38f,     0.5f,     1.0f,  65504.0f, 3.4e38f, HUGE_VALF, NAN};
  for (std::size_t i = 1; i < std::size(rising); ++i) {
    CAPTURE(rising[i - 1], rising[i]);
    CHECK(diffkv::ordered_key(rising[i - 1]) < diffkv::ordered_key(rising[i]));
  }
  CHECK(diffkv::ordered_key(-0.0f) == diffkv::ordered_key(0.0f));
  CHECK(diffkv::ordered_key(NAN) == diffkv::ordered_key(-NAN));
}

TEST_CASE("selection: the k-th largest is that of std::nth_element, with ties and NaN", "[policy]")
{
  std::mt19937 random{71};
  for (int n = 0; n < 300; ++n) {
    auto const count = static_cast<std::int32_t>(1 + random() % 200);
    std::vector<float> values;
    for (std::int32_t i = 0; i < count; ++i) {
      switch (random() % 10) {
        case 0:
          values.push_back(n % 2 == 0 ? NAN : 0.0f);
          break;
        case 1:
        case 2:
        case 3:
          values.push_back(static_cast<float>(random() % 3) * 0.25f);
          break;
        case 4:
          values.push_back(-std::ldexp(static_cast<float>(random() % 1000), -20));
          break;
        default:
          values.push_back(std::ldexp(static_cast<float>(random() % 100000), -24));
      }
    }
    auto const any       = 1 + static_cast<std::int32_t>(random() % unsigned(count));
    std::int32_t const k = n % 5 == 0 ? 1 : n % 5 == 1 ? count : any;
    auto sorted          = values;
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), above);
    CAPTURE(n, count, k);
    CHECK(diffkv::kth_largest_key(values.data(), count, k) ==
          diffkv::ordered_key(sorted[static_cast<std::size_t>(k - 1)]));
  }
}
