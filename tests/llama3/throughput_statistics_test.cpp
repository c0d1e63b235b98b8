// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/model_shapes.hpp"
#include "llama3/throughput/statistics.hpp"
#include "support/catch.hpp"

#include <cmath>      // abs
#include <stdexcept>  // invalid_argument

using namespace llama3;

TEST_CASE("statistics: medians, quantiles and means of known values", "[llama3][throughput]")
{
  CHECK(median({3.0, 1.0, 2.0}) == 2.0);
  CHECK(median({4.0, 1.0, 2.0, 3.0}) == 2.5);
  CHECK(mean({1.0, 2.0, 6.0}) == 3.0);
  CHECK(quantile({2.0, 1.0, 4.0, 3.0}, 0.5) == 2.0);
  CHECK(quantile({2.0, 1.0, 4.0, 3.0}, 0.99) == 4.0);
  CHECK(quantile({2.0, 1.0}, 0.0) == 1.0);
  CHECK_THROWS_AS(median({}), std::invalid_argument);
  CHECK_THROWS_AS(quantile({}, 0.5), std::invalid_argument);
  CHECK_THROWS_AS(mean({}), std::invalid_argument);
}

TEST_CASE("sum_between: a straight line is summed as it is, within and beyond the known places",
          "[llama3][throughput]")
{
  auto const line = [](double i) { return 2.0 + 0.5 * i; };
  double expected = 0.0;
  for (int i = 5; i < 25; ++i) { expected += line(i); }
  double const sum = sum_between({{10.0, line(10)}, {14.0, line(14)}, {20.0, line(20)}}, 5, 25);
  CHECK(std::abs(sum - expected) < 1e-9);
  double const bent = sum_between({{0.0, 1.0}, {2.0, 3.0}, {4.0, 0.0}}, 0, 5);
  CHECK(std::abs(bent - (1.0 + 2.0 + 3.0 + 1.5 + 0.0)) < 1e-9);
  CHECK_THROWS_AS(sum_between({{0.0, 1.0}}, 0, 1), std::invalid_argument);
}

TEST_CASE("model_shapes: parameters are as many as published", "[llama3][throughput]")
{
  auto const billions = [](char const* name) {
    return 0.5e-9 * static_cast<double>(weight_bytes(config_of(find_shape(name), 0, 1)));
  };
  CHECK(std::abs(billions("llama3-8b") - 8.03) < 0.01);
  CHECK(std::abs(billions("llama3-70b") - 70.55) < 0.01);
  CHECK(std::abs(billions("qwen2.5-7b") - 7.62) < 0.01);
  CHECK(std::abs(billions("qwen2.5-32b") - 32.76) < 0.01);
  CHECK_THROWS_AS(find_shape("llama4"), std::invalid_argument);
}
