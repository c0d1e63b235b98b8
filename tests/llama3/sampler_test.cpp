// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Choosing a token: greedy, temperature, top-p, and logits that are broken.
#include "llama3/sampler.hpp"

#include "support/catch.hpp"

#include <cmath>  // exp
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

namespace {
using llama3::sampler;
using llama3::sampler_options;
using llama3::token_id;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity  = std::numeric_limits<float>::infinity();

sampler_options warm(double temperature, double top_p, std::uint64_t seed)
{
  sampler_options options;
  options.temperature = temperature;
  options.top_p       = top_p;
  options.seed        = seed;
  return options;
}

std::vector<int> histogram(sampler_options const& options, std::vector<float> const& logits,
                           int draws)
{
  sampler s(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < draws; ++i) { ++counts[static_cast<std::size_t>(s.sample(logits))]; }
  return counts;
}
}  // namespace

TEST_CASE("sampler: greedy passes over NaN wherever it stands", "[llama3]")
{
  using row = std::pair<std::vector<float>, token_id>;
  for (auto const& [logits, expected] :
       {row{{1, nan_value, 3, 2}, 2}, row{{nan_value, 1, 2}, 2}, row{{nan_value, 2, 1}, 1},
        row{{5, 1, nan_value}, 0}, row{{nan_value, -3}, 1}, row{{-infinity, -1e38f}, 1},
        row{{1, infinity, infinity}, 1}, row{{-nan_value, -7, nan_value}, 1}}) {
    CHECK(sampler().sample(logits) == expected);
    CHECK(sampler(warm(1e-6, 1.0, 1)).sample(logits) == expected);
    CHECK(sampler(warm(1e-6, 0.5, 1)).sample(logits) == expected);
  }
}

TEST_CASE("sampler: logits that leave nothing to choose are an error, never token 0", "[llama3]")
{
  for (auto const& logits :
       {std::vector<float>{nan_value, nan_value, nan_value}, std::vector<float>{nan_value},
        std::vector<float>{-infinity, nan_value}, std::vector<float>{}}) {
    CHECK_THROWS_AS(sampler().sample(logits), std::runtime_error);
    CHECK_THROWS_AS(sampler(warm(1.0, 0.9, 1)).sample(logits), std::runtime_error);
  }
  // One valid logit beyond the tokenizer's ids does not help.
  sampler_options options;
  options.num_ids = 2;
  CHECK_THROWS_AS(sampler(options).sample(std::vector<float>{nan_value, nan_value, 1.0f}),
                  std::runtime_error);
}

TEST_CASE("sampler: of equal logits the lowest id is greedy's choice, always", "[llama3]")
{
  for (std::size_t const vocabulary : {1u, 2u, 17u, 49152u, 128256u}) {
    std::vector<float> logits(vocabulary, 0.0f);
    CHECK(sampler().sample(logits) == 0);
    if (vocabulary < 128256) { continue; }
    logits[70000] = logits[3] = 1.0f;
    for (int run = 0; run < 100; ++run) { REQUIRE(sampler().sample(logits) == 3); }
    logits[0] = -0.0f;
    logits[3] = logits[70000] = 0.0f;
    CHECK(sampler().sample(logits) == 0);
  }
}

TEST_CASE("sampler: ids beyond the tokenizer are never chosen", "[llama3]")
{
  std::vector<float> logits(12, 0.0f);
  logits[9] = logits[10] = logits[11] = 50.0f;
  for (std::size_t const limit : {1u, 8u, 9u}) {
    for (double const temperature : {0.0, 0.5, 5.0}) {
      for (double const top_p : {0.3, 1.0}) {
        auto options    = warm(temperature, top_p, 7);
        options.num_ids = limit;
        sampler s(options);
        for (int i = 0; i < 300; ++i) {
          REQUIRE(static_cast<std::size_t>(s.sample(logits)) < limit);
        }
      }
    }
  }
  sampler_options roomy;
  roomy.num_ids = 100;  // more ids than rows: all rows may be chosen
  CHECK(sampler(roomy).sample(logits) == 9);
}

TEST_CASE("sampler: the frequencies are those of softmax(logits / temperature)", "[llama3]")
{
  std::vector<float> const logits{1.0f, nan_value, 0.0f, 2.0f, -infinity, 0.5f};
  int const draws = 40000;
  for (double const temperature : {0.5, 1.0, 2.0}) {
    auto const counts = histogram(warm(temperature, 1.0, 11), logits, draws);
    double sum        = 0.0;
    for (std::size_t const i : {0u, 2u, 3u, 5u}) { sum += std::exp(logits[i] / temperature); }
    CHECK(counts[1] == 0);
    CHECK(counts[4] == 0);
    for (std::size_t const i : {0u, 2u, 3u, 5u}) {
      double const p = std::exp(logits[i] / temperature) / sum;
      CAPTURE(temperature, i, p);
      // Five standard deviations of a binomial count.
      CHECK(std::abs(counts[i] - draws * p) < 5.0 * std::sqrt(draws * p * (1.0 - p)));
    }
  }
}

TEST_CASE("sampler: top-p keeps the smallest set of likeliest tokens that reaches p", "[llama3]")
{
  // Probabilities 1/2, 1/4, 1/8, 1/8 in another order; the tie goes to the lower id.
  auto const ln = [](double p) { return static_cast<float>(std::log(p)); };
  std::vector<float> const logits{ln(0.125), ln(0.5), ln(0.125), ln(0.25)};
  using row = std::pair<double, std::set<token_id>>;
  for (auto const& [top_p, expected] :
       {row{1e-9, {1}}, row{0.49, {1}}, row{0.51, {1, 3}}, row{0.74, {1, 3}}, row{0.76, {0, 1, 3}},
        row{0.87, {0, 1, 3}}, row{0.88, {0, 1, 2, 3}}, row{1.0, {0, 1, 2, 3}}}) {
    auto const counts = histogram(warm(1.0, top_p, 3), logits, 4000);
    std::set<token_id> seen;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) { seen.insert(static_cast<token_id>(i)); }
    }
    CAPTURE(top_p);
    CHECK(seen == expected);
  }
  // The kept ones keep their proportions: 2 to 1.
  auto const counts = histogram(warm(1.0, 0.7, 5), logits, 30000);
  CHECK(std::abs(counts[1] - 20000) < 5.0 * std::sqrt(30000 * 2.0 / 9.0));
}

TEST_CASE("sampler: a seed gives one sequence, another seed another", "[llama3]")
{
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) { logits[i] = static_cast<float>(i % 7) * 0.3f; }
  auto const sequence = [&](std::uint64_t seed, double top_p) {
    sampler s(warm(0.8, top_p, seed));
    std::vector<token_id> ids;
    for (int i = 0; i < 50; ++i) { ids.push_back(s.sample(logits)); }
    return ids;
  };
  for (double const top_p : {0.6, 1.0}) {
    CHECK(sequence(1, top_p) == sequence(1, top_p));
    CHECK(sequence(1, top_p) != sequence(2, top_p));
  }
}

TEST_CASE("sampler: the sequence of a seed does not depend on the standard library", "[llama3]")
{
  // Equal weights: the id is the word of the engine, mapped to [0, 1), times the count. The words
  // are fixed by the standard ([rand.predef]: the 10000th of seed 5489 is 9981545732273789042).
  sampler s(warm(1.0, 1.0, 5489));
  std::vector<float> const logits(1024, 0.0f);
  token_id id = -1;
  for (int i = 0; i < 10000; ++i) { id = s.sample(logits); }
  CHECK(id == static_cast<token_id>(9981545732273789042u >> 54));
  CHECK(sampler::unit_interval(0) == 0.0);
  CHECK(sampler::unit_interval(std::uint64_t{1} << 63) == 0.5);
  CHECK(sampler::unit_interval(~std::uint64_t{0}) == 1.0 - 0x1p-53);
}

TEST_CASE("sampler: options that make no sense are refused", "[llama3]")
{
  for (auto const& options :
       {warm(-0.1, 1.0, 0), warm(std::nan(""), 1.0, 0), warm(HUGE_VAL, 1.0, 0), warm(1.0, 0.0, 0),
        warm(1.0, -0.5, 0), warm(1.0, 1.01, 0), warm(1.0, std::nan(""), 0)}) {
    CHECK_THROWS_AS(sampler(options), std::invalid_argument);
  }
  sampler_options none;
  none.num_ids = 0;
  CHECK_THROWS_AS(sampler(none), std::invalid_argument);
}
