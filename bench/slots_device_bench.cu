// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Admission and release of whole sequences at the shape of Llama3-8B (32 layers of 8 heads). What
// an operation changes is undone inside the graph, and the time of that alone is taken off.
#include "bench_inputs.hpp"
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/compaction/admit.cuh>
#include <diffkv/compaction/release.cuh>
#include <diffkv/page/tier_layouts.hpp>
#include <diffkv/policy/paper.hpp>
#include <diffkv/pool/init_ring.cuh>

#include <algorithm>
#include <numeric>

namespace {

using namespace diffkv;
using bench::bench_stream;
using bench::device_buffer;
using bench::on_device;

//! Without the bytes of the pages: neither operation touches them.
struct slots {
  slots(std::uint32_t count, std::int32_t tokens)
    : num_slots{count},
      shape{count, 32, 8, 4, 128, tokens, 64, 4},
      tiers{tier_layouts<k8v4, k4v2, 128>::pages},
      row_entries{tiers.most_pages(static_cast<std::uint32_t>(tokens))},
      total{std::uint64_t{row_entries} * shape.num_rows()},
      ring{make_free_ring(static_cast<std::uint32_t>(total) + 77, false,
                          cuda_async_resource{bench_stream()}, bench_stream())},
      entries{on_device<page_id>(total)},
      rows{on_device<row_state>(shape.num_rows())},
      candidates{
        on_device<candidate>(shape.num_rows() * num_stored_tiers * shape.candidates_per_tier())},
      layers{on_device<layer_state>(std::size_t{count} * shape.num_layers)},
      numbers{on_device(all_slots())},
      lengths{on_device(std::vector<std::int32_t>(count, tokens))},
      workspace{on_device<std::byte>(
        std::max(admit_workspace_bytes(count), release_slots_workspace_bytes(shape, count)))}
  {}
  [[nodiscard]] cache_ref cache()
  {
    cache_ref c{};
    c.shape                     = shape;
    c.tiers                     = tiers;
    c.ring                      = ring.ref();
    c.table                     = {entries.data(), row_entries};
    c.state.rows                = rows.data();
    c.state.candidates          = candidates.data();
    c.state.candidates_per_tier = shape.candidates_per_tier();
    c.state.layers              = layers.data();
    return c;
  }
  [[nodiscard]] std::vector<std::uint32_t> all_slots() const
  {
    std::vector<std::uint32_t> all(num_slots);
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  void admit()
  {
    diffkv::admit(cache(), {numbers.data(), nullptr, num_slots}, lengths.data(), paper_policy{},
                  workspace.data(), workspace.size(), {}, bench_stream());
  }
  void release()
  {
    release_slots(cache(), {numbers.data(), nullptr, num_slots}, workspace.data(), workspace.size(),
                  nullptr, bench_stream());
  }
  //! Free slots with pages in the table: admission sees nothing of them.
  void set_pages(std::uint32_t high, std::uint32_t low);
  //! Pages that are free, by the counters.
  [[nodiscard]] std::uint64_t num_free()
  {
    std::uint64_t head = 0, tail = 0;
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
    DIFFKV_CUDA_TRY(cudaMemcpy(&head, ring.ref().head, sizeof head, cudaMemcpyDeviceToHost));
    DIFFKV_CUDA_TRY(cudaMemcpy(&tail, ring.ref().tail, sizeof tail, cudaMemcpyDeviceToHost));
    return tail - head;
  }

  std::uint32_t num_slots;
  cache_shape shape;
  tier_pages tiers;
  std::uint32_t row_entries;
  std::uint64_t total;
  free_ring<cuda_async_resource> ring;
  device_buffer<page_id> entries;
  device_buffer<row_state> rows;
  device_buffer<candidate> candidates;
  device_buffer<layer_state> layers;
  device_buffer<std::uint32_t> numbers;
  device_buffer<std::int32_t> lengths;
  device_buffer<std::byte> workspace;
};

__global__ void set_pages_kernel(row_state* rows, std::size_t count, tier_counts pages)
{
  diffkv::detail::wait_for_previous();
  std::size_t const r = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r < count) { rows[r].pages = pages; }
}

void slots::set_pages(std::uint32_t high, std::uint32_t low)
{
  auto const grid = static_cast<unsigned>((shape.num_rows() + 255) / 256);
  diffkv::detail::launch(set_pages_kernel, {grid, 256, 0, true}, bench_stream(), rows.data(),
                         shape.num_rows(), tier_counts{high, low});
}

//! Admission takes what it should, and release brings all of it back.
bool are_right(slots& work)
{
  std::uint64_t const capacity = work.ring.ref().capacity;
  work.set_pages(0, 0);
  work.admit();
  if (work.num_free() != capacity - work.total) { return false; }
  work.release();
  return work.num_free() == capacity;
}

constexpr int replays = 15;

void admit_slots(benchmark::State& state)
{
  slots work{static_cast<std::uint32_t>(state.range(0)), static_cast<std::int32_t>(state.range(1))};
  if (!are_right(work)) { return state.SkipWithError("pages are not conserved"); }
  // An undone admission leaves its pages claimed; a ring that is never empty stands for release.
  std::uint64_t const tail = std::uint64_t{1} << 50;
  DIFFKV_CUDA_TRY(cudaMemcpy(work.ring.ref().tail, &tail, sizeof tail, cudaMemcpyHostToDevice));
  bench::report_us(state, bench::graph_us_behind(
                            bench_stream(), 8, replays, [&](int) { work.set_pages(0, 0); },
                            [&](int) { work.admit(); }));
  state.counters["pages"] = static_cast<double>(work.total);
}
BENCHMARK(admit_slots)
  ->ArgNames({"sequences", "tokens"})
  ->Args({1, 4096})
  ->Args({16, 4096})
  ->Args({128, 1024})
  ->Apply(bench::reports_us);

void release_all_pages(benchmark::State& state)
{
  slots work{static_cast<std::uint32_t>(state.range(0)), static_cast<std::int32_t>(state.range(1))};
  if (!are_right(work)) { return state.SkipWithError("pages are not conserved"); }
  std::uint32_t const high = work.row_entries * 2 / 3;
  bench::report_us(state, bench::graph_us_behind(
                            bench_stream(), 8, replays,
                            [&](int) { work.set_pages(high, work.row_entries - high); },
                            [&](int) { work.release(); }));
  state.counters["pages"] = static_cast<double>(work.total);
}
BENCHMARK(release_all_pages)
  ->ArgNames({"sequences", "tokens"})
  ->Args({1, 1024})
  ->Args({1, 4096})
  ->Args({64, 768})
  ->Args({128, 1024})
  ->Args({128, 11'000})
  ->Apply(bench::reports_us);

//! Baseline: as many page ids copied from device memory to device memory.
void copy_page_ids(benchmark::State& state)
{
  slots const work{static_cast<std::uint32_t>(state.range(0)),
                   static_cast<std::int32_t>(state.range(1))};
  auto to         = on_device<page_id>(work.total);
  double const us = bench::graph_us_per_op(bench_stream(), 8, replays, [&](int) {
    DIFFKV_CUDA_TRY(cudaMemcpyAsync(to.data(), work.entries.data(), work.total * sizeof(page_id),
                                    cudaMemcpyDeviceToDevice, bench_stream()));
  });
  bench::report_us(state, us);
}
BENCHMARK(copy_page_ids)
  ->ArgNames({"sequences", "tokens"})
  ->Args({64, 768})
  ->Args({128, 1024})
  ->Args({128, 11'000})
  ->Apply(bench::reports_us);

}  // namespace
