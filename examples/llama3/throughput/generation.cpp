// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/generation.hpp"

#include "llama3/throughput/measured_cache.hpp"
#include "llama3/throughput/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>  // max, min
#include <stdexcept>  // invalid_argument, runtime_error

namespace llama3 {
namespace {

constexpr double workspace_bytes = 2e9;
constexpr double usable_share    = 0.9;  // of a card's memory

constexpr int timings_at_a_length     = 3;
constexpr std::uint64_t largest_batch = 4096;  // whose logits the model has room for

//! The generation of one batch.
struct generation {
  int batch             = 0;
  double prompt_seconds = 0.0;
  double step_seconds   = 0.0;  //!< all steps

  [[nodiscard]] double seconds() const { return prompt_seconds + step_seconds; }
};

//! What sequences take at their full length.
struct sequence_need {
  std::uint64_t pages = 0;  //!< of one: measured, as a mix of tiers needs fewer than the worst case
  std::uint64_t page_bytes = 0;
  std::uint64_t admission = 0;  //!< pages that a pass of prompts claims at most before it is stored
};

[[nodiscard]] sequence_need need_of_sequence(device_model& model, measured_setup setup)
{
  setup.num_sequences   = 1;
  setup.shortest_prompt = setup.max_tokens;
  setup.pool_bytes      = 0;
  measured_cache one{model, setup};
  static_cast<void>(one.fill(setup.max_tokens, true));
  // Twice, as every prompt of a pass rounds up.
  return {one.usage().pages, one.page_bytes(),
          2 * one.most_pages(std::max(setup.pass_tokens, setup.max_tokens))};
}

//! Every token in turn.
[[nodiscard]] generation run_all(measured_cache& cache, throughput_options const& o)
{
  static_cast<void>(cache.fill(o.prompt_tokens, false));
  static_cast<void>(cache.run_steps(8));  // graphs are captured
  generation g;
  g.prompt_seconds = cache.fill(o.prompt_tokens, o.all_prompts) * cache.num_sequences();
  g.step_seconds   = cache.run_steps(o.new_tokens - 1);  // the prompt gives the first token
  return g;
}

//! Steps at some lengths; between them their time is a straight line.
[[nodiscard]] generation run_sampled(measured_cache& cache, throughput_options const& o)
{
  constexpr int tokens = (timings_at_a_length + 1) * measured_cache::tokens_of_timing;
  generation g;
  static_cast<void>(cache.fill(o.prompt_tokens, false));
  std::vector<std::pair<double, double>> times;
  for (int i = 0; i < o.samples; ++i) {
    int const length = o.prompt_tokens + (o.new_tokens - tokens) * i / (o.samples - 1);
    double const seconds_of_prompt = cache.fill(length, o.all_prompts);
    if (i == 0) { g.prompt_seconds = seconds_of_prompt * cache.num_sequences(); }
    static_cast<void>(cache.time_steps());  // the first captures the graph
    std::vector<double> steps;
    for (int k = 0; k < timings_at_a_length; ++k) {
      for (double const seconds : cache.time_steps()) { steps.push_back(seconds); }
    }
    times.emplace_back(length + tokens / 2, median(steps));
  }
  g.step_seconds = sum_between(times, o.prompt_tokens, o.prompt_tokens + o.new_tokens - 1);
  return g;
}

}  // namespace

std::uint64_t kv_budget(throughput_options const& o, model_config const& config)
{
  if (o.kv_bytes > 0) { return static_cast<std::uint64_t>(o.kv_bytes); }
  auto const weights = static_cast<double>(weight_bytes(config));
  double const left  = usable_share * o.card_bytes - weights - workspace_bytes;
  if (left < 1.0) {
    throw std::invalid_argument(
      fmt::format("--card-bytes {:.3g}: weights of {:.3g} bytes leave nothing for keys and values",
                  o.card_bytes, weights));
  }
  return static_cast<std::uint64_t>(left);
}

std::vector<measured_result> measure_throughput(throughput_options const& o, cudaStream_t stream)
{
  measured_setup setup;
  setup.max_tokens          = o.prompt_tokens + o.new_tokens;
  setup.shortest_prompt     = o.prompt_tokens;
  setup.pass_tokens         = o.pass_tokens;
  model_shape const& shape  = find_shape(o.shape);
  model_config const config = config_of(shape, o.num_layers, setup.max_tokens);
  std::uint64_t const bytes = kv_budget(o, config);
  int const most_tokens =
    std::max({o.pass_tokens, setup.max_tokens, static_cast<int>(largest_batch)});
  device_model model{config, random_weights(config, 1, stream), setup.max_tokens, most_tokens,
                     stream};

  std::string const name = figure_name(shape, o.num_layers);
  std::vector<measured_result> results;
  std::vector<double> rates;
  for (bool const is_mix : {true, false}) {
    if (o.caches == (is_mix ? measured_caches::k16v16 : measured_caches::mix)) { continue; }
    setup.is_mix                   = is_mix;
    sequence_need const need       = need_of_sequence(model, setup);
    std::uint64_t const most_pages = bytes / need.page_bytes;
    measured_setup full            = setup;
    full.num_sequences =
      static_cast<int>(std::min<std::uint64_t>(most_pages / need.pages, largest_batch));
    if (full.num_sequences == 0) {
      throw std::invalid_argument(fmt::format("--kv-bytes {}: no {} sequence of {} tokens fits",
                                              bytes, measured_cache::name_of(is_mix),
                                              setup.max_tokens));
    }
    // Only samples begin sequences that are long already, and claim pages that a generation never
    // has.
    std::uint64_t const spare = o.sampled_steps ? need.admission : 0;
    full.pool_bytes           = (most_pages + spare) * need.page_bytes;
    measured_cache cache{model, full};
    generation const g        = o.sampled_steps ? run_sampled(cache, o) : run_all(cache, o);
    std::uint64_t const taken = cache.num_pages() - cache.free_pages();
    if (taken > most_pages) {
      throw std::runtime_error(fmt::format("{}: {} pages were taken, {} fit the budget",
                                           measured_cache::name_of(is_mix), taken, most_pages));
    }
    double const tokens = static_cast<double>(full.num_sequences) * o.new_tokens;
    rates.push_back(tokens / g.seconds());
    measured_result result;
    result.name =
      fmt::format("{}/{}/{}+{}/{}", o.sampled_steps ? "throughput_sampled" : "throughput", name,
                  o.prompt_tokens, o.new_tokens, measured_cache::name_of(is_mix));
    result.seconds  = g.seconds();
    result.counters = {{"items_per_second", rates.back()},
                       {"batch", full.num_sequences},
                       {"kv_bytes", static_cast<double>(bytes)},
                       {"pages_of_a_sequence", static_cast<double>(need.pages)},
                       {"pages_left", static_cast<double>(most_pages - taken)},
                       {"prompt_share", g.prompt_seconds / g.seconds()},
                       {"step_us", 1e6 * g.step_seconds / (o.new_tokens - 1)}};
    results.push_back(std::move(result));
  }
  if (rates.size() == 2) {
    results[0].counters.emplace_back(
      fmt::format("figure:llama3.throughput_over_16bit.{}.{}", name, o.new_tokens),
      rates[0] / rates[1]);
  }
  return results;
}

}  // namespace llama3
