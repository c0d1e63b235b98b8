// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Random lives of sequences whose scores decode attention updates: in each step device and host twin
//! start from the same bytes, and what they leave is compared, array by array.
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>

#include <memory>
#include <string>

#include "support/decode_case.cuh"
#include "support/score_comparison.hpp"

namespace diffkv::test {

struct score_setup {
  std::uint32_t slots = 4, layers = 3, heads = 2;
  std::int32_t max_tokens = 150, window = 16;
  std::uint32_t sixths_of_pages = 4;  //!< of those that all rows could need: steps are refused
  attention_options options{};        //!< scale 0: 1 / sqrt(head_dim)
  decode_grid grid{};
  float query_size           = 2.0f;
  bool bad_queries           = false;  //!< now and then a NaN or Inf
  bool captured              = false;  //!< plan and launches are replays of one graph
  bool steady                = false;  //!< all sequences are in every batch, in the same order
  catch_up_schedule schedule = catch_up_schedule::by_batch;
};

//! @tparam Variant  with scores
template <class Config, class Variant, class T = __half>
class score_run {
 public:
  using policy_type = typename Config::policy_type;

  score_run(score_setup const& setup, policy_type const& host_policy,
            policy_type const& device_policy, std::uint64_t seed)
    : setup_{setup},
      policy_{host_policy},
      random_{seed},
      parts_{parts()},
      twin_{parts_},
      before_{parts_},
      answer_{parts_},
      active_(setup.slots, false)
  {
    twin_.shuffle_pages(random_);
    mirror_ = std::make_unique<device_cache>(twin_.ref(), parts_.limits.size());
    if (setup_.options.scale == 0.0f) {
      setup_.options.scale = 1.0f / std::sqrt(static_cast<float>(shape().head_dim));
    }
    setup_.options.exact_lagged_queries = Variant::exact_lag;
    decode_call call;
    call.options  = setup_.options;
    call.capacity = setup.slots;
    call.layers   = {0, setup.layers};
    call.grid     = setup.grid;
    attention_    = std::make_unique<device_type>(mirror_->ref(), call, device_policy);
  }
  score_run(score_run const&)            = delete;
  score_run& operator=(score_run const&) = delete;
  ~score_run()
  {
    if (graph_ != nullptr) { cudaGraphExecDestroy(graph_); }
  }

  //! Rounds of admissions, releases and one step of a random batch, until `trouble()`.
  void live(int rounds)
  {
    for (int i = 0; i < rounds && trouble_.empty(); ++i) {
      admit_and_release();
      step();
    }
  }

  [[nodiscard]] std::string const& trouble() const { return trouble_; }
  [[nodiscard]] int caught_up() const { return caught_up_; }
  //! Launches in which several sequences, all of the batch, caught up.
  [[nodiscard]] int together() const { return together_; }
  [[nodiscard]] int refused() const { return refused_; }
  [[nodiscard]] int scored() const { return scored_; }
  [[nodiscard]] int candidates() const { return candidates_; }

 private:
  using device_type = decode_device<Config, Variant, T, __half>;

  [[nodiscard]] cache_shape const& shape() const { return parts_.shape; }

  [[nodiscard]] host_cache_parts parts()
  {
    host_cache_parts p =
      decode_parts<Config>(setup_.slots, setup_.heads, Variant::group_size, setup_.max_tokens,
                           setup_.layers, Variant::score_every);
    p.exact_lagged_queries = Variant::exact_lag;
    p.shape.window         = setup_.window;
    p.shape.schedule       = setup_.schedule;
    p.num_pages            = p.num_pages * setup_.sixths_of_pages / 6;
    p.limits.clear();
    for (std::size_t i = 0; i < p.shape.num_rows(); ++i) {
      float const low = random_.pick(std::vector<float>{0.0f, 0.3f, 0.8f});
      p.limits.push_back({low + random_.pick(std::vector<float>{0.0f, 0.3f, 1.0f}), low});
    }
    return p;
  }

  [[nodiscard]] std::vector<float> vectors_of(std::size_t count, float size)
  {
    return rounded<T>(
      random_.floats(count * static_cast<std::size_t>(shape().head_dim), -size, size));
  }

  void admit_and_release()
  {
    for (std::uint32_t slot = 0; slot < shape().num_slots; ++slot) {
      if (active_[slot]) {
        if (twin_.ref().layer(slot, 0).num_tokens < shape().max_tokens && !random_.one_in(40)) {
          continue;
        }
        static_cast<void>(host::release_slots(twin_.context(), &slot, 1));
        active_[slot] = false;
      } else if (random_.one_in(2)) {
        admit(slot, random_.one_in(5) ? 0 : random_.between(1, shape().max_tokens * 2 / 3));
      }
    }
  }
  void admit(std::uint32_t slot, int n)
  {
    host::admission const one{slot, n};
    if (host::admit(twin_.context(), &one, 1, policy_) != 0) { return; }
    active_[slot]    = true;
    auto const count = static_cast<std::size_t>(n) * shape().num_heads;
    for (std::uint32_t layer = 0; n > 0 && layer < shape().num_layers; ++layer) {
      auto const k           = vectors_of(count, 1.0f);
      auto const v           = vectors_of(count, 1.0f);
      auto const importances = random_.floats(count, 0.0f, 2.0f / static_cast<float>(n));
      host::store_prompt(twin_.context(), slot, layer, policy_,
                         packed(k.data(), shape().num_heads, shape().head_dim),
                         packed(v.data(), shape().num_heads, shape().head_dim), importances.data());
      host::scan_candidates(twin_.context(), slot, layer, policy_);
    }
  }

  void step()
  {
    std::vector<std::uint32_t> batch;
    for (std::uint32_t slot = 0; slot < shape().num_slots; ++slot) {
      if (active_[slot] && (setup_.steady || !random_.one_in(6))) { batch.push_back(slot); }
    }
    auto const count = static_cast<std::uint32_t>(batch.size());
    if (!setup_.steady) { shuffle(batch.data(), count, random_); }
    refused_ += static_cast<int>(host::step(twin_.context(), batch.data(), count, policy_));

    bool const bad   = setup_.bad_queries && random_.one_in(3);
    auto const query = make_queries(count, bad);
    for (std::uint32_t layer = 0; layer < shape().num_layers; ++layer) {
      auto const k = vectors_of(std::size_t{count} * shape().num_heads, 1.0f);
      auto const v = packed(k.data(), shape().num_heads, shape().head_dim);
      host::append(twin_.context(), batch.data(), count, layer, v, v,
                   packed(query.data(), shape().num_q_heads(), shape().head_dim));
    }
    take_new_queries(batch);
    mirror_->upload(twin_.ref());
    give_new_queries(batch);
    mirror_->download(before_.ref());
    attend_on_host(batch, query);
    auto const last = attend_on_device(batch, query);
    mirror_->download(answer_.ref());
    if (!bad) { check_output(last, batch, query); }
    compare(batch, query);
  }

  [[nodiscard]] std::vector<float> make_queries(std::uint32_t count, bool bad)
  {
    auto query = vectors_of(std::size_t{count} * shape().num_q_heads(),
                            random_.one_in(3) ? 4.0f * setup_.query_size : setup_.query_size);
    if (bad && count > 0) {
      float const infinity = diffkv::detail::infinity;
      query[random_.below(static_cast<std::uint32_t>(query.size()))] =
        random_.pick(std::vector<float>{infinity, -infinity, infinity - infinity});
    }
    return rounded<T>(query);
  }

  //! Whether the step gave the sequence a place for its new token.
  [[nodiscard]] bool stored(std::uint32_t slot) const
  {
    return twin_.ref().state.rows[shape().row(slot, 0, 0)].append_slot != no_slot;
  }
  template <class F>
  void for_new_queries(std::vector<std::uint32_t> const& batch, F&& f) const
  {
    for (std::uint32_t slot : batch) {
      for (std::uint32_t layer = 0; stored(slot) && layer < shape().num_layers; ++layer) {
        std::int32_t const position = twin_.ref().layer(slot, layer).num_tokens - 1;
        for (std::uint32_t q_head = 0; q_head < shape().num_q_heads(); ++q_head) {
          f(twin_.ref().queries.index(shape().layer_of(slot, layer), position, q_head));
        }
      }
    }
  }
  //! Takes what `append` put into the ring, as decode attention puts it there, too: something else lies
  //! there until it does. On the host `before` has it meanwhile.
  void take_new_queries(std::vector<std::uint32_t> const& batch)
  {
    query_ring_ref const& ring = twin_.ref().queries;
    for_new_queries(batch, [&](std::size_t i) {
      copy_query(ring, before_.ref().queries, i);
      if (ring.rounding == lag_rounding::int8) {
        std::fill_n(ring.codes_of(i), shape().head_dim, std::int8_t{123});
        ring.largest[i] = 123.0f;
      } else {
        std::fill_n(ring.query(i), shape().head_dim, 123.0f);
      }
    });
  }
  void give_new_queries(std::vector<std::uint32_t> const& batch)
  {
    for_new_queries(
      batch, [&](std::size_t i) { copy_query(before_.ref().queries, twin_.ref().queries, i); });
  }

  void attend_on_host(std::vector<std::uint32_t> const& batch, std::vector<float> const& query)
  {
    auto const vectors_of = [this](auto* x) {
      return packed(x, shape().num_q_heads(), shape().head_dim);
    };
    std::vector<float> out(query.size());
    for (std::uint32_t layer = 0; layer < shape().num_layers; ++layer) {
      host::decode_attention(
        twin_.context(), batch.data(), static_cast<std::uint32_t>(batch.size()), layer, policy_,
        setup_.options, vectors_of(query.data()), vectors_of(out.data()), nullptr, true);
    }
  }
  [[nodiscard]] decode_answer<__half> attend_on_device(std::vector<std::uint32_t> const& batch,
                                                       std::vector<float> const& query)
  {
    attention_->set_batch(batch);
    attention_->set_query(query);
    attention_->spoil_outputs();
    if (!setup_.captured) {
      enqueue();
    } else {
      if (graph_ == nullptr) { capture(); }
      check(cudaGraphLaunch(graph_, attention_->stream()), "cudaGraphLaunch");
    }
    return attention_->answer();
  }
  void enqueue() const
  {
    attention_->plan();
    for (std::uint32_t layer = 0; layer < shape().num_layers; ++layer) {
      attention_->attend(layer);
    }
  }
  void capture()
  {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(attention_->stream(), cudaStreamCaptureModeThreadLocal),
          "capture");
    enqueue();
    check(cudaStreamEndCapture(attention_->stream(), &graph), "capture");
    check(cudaGraphInstantiate(&graph_, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }

  void check_output(decode_answer<__half> const& last, std::vector<std::uint32_t> const& batch,
                    std::vector<float> const& query)
  {
    auto const bounds = bounds_of(parts_.tiers);
    auto const errors =
      errors_of(last, before_.context(), batch, query, shape().num_layers - 1, setup_.options);
    if (!(errors.out <= bounds.out)) { trouble_ += "out errs by " + std::to_string(errors.out); }
    if (!(errors.lse <= bounds.lse)) { trouble_ += "lse errs by " + std::to_string(errors.lse); }
    if (last.wrote_astray) { trouble_ += "wrote astray; "; }
  }

  void compare(std::vector<std::uint32_t> const& batch, std::vector<float> const& query)
  {
    score_comparison<policy_type> comparison{twin_,   before_,        answer_,
                                             policy_, setup_.options, Variant::exact_lag};
    auto const count = static_cast<std::uint32_t>(batch.size());
    std::vector<std::size_t> caught_up(shape().num_layers);
    for (std::size_t s = 0; s < batch.size(); ++s) {
      for (std::uint32_t layer = 0; stored(batch[s]) && layer < shape().num_layers; ++layer) {
        comparison.compare_ring(
          batch[s], layer,
          query.data() + s * shape().num_q_heads() * static_cast<std::size_t>(shape().head_dim));
        auto const turn = host::detail::turn_in(twin_.ref(), batch.data(), count, layer);
        bool const does = comparison.compare_rows(batch[s], layer, turn);
        caught_up_ += does ? 1 : 0;
        caught_up[layer] += does ? 1 : 0;
      }
    }
    for (std::size_t const in_layer : caught_up) {
      together_ += count > 1 && in_layer == count ? 1 : 0;
    }
    trouble_ += comparison.finish();
    scored_ += comparison.scored();
    candidates_ += comparison.candidates();
    if (!trouble_.empty()) { trouble_ += " after " + std::to_string(caught_up_) + " catch-ups"; }
  }

  score_setup setup_;
  policy_type policy_;
  random random_;
  host_cache_parts parts_;
  host_cache twin_;    //!< what the host operations work on
  host_cache before_;  //!< what both start from
  host_cache answer_;  //!< what the device left
  std::unique_ptr<device_cache> mirror_{};
  std::unique_ptr<device_type> attention_{};
  std::vector<bool> active_;
  cudaGraphExec_t graph_ = nullptr;
  std::string trouble_{};
  int caught_up_ = 0, together_ = 0, refused_ = 0, scored_ = 0, candidates_ = 0;
};

}  // namespace diffkv::test
