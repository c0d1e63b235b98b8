// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/step_times.hpp"

#include "llama3/throughput/measured_cache.hpp"
#include "llama3/throughput/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>  // max
#include <array>
#include <memory>

namespace llama3 {
namespace {

//! Kinds of steps, each without what those before it are without.
enum kind : std::size_t {
  whole,
  without_attention,
  without_products,
  without_plan,
  without_compaction,
  num_kinds
};
constexpr int growing_kinds = 4;  // the last one stores no token

constexpr std::array<step_parts, num_kinds> parts_of{{
  {{true, true, true}, true},
  {{false, true, true}, true},
  {{false, true, true}, false},
  {{false, false, true}, false},
  {{false, false, false}, false},
}};

//! A cache, and the seconds of every kind of step in every round.
struct measured_case {
  bool is_mix = true;
  std::unique_ptr<measured_cache> cache{};
  std::vector<std::array<double, num_kinds>> rounds{};

  void run_round()
  {
    std::array<double, num_kinds> seconds{};
    for (std::size_t k = 0; k < num_kinds; ++k) {
      cache->use(parts_of[k], static_cast<int>(k));
      seconds[k] = median(cache->time_steps());
    }
    cache->use({}, whole);
    rounds.push_back(seconds);
  }
  //! Median over the rounds of f(seconds of a round).
  template <class F>
  [[nodiscard]] double over_rounds(F const& f) const
  {
    std::vector<double> values;
    for (auto const& seconds : rounds) { values.push_back(f(seconds)); }
    return median(values);
  }
  [[nodiscard]] double part_us(kind with, kind without) const
  {
    return over_rounds([&](auto const& s) { return 1e6 * (s[with] - s[without]); });
  }
};

[[nodiscard]] measured_result result_of(measured_case& c, throughput_options const& o,
                                        std::string const& name)
{
  measured_result result;
  result.name     = fmt::format("step/{}/{}x{}/{}", name, o.batch, o.prompt_tokens,
                                measured_cache::name_of(c.is_mix));
  result.seconds  = c.over_rounds([](auto const& s) { return s[whole]; });
  auto const used = c.cache->usage();
  result.counters = {
    {"products_us", c.part_us(without_attention, without_products)},
    {"attention_us", c.part_us(whole, without_attention)},
    {"plan_us", c.part_us(without_products, without_plan)},
    {"compaction_us", c.part_us(without_plan, without_compaction)},
    {"other_us", c.over_rounds([](auto const& s) { return 1e6 * s[without_compaction]; })},
    {"sequence_bytes", static_cast<double>(used.bytes)},
    {"tokens_at_end", static_cast<double>(used.num_tokens)}};
  return result;
}

}  // namespace

std::vector<measured_result> measure_steps(throughput_options const& o, cudaStream_t stream)
{
  // One more round warms up; prompts come after it. A token more than there is room for is refused.
  int const grows = growing_kinds * measured_cache::tokens_of_timing * (o.rounds + 1);
  // The loop counts positions in steps that store no token, too.
  int const positions =
    o.prompt_tokens +
    static_cast<int>(num_kinds) * measured_cache::tokens_of_timing * (o.rounds + 1) + 1;
  measured_setup setup;
  setup.num_sequences       = o.batch;
  setup.max_tokens          = o.prompt_tokens + grows;
  setup.shortest_prompt     = o.prompt_tokens;
  setup.pass_tokens         = o.pass_tokens;
  model_shape const& shape  = find_shape(o.shape);
  model_config const config = config_of(shape, o.num_layers, positions);
  device_model model{config, random_weights(config, 1, stream), positions,
                     std::max({o.pass_tokens, setup.max_tokens, runner::padded(o.batch)}), stream};

  std::vector<measured_case> cases;
  for (bool const is_mix : {true, false}) {
    if (o.caches == (is_mix ? measured_caches::k16v16 : measured_caches::mix)) { continue; }
    setup.is_mix = is_mix;
    measured_case c;
    c.is_mix = is_mix;
    c.cache  = std::make_unique<measured_cache>(model, setup);
    static_cast<void>(c.cache->fill(o.prompt_tokens, o.all_prompts));
    c.run_round();
    c.rounds.clear();
    cases.push_back(std::move(c));
  }
  for (int i = 0; i < o.rounds; ++i) {
    for (measured_case& c : cases) { c.run_round(); }
  }

  std::string const name = figure_name(shape, o.num_layers);
  std::vector<measured_result> results;
  for (measured_case& c : cases) { results.push_back(result_of(c, o, name)); }
  if (cases.size() == 2) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < cases[0].rounds.size(); ++i) {
      ratios.push_back(cases[0].rounds[i][whole] / cases[1].rounds[i][whole]);
    }
    results[0].counters.emplace_back(
      fmt::format("figure:llama3.step_over_16bit.{}.{}x{}", name, o.batch, o.prompt_tokens),
      median(ratios));
  }
  if (cases[0].is_mix) {
    results[0].counters.emplace_back(
      fmt::format("figure:llama3.compaction_share.{}.{}", name, o.batch),
      cases[0].over_rounds(
        [](auto const& s) { return (s[without_plan] - s[without_compaction]) / s[whole]; }));
  }
  return results;
}

}  // namespace llama3
