// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// A prompt of one layer from 16-bit vectors into pages: admit, plan, encode, release. Bytes per
// second count the 16-bit keys and values that go in.
#include "cache_workload.hpp"

#include <cstring>

namespace {

using namespace diffkv;
using bench::mix;

template <class Tiers>
void store_prompt(benchmark::State& state)
{
  bench::workload_shape shape;
  shape.prompt_tokens = static_cast<int>(state.range(0));
  shape.conditioned   = static_cast<conditioning>(state.range(1));
  bench::workload<Tiers> work{shape};
  if (!work.fill()) { return state.SkipWithError("not enough pages"); }
  sequence_usage const usage  = work.cache().usage(0);
  std::uint64_t const all     = work.num_vectors();
  bool const counts_are_right = bench::tier_formats<Tiers>::has_low
                                  ? usage.pruned > all / 6 && usage.low_tokens > all / 3
                                  : usage.high_tokens == all;
  if (!work.rows_are_right() || !counts_are_right) {
    return state.SkipWithError("a token is not where it belongs");
  }
  work.release();
  for (auto _ : state) {
    benchmark::DoNotOptimize(work.admit());
    work.store_prompt(0);
    work.release();
    benchmark::ClobberMemory();
  }
  bench::report_bytes(state, 2 * work.num_vectors() * work.dim() * sizeof(__half));
  bench::report_items(state, work.num_vectors());
  bench::report_bytes_per_token(
    state, work.cache().context().cache.tiers,
    {static_cast<std::uint32_t>(usage.high_tokens), static_cast<std::uint32_t>(usage.low_tokens)});
  state.counters["page_bytes_ratio"] =
    static_cast<double>(usage.bytes) / static_cast<double>(usage.bytes_16bit);
}

// conditioning: 0 none, 3 centred and rotated
#define DIFFKV_BENCH_AXES \
  ArgNames({"tokens", "conditioning"})->ArgsProduct({{1024}, {0, 3}})->Unit(benchmark::kMicrosecond)

BENCHMARK_TEMPLATE(store_prompt, k16v16)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(store_prompt, k8v4)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(store_prompt, mix)->DIFFKV_BENCH_AXES;

#undef DIFFKV_BENCH_AXES

//! Baseline: the 16-bit keys and values copied.
void copy_prompt(benchmark::State& state)
{
  bench::workload_shape shape;
  shape.prompt_tokens = static_cast<int>(state.range(0));
  auto const count    = static_cast<std::size_t>(shape.prompt_tokens * shape.head_dim);
  auto const from     = bench::to_halves(bench::normal_numbers(2 * shape.num_heads * count, 7));
  std::vector<__half> to(from.size());
  for (auto _ : state) {
    std::memcpy(static_cast<void*>(to.data()), from.data(), from.size() * sizeof(__half));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  bench::report_bytes(state, from.size() * sizeof(__half));
  bench::report_items(state, shape.num_heads * static_cast<std::size_t>(shape.prompt_tokens));
}
BENCHMARK(copy_prompt)->ArgNames({"tokens"})->Arg(1024)->Unit(benchmark::kMicrosecond);

}  // namespace
