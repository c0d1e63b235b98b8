// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Vectors to codes and back, alone and inside pages. Bytes per second count the f16 bytes of the
// vectors, for every width and for the baseline, so that the lines compare.
#include "bench_inputs.hpp"

#include <diffkv/host/page_codec.hpp>
#include <diffkv/page/page_layout.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <algorithm>
#include <cstring>

namespace {

using namespace diffkv;
constexpr std::size_t num_vectors = 512;

//! Half a step, and what rounding scale and zero to f16 costs.
bool is_within_bound(float const* x, float const* decoded, std::size_t dim, code_spec spec)
{
  auto const [min, max] = std::minmax_element(x, x + dim);
  double const largest  = std::max(std::fabs(*min), std::fabs(*max));
  double const range    = double{*max} - *min;
  double const step     = spec.is_quantised() ? range / spec.max_code() : 0.0;
  double const bound    = 0.5 * step + std::ldexp(largest + range, -10);
  for (std::size_t d = 0; d < dim; ++d) {
    if (!bench::near(x[d], decoded[d], bound)) { return false; }
  }
  return true;
}

bool codec_is_right(std::vector<float> const& x, int head_dim, code_spec spec)
{
  auto const dim = static_cast<std::size_t>(head_dim);
  coded_vector coded;
  std::vector<float> decoded(dim);
  for (std::size_t i = 0; i < num_vectors; ++i) {
    encode_vector(x.data() + i * dim, head_dim, spec, coded);
    decode_vector(coded, head_dim, spec, decoded.data());
    if (!is_within_bound(x.data() + i * dim, decoded.data(), dim, spec)) { return false; }
  }
  return true;
}

void report_codec(benchmark::State& state, std::size_t dim, code_spec spec)
{
  bench::report_bytes(state, num_vectors * dim * 2);
  double const nominal                       = static_cast<double>(dim) * spec.bits / 8.0;
  state.counters["nominal_bytes_per_vector"] = nominal;
  state.counters["real_bytes_per_vector"]    = nominal + spec.metadata_bytes();
}

void encode(benchmark::State& state)
{
  code_spec const spec{static_cast<int>(state.range(0))};
  auto const head_dim = static_cast<int>(state.range(1));
  auto const dim      = static_cast<std::size_t>(head_dim);
  auto const x        = bench::normal_numbers(num_vectors * dim, 7);
  if (!codec_is_right(x, head_dim, spec)) { return state.SkipWithError("beyond the error bound"); }
  std::vector<coded_vector> coded(num_vectors);
  for (auto _ : state) {
    for (std::size_t i = 0; i < num_vectors; ++i) {
      encode_vector(x.data() + i * dim, head_dim, spec, coded[i]);
    }
    benchmark::DoNotOptimize(coded.data());
    benchmark::ClobberMemory();
  }
  report_codec(state, dim, spec);
}
BENCHMARK(encode)->ArgNames({"bits", "head_dim"})->ArgsProduct({{16, 8, 4, 2, 1}, {64, 128}});

void decode(benchmark::State& state)
{
  code_spec const spec{static_cast<int>(state.range(0))};
  auto const head_dim = static_cast<int>(state.range(1));
  auto const dim      = static_cast<std::size_t>(head_dim);
  auto const x        = bench::normal_numbers(num_vectors * dim, 7);
  if (!codec_is_right(x, head_dim, spec)) { return state.SkipWithError("beyond the error bound"); }
  std::vector<coded_vector> coded(num_vectors);
  for (std::size_t i = 0; i < num_vectors; ++i) {
    encode_vector(x.data() + i * dim, head_dim, spec, coded[i]);
  }
  std::vector<float> decoded(x.size());
  for (auto _ : state) {
    for (std::size_t i = 0; i < num_vectors; ++i) {
      decode_vector(coded[i], head_dim, spec, decoded.data() + i * dim);
    }
    benchmark::DoNotOptimize(decoded.data());
    benchmark::ClobberMemory();
  }
  report_codec(state, dim, spec);
}
BENCHMARK(decode)->ArgNames({"bits", "head_dim"})->ArgsProduct({{16, 8, 4, 2, 1}, {64, 128}});

//! Baseline of both: the f16 vectors copied.
void copy_f16(benchmark::State& state)
{
  auto const dim  = static_cast<std::size_t>(state.range(0));
  auto const from = bench::to_halves(bench::normal_numbers(num_vectors * dim, 7));
  std::vector<__half> to(from.size());
  for (auto _ : state) {
    std::memcpy(static_cast<void*>(to.data()), from.data(), from.size() * sizeof(__half));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  report_codec(state, dim, {16});
}
BENCHMARK(copy_f16)->ArgNames({"head_dim"})->Arg(64)->Arg(128);

//! Keys and values of full pages, in or out.
template <class Format>
void page_codec(benchmark::State& state, bool write)
{
  using layout               = page_layout<Format, 64>;
  constexpr std::size_t dim  = layout::head_dim;
  constexpr int tokens       = layout::tokens_per_page;
  constexpr page_geometry at = layout::geometry;
  auto const x               = bench::normal_numbers(2 * tokens * dim, 7);
  std::vector<std::byte> page(layout::page_bytes);
  std::vector<float> decoded(x.size());
  host::page_codec const codec{at};
  auto const write_all = [&] {
    for (int t = 0; t < tokens; ++t) {
      codec.write_key(page.data(), t, x.data() + 2 * static_cast<std::size_t>(t) * dim);
      codec.write_value(page.data(), t, x.data() + (2 * static_cast<std::size_t>(t) + 1) * dim);
    }
  };
  auto const read_all = [&] {
    for (int t = 0; t < tokens; ++t) {
      codec.read_key(page.data(), t, decoded.data() + 2 * static_cast<std::size_t>(t) * dim);
      codec.read_value(page.data(), t,
                       decoded.data() + (2 * static_cast<std::size_t>(t) + 1) * dim);
    }
  };
  write_all();
  read_all();
  for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(tokens); ++i) {
    code_spec const spec = i % 2 == 0 ? at.format.key : at.format.value;
    if (!is_within_bound(x.data() + i * dim, decoded.data() + i * dim, dim, spec)) {
      return state.SkipWithError("beyond the error bound");
    }
  }
  for (auto _ : state) {
    if (write) {
      write_all();
    } else {
      read_all();
    }
    benchmark::DoNotOptimize(page.data());
    benchmark::DoNotOptimize(decoded.data());
    benchmark::ClobberMemory();
  }
  bench::report_bytes(state, x.size() * 2);
  bench::report_items(state, static_cast<std::size_t>(tokens));
  bench::report_bytes_per_token(state, make_tier_pages(at),
                                {static_cast<std::uint32_t>(tokens), 0});
}
template <class Format>
void write_page(benchmark::State& state)
{
  page_codec<Format>(state, true);
}
template <class Format>
void read_page(benchmark::State& state)
{
  page_codec<Format>(state, false);
}
BENCHMARK_TEMPLATE(write_page, k16v16);
BENCHMARK_TEMPLATE(write_page, k8v8);
BENCHMARK_TEMPLATE(write_page, k8v4);
BENCHMARK_TEMPLATE(write_page, k4v2);
BENCHMARK_TEMPLATE(read_page, k16v16);
BENCHMARK_TEMPLATE(read_page, k8v8);
BENCHMARK_TEMPLATE(read_page, k8v4);
BENCHMARK_TEMPLATE(read_page, k4v2);

}  // namespace
