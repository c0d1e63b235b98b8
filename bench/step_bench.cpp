// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// The write path of one generated token over all rows of a small model: 30 layers of 3 heads.
// `step` decides, claims and moves; `append` encodes the new vectors. Items are rows.
#include "cache_workload.hpp"

#include <cstring>

namespace {

using namespace diffkv;
using bench::mix;
constexpr int context_tokens   = 256;
constexpr int generated_tokens = 48;

bench::workload_shape generation()
{
  bench::workload_shape shape;
  shape.num_layers    = 30;
  shape.prompt_tokens = context_tokens;
  shape.more_tokens   = generated_tokens;
  shape.score_every   = 4;
  return shape;
}

//! Generates tokens; the clock sees `step` or `append` alone. The prompt is stored
//! anew when the cache is full, after a look at every row.
template <class Tiers>
void generate(benchmark::State& state, bool timed_step)
{
  bench::workload<Tiers> work{generation()};
  if (!work.fill()) { return state.SkipWithError("not enough pages"); }
  std::uint32_t const slot = 0;
  std::vector<float> out;
  std::uint32_t refused = 0;
  int generated         = 0;
  auto const append_all = [&] {
    for (std::uint32_t layer = 0; layer < work.shape().num_layers; ++layer) {
      work.append(layer, generated);
    }
  };
  for (auto _ : state) {
    if (!timed_step) { state.PauseTiming(); }
    refused += work.cache().step(&slot, 1);
    if (timed_step) { state.PauseTiming(); }
    if (!timed_step) { state.ResumeTiming(); }
    append_all();
    if (!timed_step) { state.PauseTiming(); }
    for (std::uint32_t layer = 0; layer < work.shape().num_layers; ++layer) {
      work.decode(layer, out);  // scores and candidates for the next step
    }
    if (++generated == generated_tokens) {
      if (refused != 0 || !work.rows_are_right()) {
        return state.SkipWithError("a token is not where it belongs");
      }
      work.release();
      if (!work.fill()) { return state.SkipWithError("pages were lost"); }
      generated = 0;
    }
    state.ResumeTiming();
  }
  bench::report_items(state, work.cache().shape().num_rows());
}

template <class Tiers>
void step(benchmark::State& state)
{
  generate<Tiers>(state, true);
}
template <class Tiers>
void append(benchmark::State& state)
{
  generate<Tiers>(state, false);
}
// A fixed number, as what is not timed takes much longer than what is.
BENCHMARK_TEMPLATE(step, mix)->Iterations(2 * generated_tokens);
BENCHMARK_TEMPLATE(step, k8v4)->Iterations(2 * generated_tokens);
BENCHMARK_TEMPLATE(append, mix)->Iterations(2 * generated_tokens);
BENCHMARK_TEMPLATE(append, k16v16)->Iterations(2 * generated_tokens);

//! Baseline: the new 16-bit keys and values of all rows copied to places 64 tokens apart.
void copy_token(benchmark::State& state)
{
  bench::workload_shape const shape = generation();
  std::size_t const rows            = shape.num_layers * shape.num_heads;
  auto const dim                    = static_cast<std::size_t>(shape.head_dim);
  auto const from                   = bench::to_halves(bench::normal_numbers(2 * rows * dim, 7));
  std::vector<__half> to(64 * from.size());
  for (auto _ : state) {
    for (std::size_t i = 0; i < 2 * rows; ++i) {
      std::memcpy(static_cast<void*>(to.data() + 64 * i * dim), from.data() + i * dim,
                  dim * sizeof(__half));
    }
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, rows);
}
BENCHMARK(copy_token);

}  // namespace
