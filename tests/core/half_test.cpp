// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "reference/f16_table.hpp"
#include "support/catch.hpp"

#include <diffkv/core/half.hpp>

#include <cmath>
#include <cstring>
#include <random>

namespace {

std::uint32_t bits_of(float x)
{
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float from_bits(std::uint32_t bits)
{
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

std::uint16_t f16_of(float x) { return static_cast<std::uint16_t>(diffkv::to_f16(x)); }

}  // namespace

TEST_CASE("half: every f16 is the number of its definition", "[core]")
{
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x1'0000; ++bits) {
    auto const f16        = static_cast<std::uint16_t>(bits);
    float const value     = diffkv::to_f32(diffkv::f16_bits{f16});
    double const expected = diffkv::test::f16_value(f16);
    bool const same       = std::isnan(expected)
                              ? std::isnan(value)
                              : value == expected && std::signbit(value) == std::signbit(expected);
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: to_f16 rounds to the nearest f16, ties to even, at every boundary", "[core]")
{
  int wrong = 0;
  for (std::uint16_t bits = 0; bits + 1 < 0x7C00; ++bits) {
    double const here        = diffkv::test::f16_value(bits);
    double const above       = diffkv::test::f16_value(static_cast<std::uint16_t>(bits + 1));
    auto const middle        = static_cast<float>((here + above) / 2);  // exact: 12 bits
    auto const next          = static_cast<std::uint16_t>(bits + 1);
    std::uint16_t const even = bits % 2 == 0 ? bits : next;
    wrong += f16_of(middle) == even ? 0 : 1;
    wrong += f16_of(std::nextafter(middle, 0.0f)) == bits ? 0 : 1;
    wrong += f16_of(std::nextafter(middle, 1e9f)) == next ? 0 : 1;
    wrong += f16_of(static_cast<float>(here)) == bits ? 0 : 1;
    wrong += f16_of(-middle) == (even == 0 ? 0 : even + 0x8000) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: the table of the tests and to_f16 agree on random numbers", "[core]")
{
  std::mt19937 random{11};
  int wrong = 0;
  for (int i = 0; i < 200'000; ++i) {
    float const x = from_bits(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) <= 65504.0f)) { continue; }
    wrong += f16_of(x) == diffkv::test::f16_nearest(x) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: minus zero is stored as plus zero, also where a number rounds to it", "[core]")
{
  CHECK(f16_of(-0.0f) == 0);
  CHECK(f16_of(-std::ldexp(1.0f, -26)) == 0);
  CHECK(f16_of(-std::ldexp(1.0f, -25)) == 0);  // a tie, to even
  CHECK(f16_of(-std::ldexp(1.5f, -25)) == 0x8001);
  CHECK(f16_of(-from_bits(1)) == 0);
}

TEST_CASE("half: numbers beyond the f16 range become infinite, NaN stays NaN", "[core]")
{
  CHECK(f16_of(65504.0f) == 0x7BFF);
  CHECK(f16_of(65519.0f) == 0x7BFF);
  CHECK(f16_of(65520.0f) == 0x7C00);
  CHECK(f16_of(-65520.0f) == 0xFC00);
  CHECK(f16_of(HUGE_VALF) == 0x7C00);
  CHECK(std::isnan(diffkv::to_f32(diffkv::to_f16(NAN))));
  CHECK(std::isnan(diffkv::to_f32(diffkv::f16_nan)));
}

TEST_CASE("half: f16, bf16 and f32 elements read the same number", "[core]")
{
  for (int i = -256; i <= 256; ++i) {
    CAPTURE(i);
    auto const x = static_cast<float>(i) * 0.25f;  // 8 bits and a sign fit bf16
    __half half;
    __nv_bfloat16 bfloat;
    float plain = 0.0f;
    diffkv::from_f32(x, half);
    diffkv::from_f32(x, bfloat);
    diffkv::from_f32(x, plain);
    CHECK(diffkv::to_f32(half) == x);
    CHECK(diffkv::to_f32(bfloat) == x);
    CHECK(diffkv::to_f32(plain) == x);
  }
  STATIC_REQUIRE(diffkv::is_element_v<__half>);
  STATIC_REQUIRE(!diffkv::is_element_v<double>);
}

TEST_CASE("half: bf16 rounds to nearest, ties to even", "[core]")
{
  std::mt19937 random{12};
  int wrong = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::uint32_t const bits = static_cast<std::uint32_t>(random());
    float const x            = from_bits(i % 2 == 0 ? bits : (bits & 0xFFFF'0000u) | 0x8000u);
    if (!std::isfinite(x)) { continue; }
    __nv_bfloat16 bfloat;
    diffkv::from_f32(x, bfloat);
    std::uint32_t const low = bits_of(x) & 0xFFFFu;
    std::uint32_t expected  = bits_of(x) >> 16;
    expected += low > 0x8000u || (low == 0x8000u && expected % 2 == 1) ? 1u : 0u;
    wrong += bits_of(diffkv::to_f32(bfloat)) == expected << 16 ? 0 : 1;
  }
  CHECK(wrong == 0);
}
