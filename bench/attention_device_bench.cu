// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode attention on the device: 8 heads, their pages scattered over a pool, one launch a layer.
// Microseconds of one launch inside a CUDA graph, the plan ready. Cases of the same rows are
// measured together, in turns, whichever of them are asked for; the read ceiling is measured beside
// each.
//   of_ceiling    bytes (codes and metadata of the tokens) per time, over those of a kernel that
//                 only reads, 8 GiB in one launch
//   of_same_read  time of a kernel that only reads as many bytes, over time
// `planned_attention` has the plan of all layers in front of them, too.
// `attention_once` launches a case once for each layer, for a profiler.
#include "attention/suite.cuh"

namespace {

using bench::attention_case;
using bench::attention_result;
using bench::attention_rows;

constexpr char const* formats[] = {"k16v16", "k8v8", "k8v4", "k4v4", "k4v2", "mix"};

//! 40 % of the tokens high, 40 % low, 20 % pruned; a lone format keeps all.
attention_rows rows_of(std::string const& format, std::uint32_t batch, std::int32_t length)
{
  attention_rows rows{batch, length};
  if (format.rfind("mix", 0) == 0) { rows.high_share = rows.low_share = 0.4; }
  return rows;
}

std::string name_of(std::uint32_t batch, std::int32_t length)
{
  return std::to_string(batch) + "x" + std::to_string(length);
}

//! Each format over the same rows.
std::vector<attention_case> cases_of_formats(std::uint32_t batch, std::int32_t length,
                                             std::uint32_t group_size, std::int32_t head_dim,
                                             std::string const& suffix)
{
  std::vector<attention_case> cases;
  for (std::string const format : formats) {
    attention_case c;
    c.name       = format + "." + name_of(batch, length) + suffix;
    c.kernel     = format;
    c.group_size = group_size;
    c.head_dim   = head_dim;
    c.rows       = rows_of(format, batch, length);
    cases.push_back(c);
  }
  return cases;
}

//! The same rows, whose vectors have several scales: 16-bit pages have none.
std::vector<attention_case> cases_of_scale_groups(std::uint32_t batch, std::int32_t length,
                                                  std::uint32_t groups)
{
  std::string const suffix          = "scale_groups" + std::to_string(groups);
  std::vector<attention_case> cases = cases_of_formats(batch, length, 4, 128, "." + suffix);
  cases.erase(cases.begin());
  for (attention_case& c : cases) { c.kernel += "_" + suffix; }
  return cases;
}

//! What the mix costs with something on top, right behind the mix.
void add_variants_of_mix(std::vector<attention_case>& cases, std::uint32_t batch,
                         std::int32_t length)
{
  attention_case const mix = cases.back();
  std::string const of     = "mix." + name_of(batch, length);
  auto const add           = [&](attention_case const& base, std::string const& name,
                       std::string const& figure) -> auto&
  {
    attention_case c = base;
    c.name           = name + "." + name_of(batch, length);
    c.kernel         = name;
    c.compared_with  = base.name;
    c.figure         = figure;
    cases.push_back(c);
    return cases.back();
  };
  add(mix, "mix_conditioned", "attention.conditioning_overhead." + of);
  attention_case& ragged = add(mix, "mix_ragged", "attention.ragged_loss." + of);
  ragged.kernel          = mix.kernel;
  ragged.rows.spread     = 8.0;
  // The mix over as many layers as those with scores, which are compared with it.
  attention_case many     = mix;
  many.name               = "mix_many_layers." + name_of(batch, length);
  many.rows.beside_scores = 4;
  cases.push_back(many);
  add(many, "mix_every4", "score.overhead." + of + ".every4");
  add(many, "mix_every1", "score.overhead." + of + ".every1");
  attention_case& apart = add(many, "mix_every4_apart", "score.overhead." + of + ".every4_apart");
  apart.kernel          = "mix_every4";
  apart.rows.staggered  = true;
  attention_case& by_position =
    add(many, "mix_every4_by_position", "score.overhead." + of + ".every4_by_position");
  by_position.kernel         = "mix_every4";
  by_position.rows.staggered = true;
  by_position.rows.schedule  = diffkv::catch_up_schedule::by_position;
}

//! A plan in front of the layers, beside the mix without it.
std::vector<attention_case> planned_cases(std::uint32_t batch, std::int32_t length)
{
  attention_case mix;
  mix.name               = "mix." + name_of(batch, length);
  mix.kernel             = "mix";
  mix.rows               = rows_of("mix", batch, length);
  attention_case planned = mix;
  planned.name           = "mix_with_plan." + name_of(batch, length);
  planned.with_plan      = true;
  planned.compared_with  = mix.name;
  planned.figure         = "attention.plan_overhead." + mix.name;
  return {mix, planned};
}

using suite = std::vector<attention_case>;

std::vector<suite> all_suites()
{
  std::vector<suite> suites;
  struct rows {
    std::uint32_t batch;
    std::int32_t length;
    bool variants;
  };
  for (rows const& r :
       {rows{128, 4096, true}, rows{32, 4096, true}, rows{8, 4096, true}, rows{1, 131072, false},
        rows{1, 32768, false}, rows{256, 1024, false}, rows{16, 32768, false}}) {
    suites.push_back(cases_of_formats(r.batch, r.length, 4, 128, ""));
    if (r.variants) { add_variants_of_mix(suites.back(), r.batch, r.length); }
  }
  for (std::uint32_t group : {1u, 5u, 7u, 8u}) {
    suites.push_back(cases_of_formats(128, 4096, group, 128, ".group" + std::to_string(group)));
  }
  suites.push_back(cases_of_formats(128, 8192, 4, 64, ".d64"));  // as many bytes of codes
  for (std::uint32_t groups : {2u, 4u}) {
    suites.push_back(cases_of_scale_groups(128, 4096, groups));
  }
  return suites;
}

//! Measured when the first of its cases is asked for, and kept.
class lazy_suite {
 public:
  explicit lazy_suite(suite cases) : cases_{std::move(cases)} {}
  [[nodiscard]] suite const& cases() const noexcept { return cases_; }
  [[nodiscard]] attention_result const& result(std::string const& name)
  {
    if (results_.empty()) { results_ = bench::measure_suite(cases_); }
    return results_.at(name);
  }

 private:
  suite cases_;
  std::map<std::string, attention_result> results_{};
};

void device_attention(benchmark::State& state, lazy_suite& suite, attention_case const& c)
{
  attention_result const& r = suite.result(c.name);
  if (!r.trouble.empty()) { return state.SkipWithError(r.trouble.c_str()); }
  for (auto _ : state) { state.SetIterationTime(r.us * 1e-6); }
  state.counters["bytes"]                        = r.bytes;
  state.counters["tokens"]                       = r.tokens;
  state.counters["gigabytes_per_second"]         = 1e-3 * r.bytes / r.us;
  state.counters["of_ceiling"]                   = r.of_ceiling;
  state.counters["of_same_read"]                 = r.of_same_read;
  state.counters["ceiling_gigabytes_per_second"] = 1e-9 * r.ceiling;
  if (r.over_k16v16 > 0.0) { state.counters["speedup_over_k16v16"] = r.over_k16v16; }
  state.counters["figure:attention.of_ceiling." + c.name] = r.of_ceiling;
  state.counters["figure:attention.us." + c.name]         = r.us;
  if (!c.figure.empty() && r.over_other > 0.0) {
    state.counters["figure:" + c.figure] = r.over_other - 1.0;
  }
}

//! One launch a layer, no check and no time.
void attention_once(benchmark::State& state, attention_case const& c)
{
  auto const* kernel = bench::find_attention_kernel(c.kernel, c.group_size, c.head_dim);
  if (kernel == nullptr) { return state.SkipWithError("no kernel of this kind was compiled"); }
  bench::attention_workload const work{*kernel, c.rows};
  for (auto _ : state) {
    for (std::uint32_t layer = 0; layer < work.shape().num_layers; ++layer) { work.attend(layer); }
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(work.stream()));
  }
  state.counters["bytes"]  = work.bytes();
  state.counters["tokens"] = work.tokens();
}

void add_benchmark(std::string const& family, lazy_suite& s, attention_case const& c)
{
  benchmark::RegisterBenchmark((family + "/" + c.name).c_str(),
                               [&s, &c](benchmark::State& state) { device_attention(state, s, c); })
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
}

[[maybe_unused]] bool const registered = [] {
  static std::vector<lazy_suite> suites, planned;
  for (suite& s : all_suites()) { suites.emplace_back(std::move(s)); }
  for (lazy_suite& s : suites) {
    for (attention_case const& c : s.cases()) { add_benchmark("device_attention", s, c); }
  }
  for (std::uint32_t batch : {128u, 32u, 8u}) { planned.emplace_back(planned_cases(batch, 4096)); }
  for (lazy_suite& s : planned) { add_benchmark("planned_attention", s, s.cases().back()); }
  for (attention_case const& c : suites.front().cases()) {
    benchmark::RegisterBenchmark(("attention_once/" + c.name).c_str(),
                                 [&c](benchmark::State& state) { attention_once(state, c); })
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
