// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A session on the GPU: one sequence, each token a replay of one graph.
//! Read before this: llama3/session.hpp, llama3/cuda/runner.hpp.  Read next: llama3/main.cpp.
#include "llama3/cuda/runner.hpp"
#include "llama3/session.hpp"

#include <vector>

namespace llama3 {

class cuda_session final : public session {
 public:
  //! @param of           may be shared with other sessions; must outlive this
  //! @param max_tokens   longest sequence; pages are there for all of it
  //! @param key_offsets  [num_layers, num_heads, head_dim] where the settings are centred, else empty
  //! @throws std::invalid_argument for settings there is no code for, naming those there is
  cuda_session(device_model& of, cache_settings const& settings, int max_tokens,
               std::vector<float> key_offsets);

  [[nodiscard]] std::vector<float> prompt(std::vector<token_id> const& ids,
                                          progress_callback const& progress = {}) override;
  [[nodiscard]] std::vector<float> decode(token_id id) override;

  [[nodiscard]] diffkv::sequence_usage usage() override { return runner_.usage(slot); }
  [[nodiscard]] diffkv::cache_options const& options() const override
  {
    return runner_.cache_options();
  }
  [[nodiscard]] time_account times() const override { return times_; }
  void clear_times() override { times_ = {}; }

  //! For tests: see runner::use_graphs.
  void use_graphs(bool use) noexcept { runner_.use_graphs(use); }

 private:
  static constexpr std::uint32_t slot = 0;  // of the one sequence

  [[nodiscard]] std::vector<float> logits() const;

  device_model& model_;
  runner runner_;
  bool holds_pages_ = false;  // or may do so, where reading a prompt failed
  int num_tokens_   = 0;      // of the sequence; 0: there is none
  time_account times_{};
};

}  // namespace llama3
