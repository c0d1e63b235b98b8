// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/arrivals.hpp"

#include "llama3/scheduler.hpp"
#include "llama3/throughput/generation.hpp"  // kv_budget
#include "llama3/throughput/measured_cache.hpp"
#include "llama3/throughput/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>  // max
#include <chrono>
#include <random>
#include <stdexcept>  // runtime_error
#include <thread>     // sleep_for

namespace llama3 {
namespace {

//! Of one rate, in seconds.
struct served {
  std::vector<double>
    per_token{};  //!< of each request: from its arrival to its end, over its new tokens
  std::vector<double> queueing{};   //!< from its arrival to the round that read its prompt
  double seconds            = 0.0;  //!< from the first arrival to the last end
  std::uint64_t num_tokens  = 0;
  std::uint64_t preemptions = 0;
  int peak_batch            = 0;
};

[[nodiscard]] served serve_arrivals(batch_runner& runs, std::vector<timed_request> const& requests)
{
  using clock      = std::chrono::steady_clock;
  auto const begin = clock::now();
  auto const now   = [&] { return std::chrono::duration<double>(clock::now() - begin).count(); };

  served result;
  std::vector<bool> begun(requests.size(), false);
  double round_begin = 0.0;
  scheduler_callbacks callbacks;
  callbacks.on_token = [&](std::uint64_t id, token_id) {
    if (begun[id]) { return; }
    begun[id] = true;
    result.queueing.push_back(std::max(0.0, round_begin - requests[id].arrival));
  };
  callbacks.on_finish = [&](served_request const& request) {
    if (request.reason == request_end::no_memory) {
      throw std::runtime_error("arrivals: a request found no memory");
    }
    auto const tokens = request.tokens.size();
    result.num_tokens += tokens;
    result.per_token.push_back((now() - requests[request.id].arrival) /
                               static_cast<double>(tokens));
  };
  scheduler serves{runs, {}, std::move(callbacks)};
  std::size_t next = 0;
  while (result.per_token.size() < requests.size()) {
    round_begin = now();
    for (; next < requests.size() && requests[next].arrival <= round_begin; ++next) {
      serves.submit({next, requests[next].prompt, requests[next].new_tokens, {}});
    }
    if (serves.advance() || next == requests.size()) { continue; }
    std::this_thread::sleep_for(std::chrono::duration<double>(requests[next].arrival - now()));
  }
  result.seconds     = now();
  result.preemptions = serves.preemptions();
  result.peak_batch  = serves.peak_running();
  return result;
}

}  // namespace

std::vector<timed_request> make_timed_requests(double rate, int count, int mean_prompt,
                                               int mean_new, int vocab_size, unsigned seed)
{
  std::mt19937 random{seed};
  std::exponential_distribution<double> pause{rate};
  auto const around = [](int mean) {
    return std::uniform_int_distribution<int>{std::max(1, mean / 2), mean + mean / 2};
  };
  auto prompt_tokens = around(mean_prompt);
  auto new_tokens    = around(mean_new);
  std::uniform_int_distribution<token_id> any_id{0, vocab_size - 1};
  std::vector<timed_request> requests;
  double time = 0.0;
  for (int i = 0; i < count; ++i) {
    timed_request request;
    request.arrival = time;
    request.prompt.resize(static_cast<std::size_t>(prompt_tokens(random)));
    for (token_id& id : request.prompt) { id = any_id(random); }
    request.new_tokens = new_tokens(random);
    requests.push_back(std::move(request));
    time += pause(random);
  }
  return requests;
}

std::vector<measured_result> measure_arrivals(throughput_options const& o, cudaStream_t stream)
{
  measured_setup setup;
  setup.num_sequences   = o.batch;
  setup.max_tokens      = o.prompt_tokens + o.prompt_tokens / 2 + o.new_tokens + o.new_tokens / 2;
  setup.shortest_prompt = std::max(1, o.prompt_tokens / 2);
  setup.pass_tokens     = o.pass_tokens;
  model_shape const& shape  = find_shape(o.shape);
  model_config const config = config_of(shape, o.num_layers, setup.max_tokens);
  std::uint64_t const bytes = kv_budget(o, config);
  setup.pool_bytes          = bytes;
  device_model model{config, random_weights(config, 1, stream), setup.max_tokens,
                     std::max({o.pass_tokens, setup.max_tokens, runner::padded(o.batch)}), stream};

  std::string const name = figure_name(shape, o.num_layers);
  std::vector<measured_result> results;
  for (bool const is_mix : {true, false}) {
    if (o.caches == (is_mix ? measured_caches::k16v16 : measured_caches::mix)) { continue; }
    setup.is_mix = is_mix;
    measured_cache cache{model, setup};
    cache.capture_graphs();
    for (double const rate : o.rates) {
      auto const requests =
        make_timed_requests(rate, o.requests, o.prompt_tokens, o.new_tokens, config.vocab_size, 7);
      served const s = serve_arrivals(cache.runs(), requests);
      measured_result result;
      result.name     = fmt::format("arrivals/{}/{}+{}/rate:{:g}/{}", name, o.prompt_tokens,
                                    o.new_tokens, rate, measured_cache::name_of(is_mix));
      result.seconds  = mean(s.per_token);
      result.counters = {{"items_per_second", static_cast<double>(s.num_tokens) / s.seconds},
                         {"p99_us", 1e6 * quantile(s.per_token, 0.99)},
                         {"queueing_us", 1e6 * mean(s.queueing)},
                         {"queueing_p99_us", 1e6 * quantile(s.queueing, 0.99)},
                         {"peak_batch", s.peak_batch},
                         {"preemptions", static_cast<double>(s.preemptions)},
                         {"requests", o.requests},
                         {"kv_bytes", static_cast<double>(bytes)}};
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace llama3
