// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/rope.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace {
using namespace llama3;

rope_parameters llama_3(rope_scaling_type scaling)
{
  rope_parameters p;
  p.head_dim = 128;
  p.theta    = 500000.0;
  p.scaling  = scaling;
  p.factor   = 8.0;
  return p;
}

bool close(double value, double expected)
{
  return std::abs(value - expected) <= 1e-6 * std::abs(expected);
}
}  // namespace

TEST_CASE("rope: the frequencies of Llama 3 without scaling follow base 500000", "[llama3]")
{
  auto const f = rope_frequencies(llama_3(rope_scaling_type::none));  // MOD-01
  REQUIRE(f.size() == 64);
  CHECK(f[0] == 1.0);
  CHECK(close(f[1], 0.8146172339));
  CHECK(close(f[28], 3.211445995e-3));
  CHECK(close(f[63], 2.455140791e-6));
}

TEST_CASE("rope: the scaling of Llama 3.1 keeps, blends and divides", "[llama3]")
{
  auto const base   = rope_frequencies(llama_3(rope_scaling_type::none));  // MOD-02
  auto const scaled = rope_frequencies(llama_3(rope_scaling_type::llama3));
  for (std::size_t i = 0; i < 64; ++i) {
    CAPTURE(i);
    if (i <= 28) {
      CHECK(scaled[i] == base[i]);
    } else if (i <= 34) {
      CHECK(scaled[i] < base[i] * (1.0 - 1e-9));
      CHECK(scaled[i] > base[i] / 8.0 * (1.0 + 1e-9));
    } else {
      CHECK(close(scaled[i], base[i] / 8.0));
    }
  }
  CHECK(close(scaled[28], 3.211445995e-3));
  CHECK(close(scaled[29], 2.166570764e-3));
  CHECK(close(scaled[31], 8.567514129e-4));
  CHECK(close(scaled[34], 1.785078128e-4));
  CHECK(close(scaled[35], 9.556212354e-5));
  CHECK(close(scaled[63], 3.068925989e-7));
}

TEST_CASE("rope: linear scaling divides every frequency", "[llama3]")
{
  auto const base   = rope_frequencies(llama_3(rope_scaling_type::none));
  auto const scaled = rope_frequencies(llama_3(rope_scaling_type::linear));
  for (std::size_t i = 0; i < 64; ++i) {
    CAPTURE(i);
    CHECK(scaled[i] == base[i] / 8.0);
  }
}

TEST_CASE("rope: large positions keep their angle", "[llama3]")
{
  auto p     = llama_3(rope_scaling_type::none);  // MOD-05
  p.head_dim = 2;
  rope const r{p};
  struct {
    int position;
    double x, y;
  } const cases[] = {{0, 1.0, 0.0},
                     {1, 0.540302, 0.841471},
                     {100000, -0.999361, 0.035749},
                     {131071, -0.817983, -0.575242}};
  for (auto const& c : cases) {
    CAPTURE(c.position);
    float cosine = 0.0f, sine = 0.0f;
    r.angles(c.position, &cosine, &sine);
    float const in[2] = {1.0f, 0.0f};
    float out[2];
    r.rotate(in, out, 1, &cosine, &sine);
    CHECK(std::abs(out[0] - c.x) < 1e-5);
    CHECK(std::abs(out[1] - c.y) < 1e-5);
  }
}

TEST_CASE("rope: a pair is element i and element i + head_dim / 2 of each head", "[llama3]")
{
  rope_parameters p;
  p.head_dim = 4;
  rope const r{p};
  float cosines[2], sines[2];
  r.angles(1, cosines, sines);
  float x[8] = {1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f};  // two heads, rotated in place
  r.rotate(x, x, 2, cosines, sines);
  double const expected[8] = {0.540302,        0.0, 0.841471,      0.0, 0.0,
                              -std::sin(0.01), 0.0, std::cos(0.01)};
  for (int i = 0; i < 8; ++i) {
    CAPTURE(i);
    CHECK(std::abs(x[i] - expected[i]) < 1e-6);
  }
}

TEST_CASE("rope: parameters that give no frequencies are refused", "[llama3]")
{
  auto const refused = [](auto change) {
    auto p = llama_3(rope_scaling_type::llama3);
    change(p);
    CHECK_THROWS_AS(rope_frequencies(p), std::invalid_argument);
  };
  refused([](rope_parameters& p) { p.head_dim = 0; });
  refused([](rope_parameters& p) { p.head_dim = 3; });
  refused([](rope_parameters& p) { p.theta = 0.0; });
  refused([](rope_parameters& p) { p.theta = std::numeric_limits<double>::quiet_NaN(); });
  refused([](rope_parameters& p) { p.factor = 0.0; });
  refused([](rope_parameters& p) { p.high_freq_factor = p.low_freq_factor; });
}
