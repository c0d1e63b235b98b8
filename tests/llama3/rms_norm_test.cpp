// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/rms_norm.hpp"
#include "llama3/swiglu.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace llama3;

TEST_CASE("rms_norm: epsilon counts as it is given", "[llama3]")
{
  // MOD-06: x = 0.001, whose square is of the size of epsilon; once in f32, once rounded to bf16.
  float const as_bf16 = [] {
    std::uint32_t const word = 0x3A83'0000u;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }();
  struct {
    float x;
    double epsilon, expected, tolerance;
  } const cases[] = {{0.001f, 1e-5, 0.301511, 1e-5},
                     {0.001f, 1e-6, 0.707107, 1e-5},
                     {as_bf16, 1e-5, 0.301511, 1e-2},
                     {as_bf16, 1e-6, 0.707107, 1e-2}};
  for (auto const& c : cases) {
    CAPTURE(c.x, c.epsilon);
    std::vector<float> const x(4096, c.x);
    std::vector<float> const weight(4096, 1.0f);
    std::vector<float> out(4096);
    rms_norm(x.data(), weight.data(), x.size(), c.epsilon, out.data());
    CHECK(std::abs(out.front() - c.expected) < c.tolerance);
    CHECK(out.back() == out.front());
  }
}

TEST_CASE("rms_norm: weights scale element by element, in place too", "[llama3]")
{
  std::vector<float> x{3.0f, -4.0f, 0.0f, 0.0f};  // root of the mean square: 2.5
  std::vector<float> const weight{1.0f, 2.0f, 3.0f, 4.0f};
  rms_norm(x.data(), weight.data(), x.size(), 0.0, x.data());
  CHECK(x == std::vector<float>{1.2f, -3.2f, 0.0f, 0.0f});
}

TEST_CASE("rms_norm: a vector of zeros stays zero", "[llama3]")
{
  std::vector<float> x(8, 0.0f);
  std::vector<float> const weight(8, 1.0f);
  rms_norm(x.data(), weight.data(), x.size(), 1e-6, x.data());
  CHECK(x == std::vector<float>(8, 0.0f));
}

TEST_CASE("swiglu: the gate is silu and large gates neither overflow nor vanish", "[llama3]")
{
  std::vector<float> const gate{0.0f, 1.0f, -1.0f, 100.0f, -100.0f, -1000.0f};
  std::vector<float> const up(gate.size(), 2.0f);
  std::vector<float> out(gate.size());
  swiglu(gate.data(), up.data(), gate.size(), out.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    CAPTURE(gate[i]);
    double const expected = 2.0 * gate[i] / (1.0 + std::exp(-double{gate[i]}));
    CHECK(std::abs(out[i] - expected) <= 1e-6 * std::abs(expected) + 1e-30);
  }
}
