// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Many sequences on the GPU: prompts as they come, and each step as one graph, captured once per size
//! of the batch and replayed for every token.
//! Read before this: llama3/batch_runner.hpp, llama3/cuda/device_model.hpp,
//! llama3/cuda/batch_state.hpp.  Read next: llama3/cuda/cuda_session.hpp, llama3/scheduler.hpp.
#include "llama3/batch_runner.hpp"
#include "llama3/cuda/batch_state.hpp"
#include "llama3/cuda/device_model.hpp"

#include <map>
#include <memory>
#include <string>
#include <utility>  // pair
#include <vector>

namespace llama3 {

class runner final : public batch_runner {
 public:
  //! @param of     must outlive this; has room for passes of setup.prompt_tokens and setup.num_slots
  //! @param cache  made of the same setup
  //! @param num_ids  ids from here on are never chosen: tokenizer::size()
  runner(device_model& of, std::unique_ptr<device_cache> cache, device_cache_setup const& setup,
         int num_ids);
  ~runner() override;

  [[nodiscard]] int num_slots() const override { return setup_.num_slots; }
  [[nodiscard]] int max_prompts() const override { return setup_.prompts; }
  [[nodiscard]] int max_prompt_tokens() const override { return setup_.prompt_tokens; }
  [[nodiscard]] int max_tokens() const override { return setup_.max_tokens; }
  [[nodiscard]] std::uint64_t most_pages(int num_tokens) const override;
  [[nodiscard]] std::uint64_t num_pages() const override { return cache_->options().num_pages; }
  [[nodiscard]] std::vector<std::optional<token_id>> read_prompts(
    std::vector<prompt_request> const& prompts) override
  {
    return read_prompts(prompts, {});
  }
  [[nodiscard]] std::vector<std::optional<token_id>> read_prompts(
    std::vector<prompt_request> const& prompts, progress_callback const& progress);
  void step(std::vector<std::uint32_t> const& slots) override;
  [[nodiscard]] step_result collect() override;
  [[nodiscard]] int max_steps_ahead() const override { return depth - 1; }
  void release(std::vector<std::uint32_t> const& slots) override;
  [[nodiscard]] std::uint64_t free_pages() override;

  //! Steps are launched one kernel after the other instead of as a graph: the same work, for tests.
  void use_graphs(bool use) noexcept { use_graphs_ = use; }
  //! Steps from here on replay graphs of their own: for a cache or a model that now does other work than
  //! when the last ones were captured, in measurements.
  void use_graph_family(int family) noexcept { graph_family_ = family; }
  //! Sequences that a graph for so many serves; a cache needs as many slots.
  [[nodiscard]] static int padded(int count) noexcept;
  //! Overrides the token that a sequence takes in next.
  void set_token(std::uint32_t slot, token_id id);
  //! [sequences, vocab_size] of the last step or prompts, in device memory.
  [[nodiscard]] float const* logits() const noexcept { return logits_.data(); }
  [[nodiscard]] diffkv::cache_options const& cache_options() const { return cache_->options(); }
  //! Handles of what lies in device memory.
  [[nodiscard]] diffkv::cache_ref cache_ref() { return cache_->ref(); }
  [[nodiscard]] diffkv::sequence_usage usage(std::uint32_t slot);

 private:
  static constexpr int depth = 4;  // reports that the host may be behind

  //! Sequences that steps and prompts need room for.
  [[nodiscard]] int most_rows() const noexcept;
  //! @throws diffkv::invalid_argument naming the operation
  void expect_nothing_waits(std::string const& operation) const;
  void run_step(int capacity);
  [[nodiscard]] std::vector<bool> admit(std::vector<prompt_request> const& prompts);

  device_model& model_;
  std::unique_ptr<device_cache> cache_;
  device_cache_setup setup_;
  int num_ids_;
  cudaStream_t stream_;
  bool use_graphs_  = true;
  int graph_family_ = 0;

  // Of each slot, and of each sequence of a batch.
  device_array<token_id> tokens_, ids_, chosen_;
  device_array<std::int32_t> positions_, batch_positions_, next_positions_;
  device_array<sampling> options_, batch_options_;
  device_array<std::uint32_t> batch_;     // count, then slots
  device_array<std::uint32_t> refusals_;  // count, then sequences
  device_array<float> logits_;
  device_array<std::uint64_t> free_pages_;
  device_array<std::uint32_t> step_number_;
  pinned_array<token_id> reported_tokens_;
  pinned_array<std::uint64_t> reported_pages_;

  std::vector<std::uint32_t> current_;  // slots in batch_
  std::vector<int> waiting_;            // sizes of the steps that were not collected, oldest first
  std::uint32_t num_collected_ = 0;
  std::vector<gpu_event> events_;
  std::map<std::pair<int, int>, step_graph> graphs_;  // by family and size of the batch
};

}  // namespace llama3
