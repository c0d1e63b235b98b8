// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/attention/softmax_state.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/difference.hpp"
#include "support/random.hpp"

namespace {
using diffkv::minus_infinity;
using diffkv::softmax_state;
using diffkv::test::difference;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

struct part {
  std::vector<float> out;
  float lse;
};

part merged(part a, part const& b)
{
  diffkv::merge(a.out.data(), a.lse, b.out.data(), b.lse, static_cast<int>(a.out.size()));
  return a;
}

part of(float value, float lse) { return {std::vector<float>(64, value), lse}; }
}  // namespace

TEST_CASE("merge: two empty parts stay empty", "[attention]")
{
  part const both = merged(of(0, minus_infinity), of(0, minus_infinity));
  CHECK(both.out == std::vector<float>(64, 0.0f));
  CHECK(both.lse == minus_infinity);
}

TEST_CASE("merge: an empty part leaves the other as it is, bit for bit", "[attention]")
{
  for (float const value : {0.3f, -7.0f, 1e-30f, 3e38f}) {
    for (float const lse : {0.5f, -1e30f, 3e38f, 0.0f}) {
      CAPTURE(value, lse);
      part const right = merged(of(value, lse), of(0, minus_infinity));
      part const left  = merged(of(0, minus_infinity), of(value, lse));
      CHECK(right.out == of(value, lse).out);
      CHECK(left.out == of(value, lse).out);
      CHECK(right.lse == lse);
      CHECK(left.lse == lse);
    }
  }
}

TEST_CASE("merge: equal sums give the mean", "[attention]")
{
  part const both = merged(of(1, 2), of(3, 2));
  CHECK(both.out == std::vector<float>(64, 2.0f));
  CHECK(difference(both.lse, 2.693147) <= 1e-6);
}

TEST_CASE("merge: logits of any size do not overflow", "[attention]")
{
  part const far = merged(of(1, 300'000), of(3, -300'000));
  CHECK(far.out == std::vector<float>(64, 1.0f));
  CHECK(far.lse == 300'000.0f);
  part const near = merged(of(1, 300'000), of(3, 300'000));
  CHECK(near.out == std::vector<float>(64, 2.0f));
}

TEST_CASE("merge: a part that holds NaN shows it, whatever its weight", "[attention]")
{
  for (float const lse : {300.0f, 0.0f, -300.0f}) {
    CAPTURE(lse);
    CHECK(std::isnan(merged(of(1, 0), of(not_a_number, lse)).out[5]));
    CHECK(std::isnan(merged(of(not_a_number, lse), of(1, 0)).out[5]));
  }
  CHECK(std::isnan(merged(of(1, 0), of(1, not_a_number)).lse));
  CHECK(std::isnan(merged(of(1, not_a_number), of(1, 0)).lse));
  CHECK(std::isnan(merged(of(1, not_a_number), of(0, minus_infinity)).lse));
}

TEST_CASE("softmax_state: nothing seen is a state", "[attention]")
{
  softmax_state state{};
  CHECK(state.log_sum_exp() == minus_infinity);
  CHECK(state.raise(minus_infinity) == 1.0f);
  CHECK(state.add(minus_infinity) == 0.0f);
  CHECK(state.log_sum_exp() == minus_infinity);
  CHECK(state.raise(-5.0f) == 0.0f);  // nothing was summed before
  CHECK(state.add(-5.0f) == 1.0f);
  CHECK(state.log_sum_exp() == -5.0f);
}

TEST_CASE("softmax_state: the sum does not depend on the order beyond rounding", "[attention]")
{
  std::uint64_t const seed = 4;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits =
      random.floats(static_cast<std::size_t>(random.between(1, 300)), -30.0f, 30.0f);
    double sum = 0.0;
    for (float const x : logits) { sum += std::exp(static_cast<double>(x) - 30.0); }
    double const lse = 30.0 + std::log(sum);
    for (int order = 0; order < 3; ++order) {
      softmax_state state{};
      for (float const x : logits) {
        state.raise(x);
        static_cast<void>(state.add(x));
      }
      CHECK(difference(state.log_sum_exp(), lse) <= 1e-5 * (1.0 + std::fabs(lse)));
      diffkv::test::shuffle(logits.data(), static_cast<std::uint32_t>(logits.size()), random);
    }
  }
}

TEST_CASE("softmax_state: NaN is not lost, whether it comes first or last", "[attention]")
{
  for (int const at : {0, 1, 2}) {
    CAPTURE(at);
    softmax_state state{};
    for (int i = 0; i < 3; ++i) {
      float const logit = i == at ? not_a_number : 1.0f;
      state.raise(logit);
      static_cast<void>(state.add(logit));
    }
    CHECK(std::isnan(state.log_sum_exp()));
  }
}

TEST_CASE("merge: splitting anywhere and merging equals one pass", "[attention]")
{
  std::uint64_t const seed = 5;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  auto const attend = [](std::vector<float> const& logits, std::vector<float> const& values,
                         std::size_t first, std::size_t last) {
    softmax_state state{};
    part p{std::vector<float>(1, 0.0f), 0.0f};
    for (std::size_t i = first; i < last; ++i) {
      p.out[0] *= state.raise(logits[i]);
      p.out[0] += state.add(logits[i]) * values[i];
    }
    if (state.sum != 0.0f) { p.out[0] /= state.sum; }
    p.lse = state.log_sum_exp();
    return p;
  };
  for (int round = 0; round < 100; ++round) {
    auto const n        = static_cast<std::size_t>(random.between(0, 40));
    auto const logits   = random.floats(n, -20.0f, 20.0f);
    auto const values   = random.floats(n, -2.0f, 2.0f);
    part const whole    = attend(logits, values, 0, n);
    std::size_t const a = random.below(static_cast<std::uint32_t>(n) + 1);
    std::size_t const b = a + random.below(static_cast<std::uint32_t>(n - a) + 1);
    part const pieces   = merged(merged(attend(logits, values, 0, a), attend(logits, values, a, b)),
                                 attend(logits, values, b, n));
    CHECK(difference(pieces.out[0], whole.out[0]) <= 1e-5);
    CHECK(difference(pieces.lse, whole.lse) <= 1e-5);
  }
}
