// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// A generation step's write path on the device: `step` for all layers, and `append` of every layer.
// Microseconds of one step inside a CUDA graph, several caches in turn; 38 % of the rows requantise
// a token. Rows hold about five pages of 7168 bytes. Scores are kept (k = 4). An attention kernel
// that has the queries at hand puts them into the lag ring by itself; `with_queries` (`queries` =
// 1) is for one that does not: `append` writes those of the group, too (4 q_heads a head, f32).
#include "step_workload.cuh"

#include <diffkv/host/step.hpp>

#include <memory>

#include "support/step_run.cuh"

namespace {

using namespace diffkv;
using bench::step_shape;
constexpr auto both = conditioning::centred | conditioning::rotated;
using plain         = static_config<paper_policy, k8v4, k4v2, 128>;
using conditioned   = static_config<paper_policy, k8v4, k4v2, 128, both>;

cudaStream_t bench_stream()
{
  static cudaStream_t const stream = [] {
    cudaStream_t s = nullptr;
    DIFFKV_CUDA_TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }();
  return stream;
}

//! 1: `step` alone, 2: appends alone, 3: both.
enum part : int { step_only = 1, appends_only = 2, whole = 3 };

//! Caches in turn, and the inputs of their appends.
template <class Config>
struct workload {
  workload(step_shape const& shape, int num_caches, bool queries) : with_queries{queries}
  {
    for (int i = 0; i < num_caches; ++i) {
      caches.push_back(std::make_unique<bench::step_cache<Config>>(shape, bench_stream()));
    }
    std::size_t const n = caches[0]->input_elements();
    std::vector<__half> numbers(1u << 20);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      auto const h = bench::step_fill::hash(static_cast<std::uint32_t>(i), 7);
      numbers[i]   = __float2half_rn((static_cast<float>(h >> 8) * 0x1.0p-24f - 0.5f) * 4.0f);
    }
    inputs = bench::device_memory<__half>(owned, n);
    for (std::size_t i = 0; i < n; i += numbers.size()) {
      std::size_t const count = std::min(numbers.size(), n - i);
      DIFFKV_CUDA_TRY(
        cudaMemcpy(inputs + i, numbers.data(), count * sizeof(__half), cudaMemcpyHostToDevice));
    }
  }
  ~workload()
  {
    for (void* p : owned) { cudaFree(p); }
  }
  void rewind()
  {
    for (auto& c : caches) { c->rewind(); }
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
  }
  void run(int i, int parts)
  {
    auto& cache = *caches[static_cast<std::size_t>(i) % caches.size()];
    if ((parts & step_only) != 0) { cache.step(); }
    if ((parts & appends_only) != 0) { cache.append(inputs, with_queries); }
  }

  bool with_queries = false;
  std::vector<std::unique_ptr<bench::step_cache<Config>>> caches;
  std::vector<void*> owned;
  __half* inputs = nullptr;
};

//! Two steps of a cache by both processors; what differs.
template <class Config>
std::string difference_from_twin(workload<Config>& work)
{
  work.rewind();
  auto const twin          = work.caches[0]->to_host();
  cache_shape const& shape = twin->shape();
  std::vector<std::uint32_t> slots(shape.num_slots);
  for (std::uint32_t s = 0; s < shape.num_slots; ++s) { slots[s] = s; }
  std::vector<__half> inputs(work.caches[0]->input_elements());
  DIFFKV_CUDA_TRY(
    cudaMemcpy(inputs.data(), work.inputs, inputs.size() * sizeof(__half), cudaMemcpyDeviceToHost));
  std::size_t const kv =
    std::size_t{shape.num_slots} * shape.num_heads * static_cast<unsigned>(shape.head_dim);
  for (int i = 0; i < 2; ++i) {
    work.run(0, whole);
    host::step(twin->context(), slots.data(), shape.num_slots, paper_policy{});
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      __half const* const from = inputs.data() + layer * (2 + shape.group_size) * kv;
      host::append(
        twin->context(), slots.data(), shape.num_slots, layer,
        packed(from, shape.num_heads, shape.head_dim),
        packed(from + kv, shape.num_heads, shape.head_dim),
        packed(work.with_queries ? from + 2 * kv : nullptr, shape.num_q_heads(), shape.head_dim));
    }
  }
  return test::difference_of(twin->ref(), work.caches[0]->to_host()->ref());
}

//! Median over replays, each from the same state, of (3 n steps - n steps) / 2 n.
template <class Config>
double us_per_step(workload<Config>& work, int parts, int n, int replays)
{
  auto const op = [&](int i) { work.run(i, parts); };
  work.rewind();
  bench::captured_graph const few{bench_stream(), n, op};
  bench::captured_graph const many{bench_stream(), 3 * n, op};
  std::vector<double> times_few, times_many;
  for (int r = 0; r < replays + 2; ++r) {
    work.rewind();
    double const a = few.replay_us();
    work.rewind();
    double const b = many.replay_us();
    if (r < 2) { continue; }
    times_few.push_back(a);
    times_many.push_back(b);
  }
  return (bench::median(times_many) - bench::median(times_few)) / (2 * n);
}

//! Share of the rows whose low part grew in one step.
template <class Config>
double requantising_share(workload<Config>& work)
{
  auto& cache         = *work.caches[0];
  std::size_t const n = cache.ref().shape.num_rows();
  std::vector<row_state> before(n), after(n);
  work.rewind();
  DIFFKV_CUDA_TRY(cudaMemcpy(before.data(), cache.ref().state.rows, n * sizeof(row_state),
                             cudaMemcpyDeviceToHost));
  cache.step();
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
  DIFFKV_CUDA_TRY(cudaMemcpy(after.data(), cache.ref().state.rows, n * sizeof(row_state),
                             cudaMemcpyDeviceToHost));
  std::size_t grown = 0;
  for (std::size_t r = 0; r < n; ++r) { grown += after[r].tokens.low > before[r].tokens.low; }
  return static_cast<double>(grown) / static_cast<double>(n);
}

//! Arguments: batch, layers, whether queries are written.
template <class Config>
void device_step(benchmark::State& state, std::string const& name)
{
  step_shape shape;
  shape.batch             = static_cast<std::uint32_t>(state.range(0));
  shape.num_layers        = static_cast<std::uint32_t>(state.range(1));
  bool const with_queries = state.range(2) != 0;
  {
    step_shape one = shape;
    one.batch      = 2;
    one.num_layers = 4;
    workload<Config> small{one, 1, with_queries};
    std::string const different = difference_from_twin(small);
    if (!different.empty()) { return state.SkipWithError(different.c_str()); }
  }
  workload<Config> work{shape, shape.batch <= 32 ? 8 : 4, with_queries};
  bool const is_plain = Config::conditioned == conditioning::none;
  int const n         = static_cast<int>(work.caches.size());
  double const all    = us_per_step(work, whole, n, 9);
  double const step   = us_per_step(work, step_only, n, 9);
  if (work.caches[0]->refused() != 0) { return state.SkipWithError("pages ran out"); }
  for (auto _ : state) { state.SetIterationTime(all * 1e-6); }
  state.counters["step_all_layers_us"]  = step;
  state.counters["append_us_per_layer"] = (all - step) / shape.num_layers;
  state.counters["requantising_share"]  = requantising_share(work);
  state.counters["rows"] = static_cast<double>(work.caches[0]->ref().shape.num_rows());
  if (name.empty()) { return; }
  state.counters["figure:manager.step_us." + name + (is_plain ? "" : ".conditioned")] = all;
  if (is_plain && !with_queries) {
    state.counters["figure:manager.step_all_layers_us." + name] = step;
  }
}

[[maybe_unused]] bool const registered = [] {
  struct step_case {
    char const* figure;
    int batch, layers, queries;
  };
  for (step_case const& c :
       {step_case{"8b.1", 1, 32, 0}, step_case{"8b.32", 32, 32, 0}, step_case{"8b.128", 128, 32, 0},
        step_case{"8b.256", 256, 32, 0}, step_case{"70b.128", 128, 80, 0},
        step_case{"8b.1.with_queries", 1, 32, 1}, step_case{"8b.128.with_queries", 128, 32, 1}}) {
    for (auto const& [prefix, run] :
         {std::pair{"device_step/", &device_step<plain>},
          std::pair{"device_step_conditioned/", &device_step<conditioned>}}) {
      benchmark::RegisterBenchmark((std::string{prefix} + c.figure).c_str(),
                                   [run = run, figure = std::string{c.figure}](
                                     benchmark::State& state) { run(state, figure); })
        ->ArgNames({"batch", "layers", "queries"})
        ->Args({c.batch, c.layers, c.queries})
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
