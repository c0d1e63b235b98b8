// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// The work plan of a step, for all layers in one launch: microseconds of one launch in a graph,
// with caches taken in turn. Rows hold about 40 % of 4096 tokens in each tier, no two the same.
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/attention/decode_plan.cuh>
#include <diffkv/host/decode_plan.hpp>
#include <diffkv/policy/paper.hpp>

#include <memory>
#include <numeric>
#include <random>

namespace {

using namespace diffkv;
using bench::bench_stream;
using bench::device_buffer;
using bench::on_device;

using config = static_config<paper_policy, k8v4, k4v2, 128>;

constexpr int tokens = 4096;

cache_shape shape_of(std::uint32_t batch, std::uint32_t layers)
{
  return {batch, layers, 8, 4, 128, 2 * tokens, 64, 4};
}

//! State and table of a cache, on both sides; nothing else of it is looked at.
struct plan_cache {
  plan_cache(std::uint32_t batch, std::uint32_t layers, decode_grid grid, unsigned seed)
    : shape{shape_of(batch, layers)},
      row_entries{config::layouts::pages.most_pages(static_cast<std::uint32_t>(shape.max_tokens))},
      rows(shape.num_rows()),
      states(std::size_t{batch} * layers, {tokens, {tokens - 100, 64, tokens - 3}}),
      entries(shape.num_rows() * row_entries),
      slots(batch)
  {
    std::mt19937 random{seed};
    auto const about = [&] {
      return static_cast<std::uint32_t>(tokens * 3 / 10 + random() % (tokens / 5));
    };
    for (row_state& row : rows) {
      row.tokens      = {about(), about()};
      row.append_slot = row.tokens.high - 1;
    }
    for (page_id& id : entries) { id = page_id{static_cast<std::uint32_t>(random())}; }
    std::iota(slots.begin(), slots.end(), 0u);
    rows_d    = on_device(rows);
    states_d  = on_device(states);
    entries_d = on_device(entries);
    slots_d   = on_device(slots);
    count_d   = on_device(std::vector<std::uint32_t>{batch});
    bytes     = decode_workspace_bytes(shape, batch, {0, layers}, grid, 0);
    memory    = on_device<std::byte>(bytes);
    work      = make_decode_workspace(memory.data(), bytes, shape, batch, {0, layers}, grid, 0);
  }
  [[nodiscard]] cache_ref cache(row_state* r, layer_state* l, page_id* e) const
  {
    cache_ref c{};
    c.shape        = shape;
    c.tiers        = config::layouts::pages;
    c.state.rows   = r;
    c.state.layers = l;
    c.table        = {e, row_entries};
    return c;
  }
  void plan()
  {
    plan_decode<config>(cache(rows_d.data(), states_d.data(), entries_d.data()),
                        {slots_d.data(), count_d.data(), shape.num_slots}, {0, shape.num_layers},
                        work, bench_stream());
  }
  [[nodiscard]] bool equals_twin()
  {
    plan();
    std::vector<std::byte> space(bytes + workspace_alignment);
    void* memory_h        = space.data();
    std::size_t available = space.size();
    std::align(workspace_alignment, bytes, memory_h, available);
    host::plan_decode(cache(rows.data(), states.data(), entries.data()),
                      {slots.data(), nullptr, shape.num_slots}, {0, shape.num_layers},
                      make_decode_workspace(memory_h, bytes, shape, shape.num_slots,
                                            {0, shape.num_layers}, work.grid, 0));
    auto const got  = bench::to_host(memory);
    auto const same = [&](auto const* member, std::size_t count) {
      auto const at =
        static_cast<std::size_t>(reinterpret_cast<std::byte const*>(member) - memory.data());
      return std::equal(got.begin() + static_cast<std::ptrdiff_t>(at),
                        got.begin() + static_cast<std::ptrdiff_t>(at + count * sizeof *member),
                        static_cast<std::byte const*>(memory_h) + at);
    };
    std::size_t const layers = shape.num_layers;
    return same(work.ranges, layers * work.grid.num_warps()) &&
           same(work.rows, layers * work.num_rows) &&
           same(work.sequences, layers * work.capacity) && same(work.totals, layers) &&
           same(work.arrivals, work.grid.ctas);
  }

  cache_shape shape;
  std::uint32_t row_entries;
  std::vector<row_state> rows;
  std::vector<layer_state> states;
  std::vector<page_id> entries;
  std::vector<std::uint32_t> slots;
  std::size_t bytes = 0;
  device_buffer<row_state> rows_d;
  device_buffer<layer_state> states_d;
  device_buffer<page_id> entries_d;
  device_buffer<std::uint32_t> slots_d;
  device_buffer<std::uint32_t> count_d;
  device_buffer<std::byte> memory;
  decode_workspace_ref work;
};

void plan_layers(benchmark::State& state, std::string const& figure)
{
  auto const batch  = static_cast<std::uint32_t>(state.range(0));
  auto const layers = static_cast<std::uint32_t>(state.range(1));
  decode_grid const grid{132, 8, 1};
  std::vector<std::unique_ptr<plan_cache>> caches;
  for (unsigned i = 0; i < 4; ++i) {
    caches.push_back(std::make_unique<plan_cache>(batch, layers, grid, 7 + i));
    if (i == 0 && !caches[0]->equals_twin()) {
      return state.SkipWithError("the plan differs from the host twin's");
    }
  }
  double const us = bench::graph_us_per_op(
    bench_stream(), 20, 15, [&](int i) { caches[static_cast<std::size_t>(i) % 4]->plan(); });
  bench::report_us(state, us, figure);
  state.counters["rows_of_a_layer"] = static_cast<double>(batch) * 8;
}

[[maybe_unused]] bool const registered = [] {
  struct plan_case {
    char const* name;
    int batch, layers;
    char const* figure;
  };
  for (plan_case const& c :
       {plan_case{"8b.8", 8, 32, ""}, plan_case{"8b.32", 32, 32, ""},
        plan_case{"8b.128", 128, 32, "attention.plan_us.8b.128"}, plan_case{"8b.256", 256, 32, ""},
        plan_case{"70b.128", 128, 80, ""}, plan_case{"70b.256", 256, 80, ""},
        plan_case{"one_layer.128", 128, 1, ""}, plan_case{"one_layer.12500", 12'500, 1, ""}}) {
    benchmark::RegisterBenchmark(
      (std::string{"device_plan/"} + c.name).c_str(),
      [figure = std::string{c.figure}](benchmark::State& state) { plan_layers(state, figure); })
      ->ArgNames({"batch", "layers"})
      ->Args({c.batch, c.layers})
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
