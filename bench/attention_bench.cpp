// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode attention on the host over the pages of one layer: 3 heads of 3 q_heads, one thread. Bytes
// per second count what attention reads of the tokens stored.
#include "cache_workload.hpp"

namespace {

using namespace diffkv;
using bench::mix;

//! softmax(q.K^T * scale).V over decoded vectors, in f64.
template <class Tiers>
bool attention_is_right(bench::workload<Tiers>& work, std::vector<float> const& out)
{
  auto const& context     = work.cache().context();
  auto const dim          = work.dim();
  double const scale      = work.attention().scale;
  std::uint32_t const all = work.shape().group_size;
  std::vector<float> x(dim);
  for (std::uint32_t q_head = 0; q_head < work.num_q_heads(); ++q_head) {
    row_view const row   = context.row(q_head / all);
    __half const* from_q = work.queries().at(0, q_head);
    std::vector<double> sum(dim);
    double weights = 0.0;
    for (tier t : {tier::high, tier::low}) {
      for (slot_index s = 0; s < row.state().tokens.of(t); ++s) {
        std::byte const* page = row.page_of(t, s).bytes;
        int const token       = row.token_in_page(t, s);
        context.codec(t).read_key(page, token, x.data());
        double logit = 0.0;
        for (std::size_t d = 0; d < dim; ++d) { logit += scale * to_f32(from_q[d]) * x[d]; }
        context.codec(t).read_value(page, token, x.data());
        weights += std::exp(logit);
        for (std::size_t d = 0; d < dim; ++d) { sum[d] += std::exp(logit) * x[d]; }
      }
    }
    for (std::size_t d = 0; d < dim; ++d) {
      if (!bench::near(out[q_head * dim + d], sum[d] / weights, 1e-4)) { return false; }
    }
  }
  return true;
}

template <class Tiers>
void decode_attention(benchmark::State& state)
{
  bench::workload_shape shape;
  shape.prompt_tokens = static_cast<int>(state.range(0));
  shape.head_dim      = static_cast<int>(state.range(1));
  bench::workload<Tiers> work{shape};
  if (!work.fill()) { return state.SkipWithError("not enough pages"); }
  std::vector<float> out;
  work.decode(0, out);
  if (!attention_is_right(work, out)) { return state.SkipWithError("the output is wrong"); }
  for (auto _ : state) {
    work.decode(0, out);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  tier_counts tokens{};
  for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
    tokens.high += work.cache().context().row(head).state().tokens.high;
    tokens.low += work.cache().context().row(head).state().tokens.low;
  }
  tier_pages const tiers = work.cache().context().cache.tiers;
  double bytes           = 0.0;
  for (tier t : {tier::high, tier::low}) {
    page_geometry const& page = tiers.of(t);
    bytes += 1.0 * page.scores / page.tokens_per_page * tokens.of(t);  // the prefix read
  }
  bench::report_bytes(state, static_cast<std::size_t>(bytes));
  bench::report_items(state, tokens.sum());
  bench::report_bytes_per_token(state, tiers, tokens);
  state.counters["tokens_kept"] = tokens.sum() / (1.0 * shape.num_heads * shape.prompt_tokens);
}

#define DIFFKV_BENCH_AXES                   \
  ArgNames({"context", "head_dim"})         \
    ->ArgsProduct({{512, 4096}, {64, 128}}) \
    ->Unit(benchmark::kMicrosecond)

BENCHMARK_TEMPLATE(decode_attention, k16v16)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(decode_attention, k8v8)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(decode_attention, k8v4)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(decode_attention, k4v2)->DIFFKV_BENCH_AXES;
BENCHMARK_TEMPLATE(decode_attention, mix)->DIFFKV_BENCH_AXES;

//! Baseline: plain attention over f32 vectors side by side in memory, one q_head after the other.
void plain_attention(benchmark::State& state)
{
  bench::workload_shape shape;
  shape.prompt_tokens = static_cast<int>(state.range(0));
  shape.head_dim      = static_cast<int>(state.range(1));
  auto const n        = static_cast<std::size_t>(shape.prompt_tokens);
  auto const dim      = static_cast<std::size_t>(shape.head_dim);
  auto const keys     = bench::normal_numbers(shape.num_heads * n * dim, 7);
  auto const values   = bench::normal_numbers(shape.num_heads * n * dim, 8);
  auto const queries  = bench::normal_numbers(shape.num_heads * shape.group_size * dim, 9);
  float const scale   = 1.0f / std::sqrt(static_cast<float>(dim));
  std::vector<float> out(queries.size());
  std::vector<float> weights(n);
  for (auto _ : state) {
    for (std::size_t q_head = 0; q_head < shape.num_heads * shape.group_size; ++q_head) {
      float const* key   = keys.data() + q_head / shape.group_size * n * dim;
      float const* value = values.data() + q_head / shape.group_size * n * dim;
      float const* q     = queries.data() + q_head * dim;
      float* o           = out.data() + q_head * dim;
      float max          = -std::numeric_limits<float>::infinity();
      float sum          = 0.0f;
      for (std::size_t i = 0; i < n; ++i) {
        weights[i] = scale * host::dot(q, key + i * dim, shape.head_dim);
        max        = std::fmax(max, weights[i]);
      }
      for (std::size_t d = 0; d < dim; ++d) { o[d] = 0.0f; }
      for (std::size_t i = 0; i < n; ++i) {
        weights[i] = std::exp(weights[i] - max);
        sum += weights[i];
      }
      host::add_weighted(o, weights.data(), value, static_cast<int>(n), shape.head_dim);
      for (std::size_t d = 0; d < dim; ++d) { o[d] /= sum; }
    }
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  bench::report_bytes(state, (keys.size() + values.size()) * sizeof(float));
  bench::report_items(state, shape.num_heads * n);
}
BENCHMARK(plain_attention)->DIFFKV_BENCH_AXES;

#undef DIFFKV_BENCH_AXES

}  // namespace
