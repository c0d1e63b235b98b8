// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/contracted_codec.hpp"
#include "quant/vectors.hpp"
#include "support/catch.hpp"

#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

TEST_CASE("vector_codec: the bytes are the same where the compiler may fuse and vectorise",
          "[quant]")
{
  auto vectors = diffkv::test::nasty_vectors(128);
  for (auto& v : diffkv::test::random_vectors(128, 400, 35)) { vectors.push_back(v); }
  for (auto const& v : vectors) {
    for (int const bits : {1, 2, 4, 8, 16}) {
      for (int const groups : {1, 4}) {
        for (float const clip : {1.0f, 0.8f, 0.7f}) {
          diffkv::code_spec const spec{bits, bits == 16 ? 1 : groups, clip};
          diffkv::coded_vector coded{};
          diffkv::encode_vector(v.x.data(), 128, spec, coded);
          float values[128];
          diffkv::decode_vector(coded, 128, spec, values);
          diffkv::test::contracted_result other{};
          diffkv::test::contracted_codec(v.x.data(), 128, bits, spec.groups, clip, other);
          bool same = std::equal(coded.codes, coded.codes + 128, other.codes) &&
                      std::memcmp(values, other.values, sizeof values) == 0;
          for (int g = 0; g < spec.groups; ++g) {
            same = same && static_cast<std::uint16_t>(coded.groups[g].scale) == other.scales[g];
            same = same && static_cast<std::uint16_t>(coded.groups[g].zero) == other.zeros[g];
          }
          if (!same) { FAIL_CHECK(v.name << ", " << bits << " bits, clip " << clip); }
        }
      }
    }
  }
  SUCCEED();
}

// A fused product moves an end of the range by one f32 step, which shows in an f16 once in some
// thousand ranges: so there are many.
TEST_CASE("affine: scale and zero are the same where the compiler may fuse, over many ranges",
          "[quant]")
{
  std::mt19937 random{37};
  std::normal_distribution<float> bell{};
  int different = 0;
  for (int i = 0; i < 400'000; ++i) {
    float const a = bell(random), b = bell(random) * 3.0f;
    float const min = a < b ? a : b, max = a < b ? b : a;
    float const clip = i % 2 == 0 ? 0.8f : 0.7f;
    int const bits   = 1 << (i % 4);
    auto const ours  = diffkv::fit_affine(min, max, {bits, 1, clip});
    different +=
      diffkv::test::contracted_fit(min, max, bits, clip) ==
          (static_cast<std::uint32_t>(ours.scale) << 16 | static_cast<std::uint32_t>(ours.zero))
        ? 0
        : 1;
  }
  CHECK(different == 0);
}

TEST_CASE("conditioning: a rotated vector is the same where the compiler may fuse and vectorise",
          "[quant]")
{
  for (int const head_dim : {64, 80, 96, 112, 128, 256}) {
    for (auto const& v : diffkv::test::random_vectors(head_dim, 40, 36)) {
      auto ours = v.x, other = v.x;
      diffkv::rotate(ours.data(), head_dim);
      diffkv::test::contracted_rotate(other.data(), head_dim);
      CHECK(ours == other);
    }
  }
}

TEST_CASE("contraction: the other object does fuse, where the machine can", "[quant]")
{
  if (!diffkv::test::contraction_is_possible()) { DIFFKV_SKIP("no fused multiply-add here"); }
  float const a = 1.0f + std::ldexp(1.0f, -12);
  float const c = -1.0f - std::ldexp(1.0f, -11);
  CHECK(diffkv::test::contracted_expression(a, a, c) == std::ldexp(1.0f, -24));
}
