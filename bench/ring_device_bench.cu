// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Claim and release of pages on the device, beside the host twin, a CPU manager with its transfers,
// and a copy of the same bytes. Times are microseconds of one operation in a graph; `cold` ones
// find nothing of theirs in the L2 cache.
#include "bench_inputs.hpp"
#include "claim_workload.cuh"
#include "cold_caches.cuh"
#include "cpu_manager.hpp"
#include "graph_time.hpp"

#include <cub/device/device_scan.cuh>

#include <chrono>

namespace {

using namespace diffkv;
using bench::bench_stream;
using bench::caches;
using bench::claims;
using bench::claims_are_right;
using bench::on_device;
using bench::rows_per_sequence;
using bench::to_host;

constexpr int replays = 15;

void of_three_sizes(benchmark::internal::Benchmark* bench)
{
  bench->ArgName("rows")->Arg(1'024)->Arg(32'768)->Arg(1'000'000)->Apply(bench::reports_us);
}

std::string figure_of(benchmark::State const& state, char const* suffix)
{
  std::int64_t const rows = state.range(0);
  bool const asked        = (rows == 32'768 || rows == 1'000'000) && state.range(1) == 2;
  return asked ? "manager.claim_us." + std::to_string(rows) + suffix : std::string{};
}

void claim_rows(benchmark::State& state)
{
  auto const all =
    caches(static_cast<std::uint32_t>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto const& one : all) {
    if (!claims_are_right(*one)) { return state.SkipWithError("the claim differs from its twin"); }
    one->set(std::uint64_t{1} << 40);  // never short, however many claims
  }
  double const us = bench::graph_us_per_op(bench_stream(), 16, replays, [&](int i) {
    all[static_cast<std::size_t>(i) % all.size()]->claim();
  });
  bench::report_us(state, us, figure_of(state, ""));
  bench::report_bytes(state, all[0]->bytes());
}
BENCHMARK(claim_rows)
  ->ArgNames({"rows", "caches"})
  ->ArgsProduct({{256, 1'024, 8'192, 32'768, 81'920, 262'144, 1'000'000}, {2}})
  ->Args({32'768, 1})
  ->Args({1'000'000, 1})
  ->Args({1'000'000, 4})
  ->Apply(bench::reports_us);

//! The ring holds half of what is wanted.
void claim_rows_short(benchmark::State& state)
{
  auto const all =
    caches(static_cast<std::uint32_t>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto const& one : all) {
    if (!claims_are_right(*one)) { return state.SkipWithError("the claim differs from its twin"); }
  }
  auto const set = [&](int i) {
    auto& one = *all[static_cast<std::size_t>(i) % all.size()];
    one.set(one.total / 2);
  };
  double const us = bench::graph_us_behind(bench_stream(), 16, replays, set, [&](int i) {
    all[static_cast<std::size_t>(i) % all.size()]->claim();
  });
  bench::report_us(state, us, figure_of(state, ".short"));
}
BENCHMARK(claim_rows_short)
  ->ArgNames({"rows", "caches"})
  ->ArgsProduct({{1'024, 32'768, 1'000'000}, {2}})
  ->Apply(bench::reports_us);

//! Nothing of the rows or the ring lies in the L2 cache.
void claim_rows_cold(benchmark::State& state)
{
  auto const rows = static_cast<std::uint32_t>(state.range(0));
  claims work{rows, 7};
  if (!claims_are_right(work)) { return state.SkipWithError("the claim differs from its twin"); }
  work.set(std::uint64_t{1} << 40);  // never short, however many claims
  bench::cold_caches cold;
  std::string const figure =
    rows == 1'024 ? "" : "manager.claim_us." + std::to_string(rows) + ".cold";
  bench::report_us(state, cold.us_per_op(16, replays, [&](int) { work.claim(); }), figure);
}
BENCHMARK(claim_rows_cold)->Apply(of_three_sizes);

//! A list of as many pages as the rows claim.
void release_list(benchmark::State& state)
{
  auto const all = caches(static_cast<std::uint32_t>(state.range(0)), 2);
  for (auto const& one : all) {
    if (!claims_are_right(*one)) { return state.SkipWithError("the claim differs from its twin"); }
    one->set(one->capacity);
    one->claim();
  }
  double const us = bench::graph_us_per_op(bench_stream(), 16, replays, [&](int i) {
    all[static_cast<std::size_t>(i) % all.size()]->release();
  });
  bench::report_us(state, us);
  state.counters["pages"] = static_cast<double>(all[0]->total);
}
BENCHMARK(release_list)->Apply(of_three_sizes);

//! Baseline: device memory copied to device memory, as many bytes as a claim reads and writes.
void copy_of_the_same_bytes(benchmark::State& state)
{
  claims const work{static_cast<std::uint32_t>(state.range(0)), 7};
  std::size_t const half = work.bytes() / 2;
  auto const from        = on_device<std::byte>(2 * half);
  auto to                = on_device<std::byte>(2 * half);
  double const us        = bench::graph_us_per_op(bench_stream(), 16, replays, [&](int i) {
    std::size_t const at = i % 2 == 0 ? 0 : half;
    DIFFKV_CUDA_TRY(cudaMemcpyAsync(to.data() + at, from.data() + at, half,
                                           cudaMemcpyDeviceToDevice, bench_stream()));
  });
  bench::report_us(state, us);
  bench::report_bytes(state, work.bytes());
}
BENCHMARK(copy_of_the_same_bytes)->Apply(of_three_sizes);

//! Comparison: the library's scan of the same demand into 32-bit offsets, and nothing else: no grants,
//! no ids, no counters.
void scan_by_cub(benchmark::State& state)
{
  claims work{static_cast<std::uint32_t>(state.range(0)), 7};
  auto offsets          = on_device<std::uint32_t>(work.demand.size());
  auto const rows       = static_cast<int>(work.demand.size());
  std::size_t num_bytes = 0;
  DIFFKV_CUDA_TRY(cub::DeviceScan::ExclusiveSum(nullptr, num_bytes, work.demand_d.data(),
                                                offsets.data(), rows, bench_stream()));
  auto space      = on_device<std::byte>(num_bytes);
  double const us = bench::graph_us_per_op(bench_stream(), 16, replays, [&](int) {
    DIFFKV_CUDA_TRY(cub::DeviceScan::ExclusiveSum(space.data(), num_bytes, work.demand_d.data(),
                                                  offsets.data(), rows, bench_stream()));
  });
  std::vector<std::uint32_t> expected(work.demand.size());
  std::exclusive_scan(work.demand.begin(), work.demand.end(), expected.begin(), 0u);
  if (to_host(offsets) != expected) { return state.SkipWithError("the scan is wrong"); }
  bench::report_us(state, us);
}
BENCHMARK(scan_by_cub)->Apply(of_three_sizes);

//! Baseline: the host twin, one thread, everything in host memory already.
void claim_by_host_twin(benchmark::State& state)
{
  claims const work{static_cast<std::uint32_t>(state.range(0)), 7};
  free_ring<> ring{work.capacity, false};
  std::vector<std::uint64_t> offsets(work.demand.size());
  std::vector<page_id> ids(work.total);
  std::vector<std::uint8_t> granted(work.sequences);
  for (auto _ : state) {
    *ring.ref().head = 0;
    host::claim(ring.ref(), {work.demand.data(),
                             work.sequences,
                             rows_per_sequence,
                             offsets.data(),
                             ids.data(),
                             granted.data(),
                             {}});
    benchmark::DoNotOptimize(ids.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(claim_by_host_twin)
  ->ArgName("rows")
  ->Arg(1'024)
  ->Arg(32'768)
  ->Arg(1'000'000)
  ->Unit(benchmark::kMicrosecond);

//! Baseline: the CPU manager. Demand comes up, all cores claim, offsets and ids go down.
void claim_by_cpu_manager(benchmark::State& state)
{
  claims work{static_cast<std::uint32_t>(state.range(0)), 7};
  bench::cpu_manager manager;
  auto const by_manager = [&](auto const& ring, auto const& request) {
    manager.claim(ring, request);
  };
  if (!work.equals(work.capacity, by_manager) || !work.equals(work.total / 2, by_manager)) {
    return state.SkipWithError("the CPU manager answers otherwise");
  }
  using pinned = diffkv::cuda_pinned_resource;
  free_ring<> ring{work.capacity, false};
  buffer<std::uint32_t, pinned> demand(work.demand.size());
  buffer<std::uint64_t, pinned> offsets(work.demand.size());
  buffer<page_id, pinned> ids(work.total);
  buffer<std::uint8_t, pinned> granted(work.sequences);
  auto const copy = [](auto* to, auto const* from, std::size_t count) {
    DIFFKV_CUDA_TRY(
      cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyDefault, bench_stream()));
  };
  std::vector<double> times;
  for (int i = 0; i < 60; ++i) {
    *ring.ref().head = 0;
    auto const begin = std::chrono::steady_clock::now();
    copy(demand.data(), work.demand_d.data(), demand.size());
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
    manager.claim(ring.ref(), {demand.data(),
                               work.sequences,
                               rows_per_sequence,
                               offsets.data(),
                               ids.data(),
                               granted.data(),
                               {}});
    copy(work.offsets.data(), offsets.data(), offsets.size());
    copy(work.ids.data(), ids.data(), ids.size());
    copy(work.granted.data(), granted.data(), granted.size());
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
    std::chrono::duration<double, std::micro> const took = std::chrono::steady_clock::now() - begin;
    if (i >= 10) { times.push_back(took.count()); }
  }
  double const cpu = bench::median(times);
  work.set(std::uint64_t{1} << 40);  // never short
  double const device =
    bench::graph_us_per_op(bench_stream(), 16, replays, [&](int) { work.claim(); });
  bench::report_us(state, cpu);
  state.counters["threads"]     = manager.num_threads();
  state.counters["over_device"] = cpu / device;
  // Claims alone, of a step of 128 sequences of 32 layers of 8 heads; nobody's tokens move here.
  if (state.range(0) == 32'768) {
    state.counters["figure:manager.cpu_over_gpu.8b.128"] = cpu / device;
  }
}
BENCHMARK(claim_by_cpu_manager)->Apply(of_three_sizes);

}  // namespace
