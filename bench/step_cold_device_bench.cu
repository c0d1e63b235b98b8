// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// A generation step's write path that finds nothing in the L2 cache, as after a layer's attention
// has read gigabytes: `step` for all layers, and `append` of a layer, each with a cold cache in
// front.
#include "cold_caches.cuh"
#include "step_workload.cuh"

#include <diffkv/host/step.hpp>

#include <numeric>
#include <utility>

namespace {

using namespace diffkv;
using bench::bench_stream;
constexpr auto both = conditioning::centred | conditioning::rotated;
using plain         = static_config<paper_policy, k8v4, k4v2, 128>;
using conditioned   = static_config<paper_policy, k8v4, k4v2, 128, both>;

constexpr int replays = 9;

//! Every layer of a step is given the same vectors.
template <class Config>
struct cold_work {
  explicit cold_work(bench::step_shape const& shape) : cache{shape, bench_stream()}
  {
    std::vector<__half> numbers(elements());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      auto const h = bench::step_fill::hash(static_cast<std::uint32_t>(i), 7);
      numbers[i]   = __float2half_rn(static_cast<float>(h >> 8) * 0x1.0p-22f - 2.0f);
    }
    inputs = bench::on_device(numbers);
    host   = std::move(numbers);
    cache.rewind();
  }
  [[nodiscard]] std::size_t elements() const
  {
    cache_shape const& s = cache.ref().shape;
    return std::size_t{s.num_slots} * s.num_heads * static_cast<std::size_t>(s.head_dim);
  }
  [[nodiscard]] vectors<__half const> of(__half const* x, std::uint32_t heads) const
  {
    return packed<__half const>(x, heads, cache.ref().shape.head_dim);
  }
  void append(std::uint32_t layer)
  {
    cache_shape const& s = cache.ref().shape;
    auto const kv        = of(inputs.data(), s.num_heads);
    diffkv::append<Config>(cache.ref(), cache.batch(), layer, kv, kv, of(nullptr, s.num_q_heads()),
                           bench_stream());
  }
  //! What a step and its appends leave that the host twin does not.
  [[nodiscard]] std::string difference_from_twin()
  {
    cache_shape const s = cache.ref().shape;
    auto const twin     = cache.to_host();
    std::vector<std::uint32_t> slots(s.num_slots);
    std::iota(slots.begin(), slots.end(), 0u);
    cache.step();
    host::step(twin->context(), slots.data(), s.num_slots, paper_policy{});
    for (std::uint32_t layer = 0; layer < s.num_layers; ++layer) {
      append(layer);
      auto const kv = of(host.data(), s.num_heads);
      host::append(twin->context(), slots.data(), s.num_slots, layer, kv, kv,
                   of(nullptr, s.num_q_heads()));
    }
    return test::difference_of(twin->ref(), cache.to_host()->ref());
  }

  bench::step_cache<Config> cache;
  bench::device_buffer<__half> inputs{};
  std::vector<__half> host{};
};

template <class Config>
void cold_step(benchmark::State& state, std::string const& name)
{
  bench::step_shape shape;
  shape.batch                 = 2;
  shape.num_layers            = 3;
  std::string const different = cold_work<Config>{shape}.difference_from_twin();
  if (!different.empty()) { return state.SkipWithError(different.c_str()); }
  shape       = {};
  shape.batch = static_cast<std::uint32_t>(state.range(0));
  cold_work<Config> work{shape};
  bench::cold_caches cold;
  double const all_layers = cold.us_per_op(
    3, replays, [&](int) { work.cache.step(); }, [&] { work.cache.rewind(); });
  work.cache.rewind();
  work.cache.step();  // now every row has a slot, which an append may write again
  double const append = cold.us_per_op(
    8, replays, [&](int i) { work.append(static_cast<std::uint32_t>(i) % shape.num_layers); });
  if (work.cache.refused() != 0) { return state.SkipWithError("pages ran out"); }
  bench::report_us(state, all_layers + append * shape.num_layers,
                   "manager.step_us." + name + ".cold");
  state.counters["append_us_per_layer"] = append;
  state.counters["step_all_layers_us"]  = all_layers;
}

[[maybe_unused]] bool const registered = [] {
  struct step_case {
    char const* name;
    int batch;
  };
  for (step_case const& c :
       {step_case{"8b.1", 1}, step_case{"8b.32", 32}, step_case{"8b.128", 128}}) {
    for (auto const& [suffix, run] :
         {std::pair{"", &cold_step<plain>}, std::pair{".conditioned", &cold_step<conditioned>}}) {
      std::string const name = std::string{c.name} + suffix;
      benchmark::RegisterBenchmark(("cold_step/" + name).c_str(),
                                   [run = run, name](benchmark::State& state) { run(state, name); })
        ->ArgName("batch")
        ->Arg(c.batch)
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
