// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Prompt attention and importance on the device: 32 q_heads over 8 heads, head_dim 128, f16, whole
// prompts of equal length.
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/prefill/prefill.cuh>

#include <cmath>
#include <string>
#include <vector>

#include "support/hash.cuh"

namespace {

using namespace diffkv;
using bench::bench_stream;
using bench::device_buffer;
using bench::on_device;
using diffkv::test::hash;

constexpr prefill_shape shape{8, 4};
constexpr int head_dim      = 128;
constexpr std::uint32_t nq  = shape.num_q_heads();
constexpr std::uint32_t row = (nq + 2 * shape.num_heads) * head_dim;  // a token of a fused buffer

//! Bell-shaped numbers with a variance of about 1.
__global__ void fill_prompts_kernel(__half* x, std::size_t count, std::uint32_t seed)
{
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint32_t const h = hash(static_cast<std::uint32_t>(i) + seed);
    auto const sum        = static_cast<int>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255)) - 383;
    x[i]                  = __float2half_rn(static_cast<float>(sum) * 0.0078125f);
  }
}

//! Prompts in one fused buffer [tokens, q_heads + 2 heads, head_dim].
class workload {
 public:
  workload(int prompts, int length)
    : length_{length},
      tokens_{static_cast<std::size_t>(prompts) * static_cast<std::size_t>(length)},
      qkv_{on_device<__half>(tokens_ * row)},
      out_{on_device<__half>(tokens_ * nq * head_dim)},
      lse_{on_device<float>(tokens_ * nq)},
      sums_{on_device<float>(tokens_ * nq)},
      importances_{on_device<float>(tokens_ * shape.num_heads)},
      first_queries_{on_device(cuts(prompts, length))}
  {
    fill_prompts_kernel<<<2048, 256, 0, bench_stream()>>>(qkv_.data(), tokens_ * row, 5u);
    batch_.capacity      = static_cast<std::uint32_t>(prompts);
    batch_.first_queries = first_queries_.data();
    batch_.num_queries   = static_cast<std::int64_t>(tokens_);
    options_.scale       = 1.0f / std::sqrt(static_cast<float>(head_dim));
  }
  void attend()
  {
    prefill_attention<head_dim>(shape, batch_, options_, side(0), side(nq),
                                side(nq + shape.num_heads), packed(out_.data(), nq, head_dim),
                                lse_.data(), bench_stream());
  }
  void importance(importance_queries const& counted)
  {
    add_importance<head_dim>(shape, batch_, options_, counted, side(0), side(nq), lse_.data(),
                             sums_.data(), bench_stream());
    finish_importance(shape, batch_, counted, sums_.data(), importances_.data(), bench_stream());
  }

  //! What differs from the formulas, or nothing: out and lse of some queries, and that a query gives
  //! the tokens before it all that it does not keep for its own.
  [[nodiscard]] std::string difference_from_formulas()
  {
    attend();
    importance({});
    auto const qkv   = bench::to_host(qkv_);
    auto const out   = bench::to_host(out_);
    auto const lse   = bench::to_host(lse_);
    auto const sums  = bench::to_host(sums_);
    auto const logit = [&](std::size_t query, std::size_t key, std::uint32_t head) {
      double product = 0.0;
      for (std::size_t d = 0; d < head_dim; ++d) {
        product += double{to_f32(qkv[query * row + head * head_dim + d])} *
                   double{to_f32(qkv[key * row + (nq + head / shape.group_size) * head_dim + d])};
      }
      return product * double{options_.scale};
    };
    auto const n = static_cast<std::size_t>(length_);
    for (std::size_t const query : {tokens_ - 1, tokens_ - n, tokens_ - n / 2, n / 3}) {
      for (std::uint32_t const head : {0u, nq - 1}) {
        std::size_t const first = query / n * n;
        double sum              = 0.0;
        std::vector<double> expected(head_dim);
        for (std::size_t key = first; key <= query; ++key) {
          double const weight = std::exp(logit(query, key, head));
          sum += weight;
          std::size_t const v =
            key * row + (nq + shape.num_heads + head / shape.group_size) * head_dim;
          for (std::size_t d = 0; d < head_dim; ++d) {
            expected[d] += weight * double{to_f32(qkv[v + d])};
          }
        }
        if (!(std::fabs(std::log(sum) - double{lse[head * tokens_ + query]}) < 3e-5)) {
          return "lse differs";
        }
        for (std::size_t d = 0; d < head_dim; ++d) {
          float const got = to_f32(out[(query * nq + head) * head_dim + d]);
          if (!(std::fabs(expected[d] / sum - double{got}) < 4e-3)) { return "out differs"; }
        }
      }
    }
    for (std::uint32_t const head : {1u, nq - 1}) {
      double given = 0.0, to_others = 0.0;
      for (std::size_t token = 0; token < tokens_; ++token) {
        given += double{sums[head * tokens_ + token]};
        to_others +=
          1.0 - std::exp(logit(token, token, head) - double{lse[head * tokens_ + token]});
      }
      if (!(std::fabs(given / to_others - 1.0) < 1e-5)) { return "sums of importance differ"; }
    }
    return {};
  }

 private:
  [[nodiscard]] static std::vector<std::int64_t> cuts(int prompts, int length)
  {
    std::vector<std::int64_t> all;
    for (int i = 0; i <= prompts; ++i) { all.push_back(std::int64_t{length} * i); }
    return all;
  }
  [[nodiscard]] vectors<__half const> side(std::uint32_t first_head) const
  {
    return {qkv_.data() + first_head * head_dim, row, head_dim};
  }

  int length_;
  std::size_t tokens_;
  device_buffer<__half> qkv_;
  device_buffer<__half> out_;
  device_buffer<float> lse_;
  device_buffer<float> sums_;
  device_buffer<float> importances_;
  device_buffer<std::int64_t> first_queries_;
  prefill_batch batch_{};
  attention_options options_{};
};

//! Times `op(workload)`; `products` is how many products of a query and a key it needs per q_head.
template <class Op>
void time_prompts(benchmark::State& state, double products, std::string const& name, Op&& op)
{
  auto const prompts = static_cast<int>(state.range(0));
  auto const length  = static_cast<int>(state.range(1));
  workload work{prompts, length};
  std::string const different = work.difference_from_formulas();
  if (!different.empty()) { return state.SkipWithError(different.c_str()); }
  bool const is_long = double(prompts) * length * length > 3e8;
  double const us    = bench::graph_us_per_op(bench_stream(), is_long ? 1 : 4, is_long ? 3 : 9,
                                              [&](int) { op(work); });
  bench::report_us(
    state, us, "prefill." + name + "_us." + std::to_string(prompts) + "x" + std::to_string(length));
  state.counters["teraflops"] = products * prompts * nq * 2.0 * head_dim / us * 1e-6;
}

void attention(benchmark::State& state)
{
  double const n = static_cast<double>(state.range(1));
  time_prompts(state, n * (n + 1), "attention", [](workload& w) { w.attend(); });
}
void importance(benchmark::State& state, importance_queries const& counted, std::string const& name)
{
  double const n       = static_cast<double>(state.range(1));
  double const seen    = counted.last > 0 ? counted.last * n : 0.5 * n * n;
  double const queries = seen / counted.every;
  time_prompts(state, queries, "importance." + name, [&](workload& w) { w.importance(counted); });
}

template <class Bench>
void set_axes(Bench* bench)
{
  bench->ArgNames({"prompts", "tokens"})
    ->Args({1, 1024})
    ->Args({1, 2048})
    ->Args({1, 4096})
    ->Args({4, 4096})
    ->Args({1, 8192})
    ->Args({1, 32'768})
    ->Apply(bench::reports_us);
}
BENCHMARK(attention)->Apply([](auto* b) { set_axes(b); });
BENCHMARK_CAPTURE(importance, all, {}, "all")->Apply([](auto* b) { set_axes(b); });
BENCHMARK_CAPTURE(importance, last64, {64, 1}, "last64")->Apply([](auto* b) { set_axes(b); });
BENCHMARK_CAPTURE(importance, every8, {0, 8}, "every8")->Apply([](auto* b) { set_axes(b); });
BENCHMARK_CAPTURE(importance, every16, {0, 16}, "every16")->Apply([](auto* b) { set_axes(b); });

}  // namespace
