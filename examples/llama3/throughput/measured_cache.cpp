// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/measured_cache.hpp"

#include "llama3/cuda/device_cache_kind.hpp"

#include <fmt/format.h>

#include <algorithm>  // max, min
#include <chrono>
#include <cstddef>  // ptrdiff_t
#include <random>
#include <stdexcept>  // runtime_error

namespace llama3 {
namespace {

//! A point in a stream whose time counts.
class timing_event {
 public:
  timing_event() { DIFFKV_CUDA_TRY(cudaEventCreate(&event_)); }
  timing_event(timing_event const&)            = delete;
  timing_event& operator=(timing_event const&) = delete;
  ~timing_event() { static_cast<void>(cudaEventDestroy(event_)); }

  void record(cudaStream_t stream) { DIFFKV_CUDA_TRY(cudaEventRecord(event_, stream)); }
  //! @pre both have been reached
  [[nodiscard]] double seconds_since(timing_event const& earlier) const
  {
    float milliseconds = 0.0f;
    DIFFKV_CUDA_TRY(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

[[nodiscard]] double seconds_between(std::chrono::steady_clock::time_point from,
                                     std::chrono::steady_clock::time_point to)
{
  return std::chrono::duration<double>(to - from).count();
}

[[nodiscard]] cache_settings settings_of(bool is_mix)
{
  return is_mix ? cache_settings{} : uncompressed_settings();
}

//! Offsets of 0: subtracting them takes as long as any.
[[nodiscard]] std::vector<float> key_offsets_for(model_config const& config, bool is_mix)
{
  std::size_t const size = static_cast<std::size_t>(config.num_layers) *
                           static_cast<std::size_t>(config.num_heads) *
                           static_cast<std::size_t>(config.head_dim);
  return std::vector<float>(is_mix ? size : 0);
}

}  // namespace

device_cache_setup measured_cache::device_setup() const
{
  device_cache_setup setup;
  setup.num_slots     = runner::padded(setup_.num_sequences);
  setup.max_tokens    = setup_.max_tokens;
  setup.prompt_tokens = std::max(setup_.pass_tokens, setup_.max_tokens);
  setup.prompts =
    std::min(setup_.num_sequences, std::max(1, setup.prompt_tokens / setup_.shortest_prompt));
  setup.pool_bytes = setup_.pool_bytes;
  setup.fixed_mix  = setup_.is_mix;
  return setup;
}

runner measured_cache::make_runner(device_model& of)
{
  auto cache = std::make_unique<partial_cache>(
    make_device_cache(of.config(), settings_of(setup_.is_mix), device_setup(),
                      key_offsets_for(of.config(), setup_.is_mix), of.stream()));
  cache_ = cache.get();
  return {of, std::move(cache), device_setup(), of.config().vocab_size};
}

measured_cache::measured_cache(device_model& of, measured_setup const& setup)
  : model_{of}, setup_{setup}, runner_{make_runner(of)}
{
  for (int i = 0; i < setup.num_sequences; ++i) { slots_.push_back(static_cast<std::uint32_t>(i)); }
}

std::uint64_t measured_cache::page_bytes() const
{
  return diffkv::tiers_of(runner_.cache_options()).high.page_bytes;
}

void measured_cache::use(step_parts const& parts, int family)
{
  cache_->use(parts.cache);
  model_.leave_out_products(!parts.products);
  runner_.use_graph_family(family);
}

void measured_cache::release()
{
  if (is_filled_) { runner_.release(slots_); }
  is_filled_ = false;
}

void measured_cache::capture_graphs()
{
  static_cast<void>(fill(1, true));
  int last = 0;
  for (std::size_t count = 1; count <= slots_.size(); ++count) {
    if (int const size = runner::padded(static_cast<int>(count)); size != last) {
      last = size;
      runner_.step({slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(count)});
      expect_no_refusal(runner_.collect());
    }
  }
  release();
}

double measured_cache::fill(int num_tokens, bool all)
{
  release();
  is_filled_ = true;
  int const at_once =
    std::min(runner_.max_prompts(), std::max(1, runner_.max_prompt_tokens() / num_tokens));
  std::mt19937 random{7};
  std::uniform_int_distribution<token_id> any_id{0, model_.config().vocab_size - 1};
  double seconds_of_first = 0.0;
  for (int first = 0; first < setup_.num_sequences; first += at_once) {
    int const count = std::min(at_once, setup_.num_sequences - first);
    std::vector<prompt_request> prompts;
    for (int i = first; i < first + count; ++i) {
      prompt_request request;
      request.slot = static_cast<std::uint32_t>(i);
      for (int t = 0; t < num_tokens; ++t) { request.ids.push_back(any_id(random)); }
      prompts.push_back(std::move(request));
    }
    bool const computes = all || first == 0;
    use({{computes, true, true}, computes}, 0);
    auto const begin    = std::chrono::steady_clock::now();
    auto const admitted = runner_.read_prompts(prompts, {});  // waits
    if (first == 0) {
      seconds_of_first = seconds_between(begin, std::chrono::steady_clock::now()) / count;
    }
    for (auto const& token : admitted) {
      if (!token) {
        throw std::runtime_error(fmt::format("{}: no pages for {} prompts of {} tokens",
                                             name_of(setup_.is_mix), setup_.num_sequences,
                                             num_tokens));
      }
    }
  }
  use({}, 0);
  return seconds_of_first;
}

void measured_cache::expect_no_refusal(step_result const& result) const
{
  for (auto const& token : result.tokens) {
    if (!token) {
      throw std::runtime_error(fmt::format("{}: pages ran out in a step of {} sequences",
                                           name_of(setup_.is_mix), setup_.num_sequences));
    }
  }
}

std::vector<double> measured_cache::time_steps()
{
  std::vector<timing_event> ends(tokens_of_timing);
  for (timing_event& end : ends) {
    runner_.step(slots_);
    end.record(model_.stream());
  }
  for (std::size_t i = 0; i < ends.size(); ++i) { expect_no_refusal(runner_.collect()); }
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(model_.stream()));
  std::vector<double> seconds;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    seconds.push_back(ends[i].seconds_since(ends[i - 1]));
  }
  return seconds;
}

double measured_cache::run_steps(int num_tokens)
{
  auto const begin = std::chrono::steady_clock::now();
  int launched     = 0;
  for (int done = 0; done < num_tokens; ++done) {
    for (; launched < num_tokens && launched - done < runner_.max_steps_ahead(); ++launched) {
      runner_.step(slots_);
    }
    expect_no_refusal(runner_.collect());
  }
  return seconds_between(begin, std::chrono::steady_clock::now());
}

}  // namespace llama3
