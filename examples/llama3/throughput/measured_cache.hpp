// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One cache with a full batch of sequences of one length, and how long their steps take.
//! Read before this: llama3/throughput/partial_cache.hpp, llama3/cuda/runner.hpp.
//! Read next: llama3/throughput/step_times.hpp, llama3/throughput/generation.hpp.
#include "llama3/cuda/runner.hpp"
#include "llama3/throughput/partial_cache.hpp"

#include <vector>

namespace llama3 {

//! What a step does; all of it, unless parts are measured.
struct step_parts {
  cache_parts cache{};
  bool products = true;
};

struct measured_setup {
  bool is_mix              = true;  //!< else 16-bit pages
  int num_sequences        = 1;
  int max_tokens           = 0;      //!< of a sequence
  int shortest_prompt      = 0;      //!< bounds how many are read together
  int pass_tokens          = 16384;  //!< of prompts that are read together
  std::uint64_t pool_bytes = 0;      //!< 0: enough for every sequence, whatever its tiers
};

class measured_cache {
 public:
  //! @param of  must outlive this
  //! @throws std::invalid_argument if there is no device code for the cache, naming what there is
  measured_cache(device_model& of, measured_setup const& setup);

  [[nodiscard]] static char const* name_of(bool is_mix) { return is_mix ? "mix" : "k16v16"; }

  //! Ends the sequences there are and begins new ones, with prompts of so many random tokens.
  //! The first pass of prompts goes through the whole model. The others, unless `all`, are stored
  //! without products and attention: their keys and values are those that lie there, in pages of their own.
  //! @return seconds of the first pass for each of its sequences
  //! @throws std::runtime_error if pages run out
  double fill(int num_tokens, bool all);

  //! Steps from here on do these parts; each family of parts has its graphs.
  void use(step_parts const& parts, int family);

  //! Some steps, launched one behind the other: seconds from the end of each to the end of the next, by
  //! the GPU's clock. Sequences grow by `tokens_of_timing`, unless compaction is left out.
  //! @throws std::runtime_error if pages run out
  [[nodiscard]] std::vector<double> time_steps();
  static constexpr int tokens_of_timing = 4;

  //! Steps until the sequences have got so many more tokens; seconds by the host's clock.
  double run_steps(int num_tokens);

  //! Ends the sequences there are, and captures the graphs of all sizes of a batch, so that none is captured
  //! while requests wait.
  void capture_graphs();
  //! For a scheduler, while no sequence of this class runs.
  [[nodiscard]] batch_runner& runs() noexcept { return runner_; }

  [[nodiscard]] diffkv::sequence_usage usage() { return runner_.usage(0); }
  [[nodiscard]] std::uint64_t free_pages() { return runner_.free_pages(); }
  [[nodiscard]] std::uint64_t num_pages() const { return runner_.num_pages(); }
  [[nodiscard]] std::uint64_t most_pages(int num_tokens) const
  {
    return runner_.most_pages(num_tokens);
  }
  [[nodiscard]] std::uint64_t page_bytes() const;
  [[nodiscard]] int num_sequences() const noexcept { return setup_.num_sequences; }

 private:
  [[nodiscard]] device_cache_setup device_setup() const;
  [[nodiscard]] runner make_runner(device_model& of);
  void release();
  void expect_no_refusal(step_result const& result) const;

  device_model& model_;
  measured_setup setup_;
  partial_cache* cache_ = nullptr;  // the runner owns it
  runner runner_;
  std::vector<std::uint32_t> slots_{};
  bool is_filled_ = false;
};

}  // namespace llama3
