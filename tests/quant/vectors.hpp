// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Vectors that codecs have stumbled over, ordinary random ones, and a vector as one of the element
//! types that callers bring.
#include <diffkv/core/half.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace diffkv::test {

struct named_vector {
  std::string name{};
  std::vector<float> x{};
};

//! `count` draws of a random shape: bell-shaped, with outliers, narrow around an offset, or uniform.
[[nodiscard]] inline std::vector<named_vector> random_vectors(int head_dim, int count,
                                                              unsigned seed)
{
  std::mt19937 random{seed};
  std::normal_distribution<float> bell{};
  std::uniform_real_distribution<float> exponent{-20.0f, 12.0f};
  std::vector<named_vector> out;
  for (int n = 0; n < count; ++n) {
    named_vector v{"random " + std::to_string(n) + " of seed " + std::to_string(seed), {}};
    float const scale  = std::exp2(exponent(random));
    float const offset = n % 3 == 0 ? 0.0f : bell(random) * std::exp2(exponent(random));
    for (int d = 0; d < head_dim; ++d) {
      float const outlier = n % 4 == 1 && d % 37 == 5 ? 20.0f : 1.0f;
      v.x.push_back(offset + scale * outlier * bell(random));
    }
    out.push_back(v);
  }
  return out;
}

//! Finite vectors at the edges.
[[nodiscard]] inline std::vector<named_vector> nasty_vectors(int head_dim)
{
  auto const size = static_cast<std::size_t>(head_dim);
  std::vector<named_vector> out;
  auto const alternate = [&](std::string const& name, float even, float odd) {
    std::vector<float> x(size);
    for (std::size_t d = 0; d < size; ++d) { x[d] = d % 2 == 0 ? even : odd; }
    out.push_back({name, x});
  };
  auto const lane = [&](std::string const& name, std::size_t at, float value, float others) {
    std::vector<float> x(size, others);
    x[at % size] = value;
    out.push_back({name, x});
  };
  float const tiny   = std::ldexp(1.0f, -24);  // the least f16 above 0
  float const denorm = std::numeric_limits<float>::denorm_min();
  for (float const c : {0.0f, -0.0f, 1.0f, -3.0f, 65504.0f, -65504.0f, tiny, -tiny, 2049.0f, 1e-6f,
                        -0.1f, 1e-40f, -1e-40f, 2.9802322e-08f, -2.9802322e-08f, 1e30f, -1e30f}) {
    alternate("constant " + std::to_string(c), c, c);
  }
  alternate("zeros of both signs", -0.0f, 0.0f);
  lane("one below minus zeros", 1, -1.0f, -0.0f);
  alternate("one f16 step at 1", 1.0f, 1.0009765625f);
  alternate("one f16 step at -1", -1.0f, -1.0009765625f);
  alternate("one f16 step at 65504", 65504.0f, 65472.0f);
  alternate("one f32 step at 1", 1.0f, 1.00000012f);
  alternate("a range within f16(min), which rounds up", 2049.5f, 2049.75f);
  alternate("the same, negative", -2048.75f, -2048.25f);
  alternate("raw code 22 of 15", 0.0f, 22.0f * tiny);
  alternate("raw code 22 of 15, shifted", -4.0f * tiny, 18.0f * tiny);
  alternate("a scale that rounds to 0", 0.0f, 0.4f * tiny);
  alternate("a scale at the rounding boundary", 0.0f, 7.5f * tiny);
  alternate("f16 subnormals", -5.0f * tiny, 11.0f * tiny);
  alternate("f32 subnormals", -denorm, 3.0f * denorm);
  alternate("the f16 range", -65504.0f, 65504.0f);
  alternate("beyond the f16 range", -65520.0f, 70000.0f);
  alternate("the f32 range", -3.4e38f, 3.4e38f);
  lane("outlier below", 0, -125000.0f, 4.0f);
  lane("outlier above", size - 1, 125000.0f, -1.0f);
  lane("one large lane", 40, 60000.0f, 0.001f);
  for (int bits : {1, 2, 4, 8}) {
    // Every half step: ties of each code.
    std::vector<float> ties(size), exact(size);
    int const top = (1 << bits) - 1;
    for (std::size_t d = 0; d < size; ++d) {
      int const i = static_cast<int>(d);
      ties[d]     = -4.0f + 0.25f * static_cast<float>(i % (2 * top + 1));
      exact[d]    = 3.0f + static_cast<float>(7 * i % (top + 1));
    }
    ties[size - 1]  = -4.0f + 0.5f * static_cast<float>(top);
    exact[size - 1] = 3.0f + static_cast<float>(top);
    out.push_back({"ties of " + std::to_string(bits) + " bits", ties});
    out.push_back({"whole codes of " + std::to_string(bits) + " bits", exact});
  }
  return out;
}

//! `x` as the caller's element type, read back as the codec reads it.
template <class Element>
[[nodiscard]] std::vector<float> as_elements(std::vector<float> const& x)
{
  std::vector<float> out;
  for (float const value : x) {
    Element element;
    from_f32(value, element);
    out.push_back(to_f32(element));
  }
  return out;
}

}  // namespace diffkv::test
