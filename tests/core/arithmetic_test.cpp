// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/detail/arithmetic.hpp>

#include <cmath>
#include <random>

namespace detail = diffkv::detail;

TEST_CASE("arithmetic: round_half_even rounds to nearest, ties to even", "[core]")
{
  int wrong = 0;
  for (int i = -1024; i <= 1024; ++i) {
    auto const whole = static_cast<float>(i);
    auto const even  = static_cast<float>(i % 2 == 0 ? i : i + 1);
    wrong += detail::round_half_even(whole) == whole ? 0 : 1;
    wrong += detail::round_half_even(whole + 0.5f) == even ? 0 : 1;
    wrong += detail::round_half_even(std::nextafter(whole + 0.5f, -9e9f)) == whole ? 0 : 1;
    wrong += detail::round_half_even(std::nextafter(whole + 0.5f, 9e9f)) == whole + 1 ? 0 : 1;
  }
  std::mt19937 random{21};
  std::uniform_real_distribution<float> number{-4e6f, 4e6f};
  for (int i = 0; i < 10'000; ++i) {
    float const x = number(random);
    wrong += detail::round_half_even(x) == std::nearbyint(x) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("arithmetic: one operation is one rounding, as f64 rounded once", "[core]")
{
  std::mt19937 random{22};
  std::uniform_real_distribution<float> number{-4.0f, 4.0f};
  int wrong = 0;
  for (int i = 0; i < 50'000; ++i) {
    float const a = number(random), b = number(random), c = number(random);
    auto const x = static_cast<double>(a), y = static_cast<double>(b);
    wrong += detail::add_rn(a, b) == static_cast<float>(x + y) ? 0 : 1;
    wrong += detail::sub_rn(a, b) == static_cast<float>(x - y) ? 0 : 1;
    wrong += detail::mul_rn(a, b) == static_cast<float>(x * y) ? 0 : 1;
    wrong += detail::div_rn(a, b) == static_cast<float>(x / y) ? 0 : 1;
    // A product and a sum that are not fused, and the fused one.
    float const apart = detail::add_rn(detail::mul_rn(a, b), c);
    wrong +=
      apart == static_cast<float>(static_cast<double>(static_cast<float>(x * y)) + c) ? 0 : 1;
    wrong += detail::fma_rn(a, b, c) == std::fma(a, b, c) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("arithmetic: is_finite and is_nan look at the bits", "[core]")
{
  for (float const x : {0.0f, -0.0f, 1e-45f, -3.4e38f, 65504.0f}) {
    CHECK(detail::is_finite(x));
    CHECK_FALSE(detail::is_nan(x));
  }
  CHECK_FALSE(detail::is_finite(detail::infinity));
  CHECK_FALSE(detail::is_finite(-detail::infinity));
  CHECK_FALSE(detail::is_nan(-detail::infinity));
  CHECK_FALSE(detail::is_finite(NAN));
  CHECK(detail::is_nan(NAN));
  CHECK(detail::is_nan(-NAN));
}

TEST_CASE("arithmetic: ceil_div and round_up cover the edges", "[core]")
{
  for (int b = 1; b <= 17; ++b) {
    for (int a = 0; a <= 70; ++a) {
      int const quotient = detail::ceil_div(a, b);
      CAPTURE(a, b, quotient);
      CHECK(quotient * b >= a);
      CHECK((quotient - 1) * b < a);
      CHECK(detail::round_up(a, b) == quotient * b);
    }
  }
  CHECK(detail::min_of(2, 3) == 2);
  CHECK(detail::max_of(2, 3) == 3);
}
