// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A session on the CPU: the model in plain C++ and the host twins of the cache.
//! Read before this: llama3/session.hpp, llama3/model.hpp, llama3/paged_backend.hpp.
//! Read next: llama3/main.cpp.
#include "llama3/cache_settings.hpp"
#include "llama3/model.hpp"
#include "llama3/paged_backend.hpp"
#include "llama3/session.hpp"
#include "llama3/thread_pool.hpp"

#include <vector>

namespace llama3 {

class cpu_session final : public session {
 public:
  //! Arguments as of paged_backend.
  //! @param of       may be shared with other sessions; must outlive this
  //! @param threads  must outlive this
  //! @throws diffkv::invalid_argument naming the setting that is not legal
  cpu_session(model& of, cache_settings const& settings, int max_tokens,
              std::vector<float> key_offsets, thread_pool& threads);

  [[nodiscard]] std::vector<float> prompt(std::vector<token_id> const& ids,
                                          progress_callback const& progress = {}) override;
  [[nodiscard]] std::vector<float> decode(token_id id) override;

  [[nodiscard]] diffkv::sequence_usage usage() override { return cache_.usage(); }
  [[nodiscard]] diffkv::cache_options const& options() const override { return cache_.options(); }
  [[nodiscard]] time_account times() const override { return times_; }
  void clear_times() override { times_ = {}; }

 private:
  //! `work()`, and its time on the account of this session: the model has one for all.
  template <class Work>
  std::vector<float> charged(Work&& work);

  model* model_;
  paged_backend cache_;
  int position_{0};  // of the next token; 0: there is no sequence
  time_account times_;
};

}  // namespace llama3
