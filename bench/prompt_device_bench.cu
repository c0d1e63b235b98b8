// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Prompts from 16-bit vectors into pages on the device (8 heads, head_dim 128, k8v4 + k4v2, 40 %
// high, 40 % low, 20 % pruned), against a copy of the same 16-bit keys and values. What an
// operation changes is undone inside the graph, and the time of that alone is taken off.
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/compaction/prompt.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/policy/paper.hpp>

#include <cstring>
#include <memory>
#include <string>

#include "support/device_cache.hpp"
#include "support/hash.cuh"
#include "support/host_cache.hpp"

namespace {

using namespace diffkv;
using bench::bench_stream;
using bench::device_buffer;
using bench::on_device;
using diffkv::test::hash;

using plain = static_config<paper_policy, k8v4, k4v2, 128>;
using conditioned =
  static_config<paper_policy, k8v4, k4v2, 128, conditioning::centred | conditioning::rotated>;

constexpr std::uint32_t num_heads = 8;
constexpr int head_dim            = 128;

//! Bell-shaped numbers; each 16th dim is larger, as in real keys.
__global__ void fill_vectors_kernel(__half* x, std::size_t count, std::uint32_t seed)
{
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint32_t const h = hash(static_cast<std::uint32_t>(i) + seed);
    auto const sum        = static_cast<int>((h & 255) + (h >> 8 & 255) + (h >> 16 & 255)) - 383;
    x[i] = __float2half_rn(static_cast<float>(sum) * (i % 16 == 3 ? 0.03f : 0.0078125f));
  }
}

//! a_h = 1 and a_l = 0.02: 1.5 / i is high, 0.3 / i is low, 0.01 / i is pruned.
__global__ void fill_importances_kernel(float* x, std::size_t rows, std::int32_t tokens)
{
  std::size_t const step  = std::size_t{gridDim.x} * blockDim.x;
  std::size_t const count = rows * static_cast<std::size_t>(tokens);
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint32_t const fifth = hash(static_cast<std::uint32_t>(i) + 77u) % 5;
    float const factor        = fifth < 2 ? 1.5f : fifth < 4 ? 0.3f : 0.01f;
    auto const number         = static_cast<float>(i % static_cast<std::size_t>(tokens) + 1);
    x[i]                      = factor / number;
  }
}

//! The state after admission. CTA per row.
__global__ void admit_again_kernel(cache_ref cache, std::int32_t tokens)
{
  std::size_t const row     = blockIdx.x;
  std::uint32_t const pages = cache.tiers.most_pages(static_cast<std::uint32_t>(tokens));
  for (std::uint32_t i = threadIdx.x; i < cache.table.row_entries; i += blockDim.x) {
    cache.table.entry(row, tier::high, i) =
      i < pages ? page_id{static_cast<std::uint32_t>(row) * pages + i} : no_page;
  }
  if (threadIdx.x != 0) { return; }
  cache.state.rows[row]       = row_state{};
  cache.state.rows[row].pages = {pages, 0};
  if (row % num_heads == 0) {
    cache.state.layers[row / num_heads] = {tokens, {tokens, tokens, tokens}};
  }
  if (row == 0) { *cache.ring.tail = cache.ring.capacity; }
}

struct prompt_shape {
  std::uint32_t num_layers = 1;
  std::int32_t num_tokens  = 1;
  std::size_t rows() const { return std::size_t{num_layers} * num_heads; }
  std::size_t elements() const { return rows() * static_cast<std::size_t>(num_tokens) * head_dim; }
};

//! One prompt and a cache that holds nothing else.
template <class Config>
class workload {
 public:
  explicit workload(prompt_shape const& of, std::uint32_t seed)
    : of_{of},
      keys_{on_device<__half>(of.elements())},
      values_{on_device<__half>(of.elements())},
      importances_{on_device<float>(of.rows() * static_cast<std::size_t>(of.num_tokens))},
      tiers_{Config::layouts::pages},
      pages_{tiers_.most_pages(static_cast<std::uint32_t>(of.num_tokens))},
      num_pages_{static_cast<std::uint32_t>(of.rows()) * pages_},
      pool_{on_device<std::byte>(std::size_t{num_pages_} * Config::layouts::page_bytes)},
      ring_{on_device<page_id>(num_pages_)},
      counters_{on_device(std::vector<std::uint64_t>{num_pages_, num_pages_})},
      entries_{on_device<page_id>(num_pages_)},
      rows_{on_device<row_state>(of.rows())},
      window_{on_device<slot_index>(of.rows() * 64)},
      layers_{on_device<layer_state>(of.num_layers)},
      limits_{on_device(std::vector<thresholds>{{1.0f, 0.02f}})},
      offsets_{on_device(std::vector<float>(of.rows() * head_dim, 0.125f))},
      slots_{on_device(std::vector<std::uint32_t>{0})},
      workspace_{on_device<std::byte>(store_prompt_workspace_bytes(cache(), 1, {0, of.num_layers},
                                                                   of.num_tokens, paper_policy{}))}
  {
    fill_vectors_kernel<<<2048, 256, 0, bench_stream()>>>(keys_.data(), of.elements(), seed);
    fill_vectors_kernel<<<2048, 256, 0, bench_stream()>>>(values_.data(), of.elements(), seed + 1);
    fill_importances_kernel<<<2048, 256, 0, bench_stream()>>>(importances_.data(), of.rows(),
                                                              of.num_tokens);
    admit_again();
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
  }

  [[nodiscard]] cache_ref cache()
  {
    cache_ref c{};
    c.shape        = {1, of_.num_layers, num_heads, 4, head_dim, of_.num_tokens, 64, 4};
    c.tiers        = tiers_;
    c.pool         = {pool_.data(), num_pages_, Config::layouts::page_bytes};
    c.ring         = {ring_.data(), counters_.data(), counters_.data() + 1, num_pages_, nullptr};
    c.table        = {entries_.data(), pages_};
    c.state.rows   = rows_.data();
    c.state.window = window_.data();
    c.state.layers = layers_.data();
    c.state.window_tokens = 64;
    c.limits.data         = limits_.data();
    c.conditioned         = Config::conditioned;
    if (has(Config::conditioned, conditioning::centred)) { c.key_offsets = offsets_.data(); }
    return c;
  }
  void admit_again()
  {
    admit_again_kernel<<<static_cast<unsigned>(of_.rows()), 128, 0, bench_stream()>>>(
      cache(), of_.num_tokens);
  }
  void store()
  {
    prompt_source<__half> source;
    auto const stride              = static_cast<std::ptrdiff_t>(of_.num_tokens) * num_heads;
    source.key                     = packed<__half const>(keys_.data(), num_heads, head_dim);
    source.value                   = packed<__half const>(values_.data(), num_heads, head_dim);
    source.key_layer_stride        = stride * head_dim;
    source.value_layer_stride      = stride * head_dim;
    source.importances             = importances_.data();
    source.importance_layer_stride = stride;
    source.importance_head_stride  = of_.num_tokens;
    source.max_tokens              = of_.num_tokens;
    store_prompt<Config>(cache(), {slots_.data(), nullptr, 1}, source, {0, of_.num_layers}, {},
                         workspace_.data(), workspace_.size(), bench_stream());
  }
  //! Copies the 16-bit keys and values.
  void copy(std::byte* to)
  {
    std::size_t const bytes = of_.elements() * sizeof(__half);
    DIFFKV_CUDA_TRY(
      cudaMemcpyAsync(to, keys_.data(), bytes, cudaMemcpyDeviceToDevice, bench_stream()));
    DIFFKV_CUDA_TRY(
      cudaMemcpyAsync(to + bytes, values_.data(), bytes, cudaMemcpyDeviceToDevice, bench_stream()));
  }

  //! What differs from what the host twin makes of the same prompt, or nothing.
  [[nodiscard]] std::string difference_from_twin()
  {
    admit_again();
    store();
    auto const keys        = bench::to_host(keys_);
    auto const values      = bench::to_host(values_);
    auto const importances = bench::to_host(importances_);
    auto const rows        = bench::to_host(rows_);
    auto const entries     = bench::to_host(entries_);
    auto const pool        = bench::to_host(pool_);
    test::host_cache_parts parts;
    parts.shape       = cache().shape;
    parts.tiers       = tiers_;
    parts.num_pages   = num_pages_;
    parts.conditioned = Config::conditioned;
    parts.limits      = {{1.0f, 0.02f}};
    if (has(Config::conditioned, conditioning::centred)) {
      parts.key_offsets = bench::to_host(offsets_);
    }
    test::host_cache twin{parts};
    host::admission const prompt{0, of_.num_tokens};
    host::admit(twin.context(), &prompt, 1, paper_policy{});
    auto const n = static_cast<std::size_t>(of_.num_tokens) * num_heads;
    for (std::uint32_t l = 0; l < of_.num_layers; ++l) {
      host::store_prompt(
        twin.context(), 0, l, paper_policy{},
        packed<__half const>(keys.data() + l * n * head_dim, num_heads, head_dim),
        packed<__half const>(values.data() + l * n * head_dim, num_heads, head_dim),
        importances.data() + l * n);
    }
    for (std::size_t r = 0; r < of_.rows(); ++r) {
      row_state const& want = twin.ref().state.rows[r];
      if (rows[r].tokens != want.tokens || rows[r].pages != want.pages) { return "counts differ"; }
      row_view const view{&twin.ref(), r};
      for (tier t : {tier::high, tier::low}) {
        for (slot_index s = 0; s < want.tokens.of(t); s += block_tokens) {
          std::uint32_t const ordinal = s / tiers_.tokens_per_page(t);
          std::size_t const column    = t == tier::high ? ordinal : pages_ - 1u - ordinal;
          std::byte const* got =
            pool.data() + std::size_t{Config::layouts::page_bytes} *
                            static_cast<std::uint32_t>(entries[r * pages_ + column]);
          std::size_t const from =
            s % tiers_.tokens_per_page(t) / block_tokens *
            static_cast<std::size_t>(block_bytes(tiers_.of(t).format.key, head_dim));
          bool const is_full = s + block_tokens <= want.tokens.of(t);
          if (is_full && std::memcmp(got + from, view.page_of(t, s).bytes + from,
                                     static_cast<std::size_t>(
                                       block_bytes(tiers_.of(t).format.key, head_dim))) != 0) {
            return "keys differ";
          }
        }
      }
    }
    return {};
  }

 private:
  prompt_shape of_;
  device_buffer<__half> keys_;
  device_buffer<__half> values_;
  device_buffer<float> importances_;
  tier_pages tiers_;
  std::uint32_t pages_;
  std::uint32_t num_pages_;
  device_buffer<std::byte> pool_;
  device_buffer<page_id> ring_;
  device_buffer<std::uint64_t> counters_;
  device_buffer<page_id> entries_;
  device_buffer<row_state> rows_;
  device_buffer<slot_index> window_;
  device_buffer<layer_state> layers_;
  device_buffer<thresholds> limits_;
  device_buffer<float> offsets_;
  device_buffer<std::uint32_t> slots_;
  device_buffer<std::byte> workspace_;
};

template <class Config>
void store_prompts(benchmark::State& state, std::string const& figure)
{
  prompt_shape const shape{static_cast<std::uint32_t>(state.range(0)),
                           static_cast<std::int32_t>(state.range(1))};
  {
    workload<Config> small{{2, 5000}, 3};
    std::string const different = small.difference_from_twin();
    if (!different.empty()) { return state.SkipWithError(different.c_str()); }
  }
  // In turn, and more bytes together than any cache holds.
  std::size_t const bytes = 4 * shape.elements();
  int const count         = bytes < (std::size_t{1} << 28) ? 12 : 2;
  std::vector<std::unique_ptr<workload<Config>>> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(std::make_unique<workload<Config>>(shape, 10u * static_cast<std::uint32_t>(i)));
  }
  auto const to   = on_device<std::byte>(bytes);
  auto const time = [&](auto&& op) {
    return bench::graph_us_per_op(bench_stream(), count, 7,
                                  [&](int i) { op(*all[static_cast<std::size_t>(i % count)]); });
  };
  auto const copy = [&](workload<Config>& w) { w.copy(const_cast<std::byte*>(to.data())); };
  // The card's clock moves: the copy is timed before and after.
  double const copy_before = time(copy);
  double const undo        = time([](workload<Config>& w) { w.admit_again(); });
  double const both        = time([](workload<Config>& w) {
    w.admit_again();
    w.store();
  });
  double const copy_us     = 0.5 * (copy_before + time(copy));
  double const us          = both - undo;
  bench::report_us(state, us);
  state.counters["copy_us"]                                   = copy_us;
  state.counters["figure:manager.prompt_over_copy." + figure] = us / copy_us;
  state.counters["gigabytes_read_per_second"] = 0.8 * static_cast<double>(bytes) / us * 1e-3;
}

void plain_8b(benchmark::State& state) { store_prompts<plain>(state, "8b.4096"); }
void conditioned_8b(benchmark::State& state)
{
  store_prompts<conditioned>(state, "8b.4096.conditioned");
}
void plain_one_layer(benchmark::State& state)
{
  store_prompts<plain>(state, "one_layer." + std::to_string(state.range(1)));
}
void conditioned_one_layer(benchmark::State& state)
{
  store_prompts<conditioned>(state, "one_layer." + std::to_string(state.range(1)) + ".conditioned");
}

template <class Bench>
void set_axes(Bench* bench, std::int64_t layers, std::int64_t tokens)
{
  bench->ArgNames({"layers", "tokens"})
    ->Args({layers, tokens})
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(plain_8b)->Apply([](auto* b) { set_axes(b, 32, 4096); });
BENCHMARK(conditioned_8b)->Apply([](auto* b) { set_axes(b, 32, 4096); });
BENCHMARK(plain_one_layer)->Apply([](auto* b) { set_axes(b, 1, 131'072); });
BENCHMARK(conditioned_one_layer)->Apply([](auto* b) { set_axes(b, 1, 131'072); });
BENCHMARK(plain_one_layer)->Apply([](auto* b) { set_axes(b, 1, 4096); });

}  // namespace
