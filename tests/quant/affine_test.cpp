// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "reference/plain_codec.hpp"
#include "support/catch.hpp"

#include <diffkv/quant/affine.hpp>

#include <cmath>
#include <random>

namespace {

double stored(diffkv::f16_bits x) { return diffkv::test::f16_value(static_cast<std::uint16_t>(x)); }

}  // namespace

TEST_CASE("affine: a scale is never negative, whatever the range", "[quant]")
{
  std::mt19937 random{41};
  std::uniform_real_distribution<float> number{-65504.0f, 65504.0f};
  std::uniform_int_distribution<int> steps{0, 9};
  int below_zero_point = 0;
  for (int i = 0; i < 200'000; ++i) {
    float const min = number(random) * std::ldexp(1.0f, -(i % 40));
    float max       = min;
    for (int n = steps(random); n > 0; --n) { max = std::nextafter(max, 1e9f); }
    if (max > 65504.0f) { continue; }
    for (int const bits : {1, 2, 4, 8}) {
      for (float const clip : {1.0f, 0.8f}) {
        auto const a      = diffkv::fit_affine(min, max, {bits, 1, clip});
        double const zero = stored(a.zero);
        if (!(stored(a.scale) >= 0.0)) { FAIL(min << " .. " << max << ": " << stored(a.scale)); }
        if (zero > max) {
          ++below_zero_point;
          // docs/decisions/0001: all of the range decodes to the zero, half an f16 step away at
          // most.
          if (stored(a.scale) != 0.0) { FAIL(min << " .. " << max); }
          // A clipped range begins later than min, by less than its length.
          double const later = clip < 1.0f ? double{max} - double{min} : 0.0;
          if (!(zero - min <= diffkv::test::f16_half_step(min) * (1 + 1e-6) + later)) {
            FAIL(min << " .. " << max << " has zero " << zero);
          }
        }
      }
    }
  }
  CHECK(below_zero_point > 10'000);  // the case does happen here
}

TEST_CASE("affine: the range below f16(min) decodes to f16(min)", "[quant]")
{
  // f16 numbers near 2049.5 are 2048, 2050, 2052: the whole range lies below the zero.
  auto const a = diffkv::fit_affine(2049.25f, 2049.75f, {8, 1, 1.0f});
  CHECK(stored(a.zero) == 2050.0);
  CHECK(stored(a.scale) == 0.0);
  CHECK(diffkv::affine_code(2049.75f, 0.0f, 2050.0f, 255) == 0);
  // One f16 above the zero the scale is positive again.
  CHECK(stored(diffkv::fit_affine(2049.25f, 2050.25f, {8, 1, 1.0f}).scale) > 0.0);
}

// One f32 step at an end of the range shows in an f16 once in some thousand ranges: so there are
// many.
TEST_CASE("affine: scale and zero are those of the written definition, over many ranges", "[quant]")
{
  std::mt19937 random{42};
  std::normal_distribution<float> bell{};
  int wrong = 0;
  for (int i = 0; i < 200'000; ++i) {
    float const a = bell(random), b = bell(random) * 3.0f;
    float const min = a < b ? a : b, max = a < b ? b : a;
    float const clip = i % 8 < 4 ? 0.8f : i % 8 < 6 ? 0.7f : 1.0f;
    int const bits   = 1 << (i % 4);
    auto const want  = diffkv::test::plain_fit(min, max, bits, clip);
    auto const got   = diffkv::fit_affine(min, max, {bits, 1, clip});
    wrong += static_cast<std::uint16_t>(got.scale) == want.scale ? 0 : 1;
    wrong += static_cast<std::uint16_t>(got.zero) == want.zero ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("affine: clipping replaces the range around its middle", "[quant]")
{
  auto const a = diffkv::fit_affine(-1.0f, 3.0f, {2, 1, 0.5f});  // middle 1, half 1: 0 .. 2
  CHECK(stored(a.zero) == 0.0);
  CHECK(stored(a.scale) == stored(diffkv::to_f16(2.0f / 3.0f)));
  auto const whole = diffkv::fit_affine(-1.0f, 2.0f, {2, 1, 1.0f});
  CHECK(stored(whole.zero) == -1.0);
  CHECK(stored(whole.scale) == 1.0);
}

TEST_CASE("affine: codes saturate at both ends and never reach beyond max_code", "[quant]")
{
  for (std::uint32_t const top : {1u, 3u, 15u, 255u}) {
    CHECK(diffkv::affine_code(-5.0f, 1.0f, 0.0f, top) == 0);
    CHECK(diffkv::affine_code(-65504.0f, 5.9604645e-08f, 65504.0f, top) == 0);
    CHECK(diffkv::affine_code(65504.0f, 5.9604645e-08f, -65504.0f, top) == top);
    CHECK(diffkv::affine_code(static_cast<float>(top) + 0.5f, 1.0f, 0.0f, top) == top);
    CHECK(diffkv::affine_code(static_cast<float>(top) - 0.4f, 1.0f, 0.0f, top) == top);
    CHECK(diffkv::affine_code(1.0f, 0.0f, 0.0f, top) == 0);  // scale 0
    CHECK(diffkv::affine_code(1.0f, NAN, NAN, top) == 0);    // a marked vector
  }
}

TEST_CASE("affine: the scale of the widest range is limited to what f16 holds", "[quant]")
{
  auto const one_bit = diffkv::fit_affine(-65504.0f, 65504.0f, {1, 1, 1.0f});
  CHECK(stored(one_bit.scale) == 65504.0);
  CHECK(stored(one_bit.zero) == -65504.0);
  CHECK(std::isfinite(stored(diffkv::fit_affine(-65504.0f, 65504.0f, {2, 1, 1.0f}).scale)));
}

TEST_CASE("affine: codec_input clamps numbers, drops the sign of zero, keeps NaN and Inf",
          "[quant]")
{
  CHECK(diffkv::codec_input(65505.0f) == 65504.0f);
  CHECK(diffkv::codec_input(-3.4e38f) == -65504.0f);
  CHECK(diffkv::codec_input(1.5f) == 1.5f);
  CHECK_FALSE(std::signbit(diffkv::codec_input(-0.0f)));
  CHECK(std::isnan(diffkv::codec_input(NAN)));
  CHECK(diffkv::codec_input(HUGE_VALF) == HUGE_VALF);
  CHECK(diffkv::codec_input(-HUGE_VALF) == -HUGE_VALF);
}
