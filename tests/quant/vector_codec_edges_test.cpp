// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/round_trip.hpp"
#include "reference/plain_codec.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>

namespace {

using diffkv::code_spec;
using diffkv::coded_vector;
using diffkv::test::all_specs;
using diffkv::test::all_vectors;
using diffkv::test::as_elements;
using diffkv::test::decode;
using diffkv::test::describe;
using diffkv::test::encode;
using diffkv::test::round_trip;

}  // namespace

TEST_CASE("vector_codec: a constant vector decodes to exactly its constant", "[quant]")
{
  for (int const bits : {1, 2, 4, 8, 16}) {
    for (float const clip : {1.0f, 0.8f, 0.1f}) {
      for (std::uint32_t f16 = 0; f16 < 0x1'0000; f16 += 37) {
        if ((f16 & 0x7C00) == 0x7C00) { continue; }
        auto const c = static_cast<float>(diffkv::test::f16_value(static_cast<std::uint16_t>(f16)));
        for (float const x : round_trip(std::vector<float>(64, c), {bits, 1, clip})) {
          if (x != c || (x == 0.0f && std::signbit(x))) { FAIL(c << " became " << x); }
        }
      }
    }
  }
  // Any other constant is within half an f16 step, and within the bound of the scale if that is
  // less.
  for (float const c : {0.1f, -0.1f, 2049.5f, -2049.5f, 1e-9f, 60001.0f}) {
    for (float const x : round_trip(std::vector<float>(64, c), {4})) {
      if (!(std::fabs(double{x} - c) <= diffkv::test::f16_half_step(c))) {
        FAIL(c << " became " << x);
      }
    }
  }
}

TEST_CASE("vector_codec: a vector of zeros has finite metadata and code 0", "[quant]")
{
  for (code_spec const spec : all_specs(128)) {
    auto const coded = encode(std::vector<float>(128, -0.0f), spec);
    for (int g = 0; g < spec.groups; ++g) {
      CHECK(static_cast<std::uint16_t>(coded.groups[g].scale) == 0);
      CHECK(static_cast<std::uint16_t>(coded.groups[g].zero) == 0);
    }
    for (int d = 0; d < 128; ++d) { CHECK(coded.codes[d] == 0); }
  }
}

TEST_CASE("vector_codec: one f16 step keeps its low end exactly and its high end within half",
          "[quant]")
{
  for (float const base : {1.0f, -1.0009765625f, 1024.0f, 0.25f}) {
    float const step = std::ldexp(1.0f, std::ilogb(base) - 10);
    std::vector<float> x(128, base);
    for (std::size_t d = 1; d < 128; d += 2) { x[d] = base + step; }
    for (int const bits : {8, 4, 2, 1}) {
      auto const back = round_trip(x, {bits});
      for (std::size_t d = 0; d < 128; ++d) {
        CAPTURE(base, bits, d);
        CHECK(std::fabs(back[d] - x[d]) <= step / 2);
        if (d % 2 == 0) { CHECK(back[d] == base); }
      }
    }
  }
}

TEST_CASE("vector_codec: an outlier beyond the f16 range spoils no other lane", "[quant]")
{
  for (std::size_t const at : {0u, 77u, 127u}) {
    for (float const sign : {1.0f, -1.0f}) {
      std::vector<float> x(128);
      for (std::size_t d = 0; d < 128; ++d) { x[d] = -1.0f + 5.0f * static_cast<float>(d) / 127; }
      x[at]           = sign * 125000.0f;
      x               = as_elements<__nv_bfloat16>(x);
      auto const back = round_trip(x, {4});
      for (std::size_t d = 0; d < 128; ++d) {
        CAPTURE(at, sign, d);
        CHECK(std::isfinite(back[d]));
        if (d != at) { CHECK(std::fabs(back[d] - x[d]) <= 4400.0f); }
      }
      CHECK(sign * back[at] >= 60000.0f);
    }
  }
}

TEST_CASE("vector_codec: a code above the top code saturates", "[quant]")
{
  float const tiny = std::ldexp(1.0f, -24);
  for (int const bits : {2, 4, 8}) {
    // The true scale k + 0.467 stores as k: raw codes above the top at every k below the top.
    auto const top = static_cast<float>((1 << bits) - 1);
    std::vector<float> x(128, 0.0f);
    auto const high = std::floor(1.467f * top) * tiny;
    for (std::size_t d = 1; d < 128; d += 2) { x[d] = high; }
    auto const coded = encode(x, {bits});
    auto const back  = decode(coded, 128, {bits});
    CAPTURE(bits);
    for (std::size_t d = 0; d < 128; ++d) {
      CHECK(coded.codes[d] == (d % 2 == 0 ? 0u : (1u << bits) - 1u));
      CHECK(back[d] == (d % 2 == 0 ? 0.0f : back[1]));
    }
    CHECK(std::fabs(back[1] - high) <= 0.5f * top * tiny);
  }
  auto const coded = encode(
    [&] {
      std::vector<float> x(128, 0.0f);
      for (std::size_t d = 1; d < 128; d += 2) { x[d] = 22.0f * tiny; }
      return x;
    }(),
    {4});
  CHECK(static_cast<std::uint16_t>(coded.groups[0].scale) == 1);  // 22/15 steps stored as 1
}

TEST_CASE("vector_codec: NaN or Inf in any lane marks its whole vector", "[quant]")
{
  int const head_dim = GENERATE(64, 96, 128);
  float const inf    = HUGE_VALF;
  for (code_spec const spec : all_specs(head_dim)) {
    for (int lane = 0; lane < head_dim; ++lane) {
      for (float const bad : {NAN, -NAN, inf, -inf}) {
        std::vector<float> x(static_cast<std::size_t>(head_dim), 1.0f);
        x[0]                              = 0.0f;
        x[static_cast<std::size_t>(lane)] = bad;
        if (lane % 3 == 0) { x[static_cast<std::size_t>((lane + 5) % head_dim)] = -bad; }
        auto const coded = encode(x, spec);
        bool marked      = true;
        for (int g = 0; g < spec.groups; ++g) {
          marked = marked && coded.groups[g].scale == diffkv::f16_nan;
          marked = marked && coded.groups[g].zero == diffkv::f16_nan;
        }
        for (float const value : decode(coded, x.size(), spec)) {
          marked = marked && std::isnan(value);
        }
        if (!marked) { FAIL("lane " << lane << " holds " << bad << ", " << describe(spec)); }
      }
    }
    auto const all_nan = round_trip(std::vector<float>(64, NAN), {spec.bits});
    CHECK(std::isnan(all_nan[0]));
  }
}

TEST_CASE("vector_codec: 16 bits are the f16 vector itself", "[quant]")
{
  for (auto const& v : all_vectors(64)) {
    auto const coded = encode(v.x, {16});
    for (std::size_t d = 0; d < v.x.size(); ++d) {
      double const clamped = std::clamp(double{v.x[d]}, -65504.0, 65504.0);
      if (coded.codes[d] != diffkv::test::f16_nearest(clamped)) { FAIL(v.name << ", lane " << d); }
    }
  }
  std::vector<float> x(64, 2.0f);
  x[3]            = NAN;
  x[4]            = HUGE_VALF;
  x[5]            = -HUGE_VALF;
  auto const back = round_trip(x, {16});
  CHECK(std::isnan(back[3]));
  CHECK(back[4] == HUGE_VALF);
  CHECK(back[5] == -HUGE_VALF);
  CHECK(back[6] == 2.0f);  // only the lane itself is lost
}

TEST_CASE("vector_codec: whole codes come back exactly in every input type", "[quant]")
{
  for (int const bits : {8, 4, 2, 1}) {
    for (int const head_dim : {64, 80, 96, 112, 128, 256}) {
      for (int const zero : {0, 3, 5, -7}) {
        int const codes = 1 << bits;
        std::vector<float> x;
        for (int d = 0; d < head_dim; ++d) {
          x.push_back(static_cast<float>(zero + 7 * d % codes));
        }
        x[0] = static_cast<float>(zero);
        x[1] = static_cast<float>(zero + codes - 1);
        CAPTURE(bits, head_dim, zero);
        CHECK(round_trip(as_elements<float>(x), {bits}) == x);
        CHECK(round_trip(as_elements<__half>(x), {bits}) == x);
        if (zero >= 0 && zero + codes <= 256) {
          CHECK(round_trip(as_elements<__nv_bfloat16>(x), {bits}) == x);
        }
      }
    }
  }
}

TEST_CASE("vector_codec: ties go to the even code, for every input type", "[quant]")
{
  // Scale exactly 0.5: codes d mod 16; then lanes at odd multiples of a quarter.
  std::vector<float> whole, ties;
  for (int d = 0; d < 64; ++d) {
    whole.push_back(-4.0f + 0.5f * static_cast<float>(d % 16));
    ties.push_back(d == 0 ? -4.0f : d == 1 ? 3.5f : -3.75f + 0.5f * static_cast<float>(d % 15));
  }
  for (int type = 0; type < 3; ++type) {
    auto const typed = [&](std::vector<float> const& x) {
      return type == 0   ? as_elements<float>(x)
             : type == 1 ? as_elements<__half>(x)
                         : as_elements<__nv_bfloat16>(x);
    };
    auto const a = encode(typed(whole), {4});
    auto const b = encode(typed(ties), {4});
    for (int d = 0; d < 64; ++d) {
      CAPTURE(type, d);
      CHECK(a.codes[d] == d % 16);
      int const below = d % 15;  // between this code and the next
      if (d >= 2) { CHECK(b.codes[d] == (below % 2 == 0 ? below : below + 1)); }
    }
  }
}

TEST_CASE("vector_codec: what lies behind head_dim does not enter the range", "[quant]")
{
  for (int const head_dim : {80, 96, 112}) {
    std::vector<float> x(256, -1000.0f);
    for (int d = 0; d < head_dim; ++d) {
      x[static_cast<std::size_t>(d)] = 10.0f + static_cast<float>(d) / static_cast<float>(head_dim);
    }
    coded_vector coded{};
    diffkv::encode_vector(x.data(), head_dim, {4}, coded);
    std::vector<float> back(256);
    diffkv::decode_vector(coded, head_dim, {4}, back.data());
    for (std::size_t d = 0; d < static_cast<std::size_t>(head_dim); ++d) {
      CHECK(std::fabs(back[d] - x[d]) <= 0.04f);
    }
    CHECK(back[static_cast<std::size_t>(head_dim)] == 0.0f);  // nothing is written behind it
  }
}
