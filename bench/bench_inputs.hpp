// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the benches share: inputs of a fixed seed, and bytes per token as counters.
#include <diffkv/page/tier_pages.hpp>

#include <benchmark/benchmark.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace bench {

inline std::vector<float> normal_numbers(std::size_t count, unsigned seed)
{
  std::mt19937 random{seed};
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) { x = normal(random); }
  return numbers;
}

inline std::vector<__half> to_halves(std::vector<float> const& numbers)
{
  std::vector<__half> halves;
  for (float x : numbers) { halves.push_back(__float2half_rn(x)); }
  return halves;
}

//! Nominal and real bytes of a stored token, averaged over `tokens`, from the geometry of the tiers.
inline void report_bytes_per_token(benchmark::State& state, diffkv::tier_pages const& tiers,
                                   diffkv::tier_counts tokens)
{
  auto const average = [&](double high, double low) {
    return (high * tokens.high + low * tokens.low) / tokens.sum();
  };
  state.counters["nominal_bytes_per_token"] =
    average(tiers.high.nominal_bytes_per_token(), tiers.low.nominal_bytes_per_token());
  state.counters["real_bytes_per_token"] =
    average(tiers.high.real_bytes_per_token(), tiers.low.real_bytes_per_token());
}

//! Bytes processed so far, `bytes` an iteration.
inline void report_bytes(benchmark::State& state, std::size_t bytes)
{
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(bytes));
}

inline void report_items(benchmark::State& state, std::size_t items)
{
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(items));
}

inline bool near(double a, double b, double tolerance) { return std::fabs(a - b) <= tolerance; }

}  // namespace bench
