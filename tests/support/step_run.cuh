// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Random lives of sequences on the device beside the host twin: both start each operation from the
//! same state, and every array is compared bitwise after it.
#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/scores.hpp>
#include <diffkv/host/step.hpp>

#include <memory>
#include <string>

#include "support/device_cache.hpp"
#include "support/host_cache.hpp"
#include "support/random.hpp"

namespace diffkv::test {

struct step_run_setup {
  cache_shape shape{};
  std::uint32_t num_pages = 0;
  float low_clip          = 1.0f;
  bool not_numbers        = false;  //!< now and then a NaN or Inf among keys and values
  bool aligned            = true;   //!< else vectors start anywhere, with odd strides
  bool captured           = false;  //!< step and appends are replays of one graph
  bool no_queries         = false;  //!< appends get none
};

//! @tparam Config  static_config; @tparam T element of keys, values and queries
template <class Config, class T>
class step_run {
 public:
  using policy_type = typename Config::policy_type;

  step_run(step_run_setup const& setup, policy_type const& host_policy,
           policy_type const& device_policy, std::uint64_t seed)
    : setup_{setup},
      host_policy_{host_policy},
      device_policy_{device_policy},
      random_{seed},
      twin_{parts()},
      answer_{parts_again_},
      active_(setup.shape.num_slots)
  {
    twin_.shuffle_pages(random_);
    device_ = std::make_unique<device_cache>(twin_.ref(), parts_again_.limits.size());
    cache_shape const& shape = setup_.shape;
    key_                     = make_vectors(shape.num_heads);
    value_                   = make_vectors(shape.num_heads);
    query_                   = make_vectors(shape.num_q_heads());
  }

  [[nodiscard]] random& numbers() { return random_; }
  [[nodiscard]] std::string const& trouble() const { return trouble_; }
  [[nodiscard]] int steps() const { return steps_; }
  [[nodiscard]] int refused() const { return refused_; }
  [[nodiscard]] int demoted() const { return demoted_; }
  [[nodiscard]] int lent_pages() const { return lent_; }
  [[nodiscard]] host_cache& cache() { return twin_; }

  //! Rounds of: admissions and releases on the host, new scores, one step of a random batch.
  void live(int rounds)
  {
    for (int round = 0; round < rounds && trouble_.empty(); ++round) {
      admit_and_release();
      inject_scores();
      step_once(random_batch());
    }
    if (trouble_.empty()) { trouble_ = page_trouble(twin_.ref()); }
  }

 private:
  struct device_vectors {
    std::vector<T> host{};
    std::unique_ptr<device_array<T>> device{};
    std::ptrdiff_t offset = 0, token_stride = 0, head_stride = 0;

    [[nodiscard]] vectors<T const> on_host(std::size_t layer) const
    {
      return {host.data() + first(layer), token_stride, head_stride};
    }
    [[nodiscard]] vectors<T const> on_device(std::size_t layer) const
    {
      return {device->data() + first(layer), token_stride, head_stride};
    }
    std::size_t layer_elements = 0;
    [[nodiscard]] std::size_t first(std::size_t layer) const
    {
      return static_cast<std::size_t>(offset) + layer * layer_elements;
    }
  };

  [[nodiscard]] host_cache_parts parts()
  {
    cache_shape const& shape                 = setup_.shape;
    parts_again_.shape                       = shape;
    parts_again_.tiers                       = Config::layouts::pages;
    parts_again_.num_pages                   = setup_.num_pages;
    parts_again_.conditioned                 = Config::conditioned;
    parts_again_.tiers.low.format.key.clip   = setup_.low_clip;
    parts_again_.tiers.low.format.value.clip = setup_.low_clip;
    if (has(Config::conditioned, conditioning::centred)) {
      parts_again_.key_offsets = random_.floats(
        shape.rows_per_slot() * static_cast<std::size_t>(shape.head_dim), -1.0f, 1.0f);
    }
    parts_again_.limits.clear();
    for (std::size_t i = 0; i < shape.num_rows(); ++i) {
      float const low = random_.pick(std::vector<float>{0.0f, 0.02f, 0.3f, 0.8f});
      parts_again_.limits.push_back(
        {low + random_.pick(std::vector<float>{0.0f, 0.4f, 1.5f}), low});
    }
    return parts_again_;
  }

  [[nodiscard]] device_vectors make_vectors(std::uint32_t heads)
  {
    device_vectors v;
    auto const dim      = static_cast<std::ptrdiff_t>(setup_.shape.head_dim);
    std::ptrdiff_t more = setup_.aligned ? 0 : random_.between(0, 9);
    v.head_stride       = dim + more;
    v.token_stride      = v.head_stride * static_cast<std::ptrdiff_t>(heads) + more;
    v.offset            = setup_.aligned ? 0 : random_.between(0, 5);
    v.layer_elements    = static_cast<std::size_t>(v.token_stride) * setup_.shape.num_slots;
    v.host.resize(v.first(setup_.shape.num_layers) + 16);
    v.device = std::make_unique<device_array<T>>(v.host.size());
    return v;
  }
  void renew(device_vectors& v, bool may_be_no_number)
  {
    // Rotated, the largest leave the f16 range.
    float const size = random_.pick(std::vector<float>{0.01f, 1.0f, 50.0f, 60000.0f});
    for (T& x : v.host) { from_f32(random_.uniform(-size, size), x); }
    if (may_be_no_number && setup_.not_numbers && random_.one_in(3)) {
      float const nasty =
        random_.one_in(2) ? std::numeric_limits<float>::quiet_NaN() : diffkv::detail::infinity;
      from_f32(nasty, v.host[random_.below(static_cast<std::uint32_t>(v.host.size()))]);
    }
    check(cudaMemcpy(v.device->data(), v.host.data(), v.host.size() * sizeof(T),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }

  void admit_and_release()
  {
    cache_shape const& shape = setup_.shape;
    for (std::uint32_t slot = 0; slot < shape.num_slots; ++slot) {
      if (active_[slot] != 0) {
        if (twin_.ref().layer(slot, 0).num_tokens >= shape.max_tokens || random_.one_in(70)) {
          static_cast<void>(host::release_slots(twin_.context(), &slot, 1));
          active_[slot] = 0;
        }
        continue;
      }
      if (!random_.one_in(3)) { continue; }
      int const n = random_.one_in(6) ? 0 : random_.between(1, setup_.shape.max_tokens * 2 / 3);
      host::admission const one{slot, n};
      if (host::admit(twin_.context(), &one, 1, host_policy_) != 0) { continue; }
      active_[slot] = 1;
      for (std::uint32_t layer = 0; n > 0 && layer < shape.num_layers; ++layer) {
        auto const count = static_cast<std::size_t>(n) * shape.num_heads;
        auto const k =
          random_.floats(count * static_cast<std::size_t>(shape.head_dim), -2.0f, 2.0f);
        auto const importances = random_.floats(count, 0.0f, 3.0f / static_cast<float>(n));
        auto const packed_k    = packed(k.data(), shape.num_heads, shape.head_dim);
        host::store_prompt(twin_.context(), slot, layer, host_policy_, packed_k, packed_k,
                           importances.data());
      }
    }
  }

  //! In place of decode attention: scores of any size, and candidates made of them now and then.
  void inject_scores()
  {
    cache_shape const& shape = setup_.shape;
    for (std::uint32_t slot = 0; slot < shape.num_slots; ++slot) {
      if (active_[slot] == 0) { continue; }
      for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
        layer_state& state = twin_.ref().layer(slot, layer);
        bool const scores  = shape.score_every > 0 && random_.one_in(shape.score_every);
        if (scores && state.num_tokens > state.queries.prompt_tokens) {
          state.queries.last_query = state.num_tokens - 1;
          new_scores(slot, layer, static_cast<float>(state.num_tokens));
        }
        if (scores || shape.score_every == 0 || random_.one_in(20)) {
          host::scan_candidates(twin_.context(), slot, layer, host_policy_);
        }
      }
    }
  }
  void new_scores(std::uint32_t slot, std::uint32_t layer, float num_tokens)
  {
    for (std::uint32_t head = 0; head < setup_.shape.num_heads; ++head) {
      row_view const row = twin_.context().row(setup_.shape.row(slot, layer, head));
      for (tier t : {tier::high, tier::low}) {
        for (slot_index s = 0; s < row.state().tokens.of(t); ++s) {
          float const count = static_cast<float>(
            twin_.ref().layer(slot, layer).queries.count(row.position(t, s) + 1));
          row.page_of(t, s).set_score(row.token_in_page(t, s),
                                      random_.uniform(0.0f, 2.5f) * count / num_tokens);
        }
      }
    }
  }

  [[nodiscard]] std::vector<std::uint32_t> random_batch()
  {
    std::vector<std::uint32_t> batch;
    for (std::uint32_t slot = 0; slot < setup_.shape.num_slots; ++slot) {
      if (active_[slot] != 0 && !random_.one_in(6)) { batch.push_back(slot); }
    }
    shuffle(batch.data(), static_cast<std::uint32_t>(batch.size()), random_);
    return batch;
  }

  void step_once(std::vector<std::uint32_t> const& batch)
  {
    auto const count = static_cast<std::uint32_t>(batch.size());
    device_->upload(twin_.ref());
    renew(key_, true);
    renew(value_, true);
    renew(query_, false);
    std::vector<std::uint32_t> padded = batch;
    padded.resize(setup_.shape.num_slots, 0xFFFF'FFFFu);
    set(slots_, padded);
    set(count_, {count});

    count_moves(batch);
    std::uint32_t refused_wanted = 0;
    std::vector<std::uint32_t> named_wanted(count);
    host::step(twin_.context(), batch.data(), count, host_policy_,
               {&refused_wanted, named_wanted.data()});
    vectors<T const> const none{nullptr, 0, 0};
    for (std::uint32_t layer = 0; layer < setup_.shape.num_layers; ++layer) {
      host::append(twin_.context(), batch.data(), count, layer, key_.on_host(layer),
                   value_.on_host(layer), setup_.no_queries ? none : query_.on_host(layer));
    }
    run_on_device();
    device_->download(answer_.ref());
    trouble_ = difference_of(twin_.ref(), answer_.ref());

    std::uint32_t const refused_got = refused_count_.to_host()[0];
    auto named_got                  = refused_names_.to_host();
    named_got.resize(std::min<std::size_t>(refused_got, named_got.size()));
    named_wanted.resize(refused_wanted);
    if (named_got != named_wanted) { trouble_ += "refusals; "; }
    refused_ += static_cast<int>(refused_wanted);
    steps_ += static_cast<int>(count - refused_wanted);
    if (!trouble_.empty()) { trouble_ += "at step " + std::to_string(steps_); }
  }

  void count_moves(std::vector<std::uint32_t> const& batch)
  {
    cache_shape const& shape = setup_.shape;
    for (std::uint32_t slot : batch) {
      for (std::uint32_t r = 0; r < shape.rows_per_slot(); ++r) {
        std::uint32_t const layer = r / shape.num_heads;
        layer_state const& state  = twin_.ref().layer(slot, layer);
        row_view const row        = twin_.context().row(shape.row(slot, 0, 0) + r);
        row_step const plan =
          plan_row_step(host_policy_, row, state.queries, state.num_tokens + 1,
                        twin_.ref().limits.of(slot, layer, r % shape.num_heads));
        demoted_ += plan.demote_from != no_slot ? 1 : 0;
        lent_ +=
          plan.high_page == page_source::other_tier || plan.low_page == page_source::other_tier ? 1
                                                                                                : 0;
        filled_ += plan.fill_from != no_slot ? 1 : 0;
        step_record const record = pack_step(plan, row.state().tokens, state.num_tokens, 7);
        if (!same(unpack_step(record, row.state().tokens), plan)) { trouble_ += "record; "; }
      }
    }
  }
  [[nodiscard]] static bool same(row_step const& a, row_step const& b)
  {
    return a.append_slot == b.append_slot && a.demote_from == b.demote_from &&
           a.demote_to == b.demote_to && a.fill_from == b.fill_from && a.fill_to == b.fill_to &&
           a.tokens_after == b.tokens_after && a.high_page == b.high_page &&
           a.low_page == b.low_page;
  }

  void run_on_device()
  {
    if (!setup_.captured) {
      enqueue();
    } else {
      if (graph_ == nullptr) { capture(); }
      check(cudaGraphLaunch(graph_, stream_.get()), "cudaGraphLaunch");
    }
    stream_.wait();
  }
  void enqueue()
  {
    batch_ref const batch{slots_.data(), count_.data(), setup_.shape.num_slots};
    diffkv::step<Config>(device_->ref(), batch, device_policy_, workspace_.data(),
                         workspace_.size(), {refused_count_.data(), refused_names_.data()},
                         stream_.get());
    vectors<T const> const none{nullptr, 0, 0};
    for (std::uint32_t layer = 0; layer < setup_.shape.num_layers; ++layer) {
      diffkv::append<Config>(device_->ref(), batch, layer, key_.on_device(layer),
                             value_.on_device(layer),
                             setup_.no_queries ? none : query_.on_device(layer), stream_.get());
    }
  }
  void capture()
  {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "capture");
    enqueue();
    check(cudaStreamEndCapture(stream_.get(), &graph), "capture");
    check(cudaGraphInstantiate(&graph_, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }

  static void set(device_array<std::uint32_t> const& to, std::vector<std::uint32_t> const& from)
  {
    check(cudaMemcpy(to.data(), from.data(), from.size() * 4, cudaMemcpyHostToDevice), "set");
  }

 public:
  step_run(step_run const&)            = delete;
  step_run& operator=(step_run const&) = delete;
  ~step_run()
  {
    if (graph_ != nullptr) { cudaGraphExecDestroy(graph_); }
  }
  [[nodiscard]] int filled() const { return filled_; }

 private:
  step_run_setup setup_;
  policy_type host_policy_;
  policy_type device_policy_;
  random random_;
  host_cache_parts parts_again_{};
  host_cache twin_;    //!< what the host operations work on
  host_cache answer_;  //!< what the device left
  std::unique_ptr<device_cache> device_{};
  std::vector<std::uint8_t> active_;
  device_vectors key_, value_, query_;
  device_array<std::uint32_t> slots_{setup_.shape.num_slots};
  device_array<std::uint32_t> count_{1};
  device_array<std::uint32_t> refused_count_{1};
  device_array<std::uint32_t> refused_names_{setup_.shape.num_slots};
  device_array<std::byte> workspace_{step_workspace_bytes(setup_.shape, setup_.shape.num_slots)};
  device_stream stream_{};
  cudaGraphExec_t graph_ = nullptr;
  std::string trouble_{};
  int steps_ = 0, refused_ = 0, demoted_ = 0, lent_ = 0, filled_ = 0;
};

}  // namespace diffkv::test
