// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Random lives of sequences in a device_kv_cache beside the kv_cache of the same configuration: after
//! every operation all their arrays are compared, byte for byte. Everything is ordered in one stream.
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/cache/kv_cache.hpp>

#include <algorithm>  // sort
#include <cstring>    // memset
#include <string>

#include "support/device_cache.hpp"
#include "support/host_cache.hpp"
#include "support/spin.cuh"
#include "support/twin_inputs.hpp"

namespace diffkv::test {

//! @tparam Config  static_config; @tparam T element of keys, values and queries
template <class Config, class T>
class device_twin {
 public:
  using policy_type = typename Config::policy_type;
  using twin_cache  = device_kv_cache<Config, counting_device_resource>;

  device_twin(twin_setup const& setup, policy_type const& host_policy,
              policy_type const& device_policy, std::uint64_t seed)
    : setup_{setup},
      random_{seed},
      host_{setup.options, host_policy},
      answer_{setup.options, host_policy},
      device_{setup.options,
              {setup.prompts, setup.options.shape.num_layers, setup.prompt_tokens},
              device_policy,
              resource_,
              stream_.get()},
      inputs_{setup_, stream_.get()},
      lives_(shape().num_slots, false)
  {
    // Both start with the same bytes in pages that nobody has written.
    cache_ref const& host = host_.context().cache;
    std::memset(host.pool.base, 0xFF, std::size_t{host.pool.num_pages} * host.pool.page_bytes);
    copy_bytes(device_.ref().pool.base, host.pool.base,
               std::size_t{host.pool.num_pages} * host.pool.page_bytes);
    stream_.wait();
    compare("a fresh cache");
  }
  device_twin(device_twin const&)            = delete;
  device_twin& operator=(device_twin const&) = delete;
  ~device_twin()
  {
    for (cudaGraphExec_t graph : {admit_graph_, store_graph_, step_graph_, release_graph_}) {
      if (graph != nullptr) { cudaGraphExecDestroy(graph); }
    }
  }

  //! Random operations until `trouble()`.
  void live(int operations)
  {
    for (int i = 0; i < operations && trouble_.empty(); ++i) {
      switch (random_.below(9)) {
        case 0:
        case 1:
          admit_some();
          break;
        case 2:
          release_some();
          break;
        default:
          step_some();
      }
      if (trouble_.empty()) { trouble_ = page_trouble(answer_.context().cache); }
    }
  }
  //! Until so many steps of batches are made; other operations lie between them.
  void live_steps(int steps)
  {
    while (batch_steps_ < steps && trouble_.empty()) { live(1); }
  }

  [[nodiscard]] std::string const& trouble() const { return trouble_; }
  [[nodiscard]] twin_counts const& counts() const { return counts_; }
  [[nodiscard]] twin_cache& device() { return device_; }
  [[nodiscard]] device_ledger const& book() const { return *resource_.book; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  //! What the device held when it was last compared.
  [[nodiscard]] cache_ref const& answer() const { return answer_.context().cache; }
  //! Distinct sizes of the batches that were stepped.
  [[nodiscard]] int batch_sizes() const { return static_cast<int>(sizes_.size()); }

 private:
  [[nodiscard]] cache_shape const& shape() const { return setup_.options.shape; }

  //! Up to `prompts` sequences, some of them impossible.
  void admit_some()
  {
    std::vector<std::uint32_t> slots = all_slots();
    slots.resize(std::min<std::size_t>(slots.size(), random_.below(setup_.prompts + 1)));
    std::vector<host::admission> possible;
    std::vector<std::int32_t> lengths;
    std::vector<std::uint32_t> index, refused;
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      int n = random_.one_in(8) ? 0 : random_.between(1, setup_.prompt_tokens);
      if (random_.one_in(12)) { n = random_.one_in(2) ? -1 : shape().max_tokens + 1; }
      lengths.push_back(n);
      if (n < 0 || n > shape().max_tokens || host_.usage(slots[i]).pages != 0) {
        refused.push_back(i);
        continue;
      }
      possible.push_back({slots[i], n});
      index.push_back(i);
    }
    counts_.impossible_prompts += static_cast<int>(refused.size());
    auto const batch     = begin(slots, setup_.prompts);
    auto const on_device = inputs_.lengths(lengths);
    perform(admit_graph_, [&] { device_.admit(batch, on_device, refusals(), stream()); });

    std::vector<std::uint32_t> short_of_pages(possible.size());
    short_of_pages.resize(host_.admit(possible.data(), static_cast<std::uint32_t>(possible.size()),
                                      {nullptr, short_of_pages.data()}));
    counts_.refused_prompts += static_cast<int>(short_of_pages.size());
    for (std::uint32_t i : short_of_pages) { refused.push_back(index[i]); }
    std::sort(refused.begin(), refused.end());
    expect_refusals(refused);
    compare("admit");

    std::vector<host::admission> admitted;
    for (std::uint32_t i = 0; i < possible.size(); ++i) {
      if (std::count(refused.begin(), refused.end(), index[i]) != 0) { continue; }
      lives_[possible[i].slot] = true;
      admitted.push_back(possible[i]);
    }
    counts_.admitted += static_cast<int>(admitted.size());
    store(admitted);
  }

  //! The prompts of granted admissions, in one call or in two ranges of layers.
  void store(std::vector<host::admission> const& admitted)
  {
    if (!trouble_.empty()) { return; }
    std::vector<std::uint32_t> slots;
    for (host::admission const& a : admitted) { slots.push_back(a.slot); }
    auto const batch = begin(slots, setup_.prompts);
    inputs_.renew_prompts(admitted, random_);
    std::uint32_t const layers = shape().num_layers;
    std::uint32_t const split  = setup_.captured ? layers : random_.below(layers) + 1;
    perform(store_graph_, [&] {
      device_.store_prompt(batch, inputs_.prompts_from(0), {0, split}, stream());
      if (split < layers) {
        device_.store_prompt(batch, inputs_.prompts_from(split), {split, layers - split}, stream());
      }
    });
    // In the order of the device's calls, in which pages go back to the ring.
    for (layer_range range : {layer_range{0, split}, layer_range{split, layers - split}}) {
      for (std::size_t i = 0; i < admitted.size(); ++i) {
        for (std::uint32_t l = range.first; l < range.first + range.count; ++l) {
          auto const x = inputs_.prompt_on_host(i, admitted[i].num_tokens, l);
          host_.store_prompt(admitted[i].slot, l, x.key, x.value, x.importances.data());
        }
      }
    }
    counts_.stored += static_cast<int>(admitted.size());
    compare("store_prompt");
  }

  //! One token more in some sequences: step, append of all layers, statistics; then attention.
  void step_some()
  {
    std::vector<std::uint32_t> slots;
    bool const few = random_.one_in(4);
    for (std::uint32_t slot : all_slots()) {
      bool const full = host_.usage(slot).num_tokens >= shape().max_tokens;
      if (lives_[slot] && !full && !random_.one_in(few ? 2 : 12)) { slots.push_back(slot); }
    }
    auto const batch = begin(slots, shape().num_slots);
    inputs_.renew_tokens(random_);
    perform(step_graph_, [&] {
      device_.step(batch, refusals(), stream());
      for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
        auto const x = inputs_.on_device(l);
        device_.append(batch, l, x.key, x.value, x.query, stream());
      }
      device_.statistics(statistics(), stream());
    });

    auto const count = static_cast<std::uint32_t>(slots.size());
    std::vector<std::uint32_t> refused(count);
    refused.resize(host_.step(slots.data(), count, {nullptr, refused.data()}));
    for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
      auto const x = inputs_.on_host(l);
      host_.append(slots.data(), count, l, x.key, x.value, x.query);
    }
    counts_.refused_steps += static_cast<int>(refused.size());
    counts_.stepped += static_cast<int>(slots.size() - refused.size());
    batch_steps_ += slots.empty() ? 0 : 1;
    if (std::count(sizes_.begin(), sizes_.end(), count) == 0) { sizes_.push_back(count); }
    expect_refusals(refused);
    expect_statistics();
    compare("step and append");
    attend(slots, refused);
  }

  //! Decode attention of the host twin, and what it changes, for both.
  void attend(std::vector<std::uint32_t> const& slots, std::vector<std::uint32_t> const& refused)
  {
    if (shape().score_every == 0) { return; }
    std::vector<float> out(std::size_t{shape().num_q_heads()} *
                           static_cast<std::size_t>(shape().head_dim));
    for (std::uint32_t s = 0; s < slots.size(); ++s) {
      if (std::count(refused.begin(), refused.end(), s) != 0) { continue; }
      for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
        host_.decode(&slots[s], 1, l, {0.125f}, inputs_.on_host(l, s).query,
                     packed(out.data(), shape().num_q_heads(), shape().head_dim), nullptr);
      }
    }
    cache_ref const device = device_.ref();
    cache_ref const& host  = host_.context().cache;
    detail::for_each_array(device, host, [&](void* to, void* from, std::size_t bytes) {
      bool const changed = to == device.pool.base || to == device.state.candidates ||
                           to == device.state.layers || to == device.queries.lse ||
                           to == device.queries.offset_logits;
      if (changed) { copy_bytes(to, from, bytes); }
    });
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

  //! Some lives end, those that are full among them; free slots and numbers of none are no error.
  void release_some()
  {
    std::vector<std::uint32_t> slots;
    for (std::uint32_t slot : all_slots()) {
      bool const full = host_.usage(slot).num_tokens >= shape().max_tokens;
      if (full || random_.one_in(lives_[slot] ? 8 : 20)) { slots.push_back(slot); }
      counts_.released += !slots.empty() && slots.back() == slot && lives_[slot] ? 1 : 0;
    }
    release_report const expected =
      host_.release(slots.data(), static_cast<std::uint32_t>(slots.size()));
    for (std::uint32_t slot : slots) { lives_[slot] = false; }
    if (slots.size() < shape().num_slots && random_.one_in(4)) {
      slots.push_back(shape().num_slots + random_.below(3));
    }
    auto const batch = begin(slots, shape().num_slots);
    perform(release_graph_, [&] {
      device_.release(batch, report_.data(), stream());
      device_.statistics(statistics(), stream());
    });
    expect_statistics();
    if (report_[0].released != expected.released || report_[0].foreign + report_[0].repeated != 0) {
      note("release", "the report differs");
    }
    compare("release");
  }

  [[nodiscard]] std::vector<std::uint32_t> all_slots()
  {
    std::vector<std::uint32_t> slots(shape().num_slots);
    for (std::uint32_t i = 0; i < slots.size(); ++i) { slots[i] = i; }
    shuffle(slots.data(), shape().num_slots, random_);
    return slots;
  }
  //! Starts an operation: keeps the stream busy, then writes the batch behind that.
  [[nodiscard]] batch_ref begin(std::vector<std::uint32_t> const& slots, std::uint32_t capacity)
  {
    if (setup_.spin_ns > 0) { spin(setup_.spin_ns, stream()); }
    bool const counted = setup_.captured || random_.one_in(2);
    return inputs_.batch(slots, capacity, counted);
  }
  [[nodiscard]] refusals_ref refusals() const { return {refused_count_.data(), refused_.data()}; }
  [[nodiscard]] statistics_ref statistics() const { return {free_pages_.data(), usage_.data()}; }

  //! Launches the calls, or replays the graph that they were captured into.
  template <class F>
  void perform(cudaGraphExec_t& graph, F&& calls)
  {
    ++counts_.launches;
    int const before = current_device();
    launch_or_replay(graph, calls);
    if (current_device() != before) { note("operation", "it left another device current"); }
  }
  template <class F>
  void launch_or_replay(cudaGraphExec_t& graph, F&& calls)
  {
    if (!setup_.captured) {
      calls();
      return;
    }
    if (graph == nullptr) {
      cudaGraph_t recorded = nullptr;
      check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "capture");
      calls();
      check(cudaStreamEndCapture(stream(), &recorded), "capture");
      check(cudaGraphInstantiate(&graph, recorded, 0), "cudaGraphInstantiate");
      check(cudaGraphDestroy(recorded), "cudaGraphDestroy");
    }
    check(cudaGraphLaunch(graph, stream()), "cudaGraphLaunch");
  }
  void copy_bytes(void* to, void const* from, std::size_t bytes)
  {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
  }
  void note(char const* operation, std::string const& what)
  {
    if (trouble_.empty()) {
      trouble_ = std::string{operation} + " " + std::to_string(counts_.launches) + ": " + what;
    }
  }
  void expect_refusals(std::vector<std::uint32_t> const& expected)
  {
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    bool same = refused_count_[0] == expected.size();
    for (std::size_t i = 0; same && i < expected.size(); ++i) { same = refused_[i] == expected[i]; }
    if (!same) { note("refusals of operation", "they differ"); }
  }
  void expect_statistics()
  {
    check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    bool same = free_pages_[0] == host_.num_free_pages();
    for (std::uint32_t slot = 0; slot < shape().num_slots; ++slot) {
      sequence_usage const host    = host_.usage(slot);
      sequence_usage const& device = usage_[slot];
      same                         = same && device.num_tokens == host.num_tokens &&
             device.high_tokens == host.high_tokens && device.low_tokens == host.low_tokens &&
             device.pruned == host.pruned && device.pages == host.pages &&
             device.bytes == host.bytes && device.bytes_16bit == host.bytes_16bit &&
             device.nominal_bytes == host.nominal_bytes;
    }
    if (!same) { note("statistics of operation", "they differ"); }
  }
  //! All arrays of both, byte for byte.
  void compare(char const* operation)
  {
    cache_ref const& answer = answer_.context().cache;
    detail::for_each_array(answer, device_.ref(), [&](void* to, void* from, std::size_t bytes) {
      copy_bytes(to, from, bytes);
    });
    check(cudaStreamSynchronize(stream()), operation);
    std::string const difference = difference_of(host_.context().cache, answer);
    if (!difference.empty()) { note(operation, difference); }
  }

  twin_setup setup_;
  random random_;
  device_stream stream_{};
  counting_device_resource resource_{};
  kv_cache<Config> host_;
  kv_cache<Config> answer_;  //!< memory for what the device holds
  twin_cache device_;
  twin_inputs<T> inputs_;
  std::vector<bool> lives_;
  pinned_array<std::uint32_t> refused_count_{1};
  pinned_array<std::uint32_t> refused_{shape().num_slots};
  pinned_array<release_report> report_{1};
  pinned_array<std::uint64_t> free_pages_{1};
  pinned_array<sequence_usage> usage_{shape().num_slots};
  cudaGraphExec_t admit_graph_   = nullptr;
  cudaGraphExec_t store_graph_   = nullptr;
  cudaGraphExec_t step_graph_    = nullptr;
  cudaGraphExec_t release_graph_ = nullptr;
  std::string trouble_{};
  twin_counts counts_{};
  int batch_steps_ = 0;
  std::vector<std::uint32_t> sizes_{};
};

}  // namespace diffkv::test
