// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A session over any attention_backend, for tests that bring their own.
#include "llama3/attention_backend.hpp"
#include "llama3/model.hpp"
#include "llama3/session.hpp"

#include <vector>

namespace llama3::test {

//! It holds no cache of the library: usage and options are empty.
class backend_session final : public session {
 public:
  backend_session(model& of, attention_backend& backend) : model_{of}, backend_{backend} {}

  std::vector<float> prompt(std::vector<token_id> const& ids,
                            progress_callback const& progress = {}) override
  {
    position_ = static_cast<int>(ids.size());
    return charged(model_.prompt(ids, backend_, progress));
  }
  std::vector<float> decode(token_id id) override
  {
    return charged(model_.decode(id, position_++, backend_));
  }
  diffkv::sequence_usage usage() override { return {}; }
  [[nodiscard]] diffkv::cache_options const& options() const override { return options_; }
  [[nodiscard]] time_account times() const override { return times_; }
  void clear_times() override { times_ = {}; }

 private:
  std::vector<float> charged(std::vector<float> logits)
  {
    times_ += model_.times();
    model_.clear_times();
    return logits;
  }

  model& model_;
  attention_backend& backend_;
  int position_{0};
  time_account times_;
  diffkv::cache_options options_;
};

}  // namespace llama3::test
