// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/vectors.hpp"
#include "reference/hadamard.hpp"
#include "support/catch.hpp"

#include <diffkv/quant/conditioning.hpp>

#include <cmath>
#include <numeric>

namespace {

using diffkv::conditioning;

constexpr conditioning both = conditioning::centred | conditioning::rotated;

struct block_of {
  int head_dim, block;
};
// The blocks that the definition names: 80 = 5 x 16, 96 = 3 x 32, 112 = 7 x 16.
constexpr block_of blocks[] = {{32, 32},   {48, 16},  {64, 64},  {80, 16},  {96, 32},  {112, 16},
                               {128, 128}, {160, 32}, {192, 64}, {240, 16}, {256, 256}};

double norm(float const* x, int count)
{
  return std::sqrt(std::inner_product(x, x + count, x, 0.0, std::plus<>{},
                                      [](double a, double b) { return a * b; }));
}

// docs/numerics.md, "Rotation".
double rotation_bound(float const* block_start, int block)
{
  return (std::log2(block) + 2) * std::ldexp(1.0, -24) * norm(block_start, block) * (1 + 1e-6);
}

}  // namespace

TEST_CASE("conditioning: the rotation is the Sylvester matrix of each block", "[quant]")
{
  for (auto const [head_dim, block] : blocks) {
    CAPTURE(head_dim, block);
    CHECK(diffkv::rotation_block(head_dim) == block);
    for (int column = 0; column < head_dim; ++column) {
      std::vector<float> x(static_cast<std::size_t>(head_dim), 0.0f);
      x[static_cast<std::size_t>(column)] = 1.0f;
      diffkv::rotate(x.data(), head_dim);
      int wrong = 0;
      for (int row = 0; row < head_dim; ++row) {
        bool const same_block = row / block == column / block;
        double const entry =
          same_block ? diffkv::test::sylvester(unsigned(row % block), unsigned(column % block)) /
                         std::sqrt(double(block))
                     : 0.0;
        wrong += x[static_cast<std::size_t>(row)] == static_cast<float>(entry) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("conditioning: the factor is 1 / sqrt(block) rounded to f32", "[quant]")
{
  for (int block = 1; block <= 256; block *= 2) {
    CHECK(diffkv::rotation_factor(block) == static_cast<float>(1.0 / std::sqrt(double(block))));
  }
}

TEST_CASE("conditioning: rotation errs by no more than the stated bound", "[quant]")
{
  for (auto const [head_dim, block] : blocks) {
    auto vectors = diffkv::test::random_vectors(head_dim, 60, 51);
    vectors.push_back(
      {"one outlier", std::vector<float>(static_cast<std::size_t>(head_dim), 1e-3f)});
    vectors.back().x[7] = 60000.0f;
    for (auto const& v : vectors) {
      auto const exact = diffkv::test::rotate_plain(v.x, block);
      auto x           = v.x;
      diffkv::rotate(x.data(), head_dim);
      for (int d = 0; d < head_dim; ++d) {
        double const bound = rotation_bound(v.x.data() + d / block * block, block);
        auto const at      = static_cast<std::size_t>(d);
        if (!(std::fabs(x[at] - exact[at]) <= bound)) { FAIL_CHECK(v.name << ", " << head_dim); }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("conditioning: rotating twice gives the vector back, lengths are kept", "[quant]")
{
  for (auto const [head_dim, block] : blocks) {
    for (auto const& v : diffkv::test::random_vectors(head_dim, 30, 52)) {
      auto x = v.x;
      diffkv::rotate(x.data(), head_dim);
      double const length = norm(v.x.data(), head_dim);
      CHECK(std::fabs(norm(x.data(), head_dim) - length) <= 2e-6 * length);
      diffkv::rotate(x.data(), head_dim);
      for (int d = 0; d < head_dim; ++d) {
        auto const at = static_cast<std::size_t>(d);
        // Both passes err by the bound, and the second hands on what the first erred by.
        double const bound =
          (1 + std::sqrt(block)) * rotation_bound(v.x.data() + d / block * block, block);
        if (!(std::fabs(double{x[at]} - v.x[at]) <= bound)) {
          FAIL_CHECK(v.name << ", lane " << d);
        }
      }
    }
  }
}

TEST_CASE("conditioning: what is exact in f32 is rotated exactly", "[quant]")
{
  // Small whole numbers, block 64 and 16: the factor is a power of two, no rounding happens.
  for (auto const [head_dim, block] : {block_of{64, 64}, block_of{80, 16}, block_of{256, 256}}) {
    std::vector<float> x;
    for (int d = 0; d < head_dim; ++d) { x.push_back(static_cast<float>((d * 37) % 101 - 50)); }
    auto const exact = diffkv::test::rotate_plain(x, block);
    auto const start = x;
    diffkv::rotate(x.data(), head_dim);
    for (std::size_t d = 0; d < x.size(); ++d) { CHECK(x[d] == static_cast<float>(exact[d])); }
    diffkv::rotate(x.data(), head_dim);
    CHECK(x == start);
  }
}

TEST_CASE("conditioning: centring subtracts one rounded f32 offset, before the rotation", "[quant]")
{
  for (int const head_dim : {64, 96, 128}) {
    auto const vectors = diffkv::test::random_vectors(head_dim, 20, 53);
    for (std::size_t n = 1; n < vectors.size(); ++n) {
      auto const& key    = vectors[n].x;
      auto const& offset = vectors[n - 1].x;
      auto centred = key, rotated = key, centred_rotated = key, untouched = key;
      diffkv::condition_key(centred.data(), offset.data(), head_dim, conditioning::centred);
      diffkv::condition_key(rotated.data(), nullptr, head_dim, conditioning::rotated);
      diffkv::condition_key(centred_rotated.data(), offset.data(), head_dim, both);
      diffkv::condition_key(untouched.data(), nullptr, head_dim, conditioning::none);
      CHECK(untouched == key);
      auto expected = key;
      for (std::size_t d = 0; d < key.size(); ++d) {
        expected[d] = static_cast<float>(double{key[d]} - double{offset[d]});
      }
      CHECK(centred == expected);
      diffkv::rotate(expected.data(), head_dim);
      CHECK(centred_rotated == expected);
      auto only_rotated = key;
      diffkv::rotate(only_rotated.data(), head_dim);
      CHECK(rotated == only_rotated);
    }
  }
}

TEST_CASE("conditioning: logits differ by the same q.c for every key, so softmax stays", "[quant]")
{
  for (auto const [head_dim, block] : blocks) {
    auto const vectors = diffkv::test::random_vectors(head_dim, 30, 54);
    auto const& query  = vectors[0].x;
    auto const& offset = vectors[1].x;
    auto q             = query;
    diffkv::condition_rotation(q.data(), head_dim, both);
    auto const dot = [&](std::vector<float> const& a, std::vector<float> const& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0, std::plus<>{},
                                [](double x, double y) { return x * y; });
    };
    double const q_c = dot(query, offset);
    for (std::size_t n = 2; n < vectors.size(); ++n) {
      auto key = vectors[n].x;
      diffkv::condition_key(key.data(), offset.data(), head_dim, both);
      double const want = dot(query, vectors[n].x) - q_c;
      // f32 rounding of the difference and of both rotations, times the other vector's length.
      double const scale = norm(query.data(), head_dim) *
                           (norm(vectors[n].x.data(), head_dim) + norm(offset.data(), head_dim));
      CAPTURE(head_dim, vectors[n].name);
      CHECK(std::fabs(dot(q, key) - want) <=
            (2 * std::log2(block) + 6) * std::sqrt(block) * std::ldexp(1.0, -24) * scale);
    }
  }
}

TEST_CASE("conditioning: default clip is 0.8 for 2-bit codes of conditioned vectors alone",
          "[quant]")
{
  for (int const bits : {1, 2, 4, 8, 16}) {
    CHECK(diffkv::default_clip(bits, conditioning::none) == 1.0f);
    for (conditioning const set : {conditioning::centred, conditioning::rotated, both}) {
      CHECK(diffkv::default_clip(bits, set) == (bits == 2 ? 0.8f : 1.0f));
    }
  }
}

TEST_CASE("conditioning: names are read, others are refused with the four spellings", "[quant]")
{
  CHECK(diffkv::parse_conditioning("none") == conditioning::none);
  CHECK(diffkv::parse_conditioning("centred") == conditioning::centred);
  CHECK(diffkv::parse_conditioning("rotated") == conditioning::rotated);
  CHECK(diffkv::parse_conditioning("centred+rotated") == both);
  CHECK(has(both, conditioning::centred));
  CHECK(has(both, conditioning::rotated));
  CHECK_FALSE(has(conditioning::centred, conditioning::rotated));
  for (char const* text : {"", "None", "centered", "rotated+centred", "centred+"}) {
    CHECK_THROWS_WITH(diffkv::parse_conditioning(text),
                      diffkv::test::contains("none, centred, rotated or centred+rotated"));
  }
}
