// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The seam between the program and the place where a model runs: one sequence, on the CPU or on a
//! GPU.
//! Read before this: llama3/token_id.hpp, llama3/time_account.hpp, llama3/progress.hpp.
//! Read next: llama3/cpu_session.hpp, llama3/comparison.hpp.
#include "llama3/progress.hpp"
#include "llama3/time_account.hpp"
#include "llama3/token_id.hpp"

#include <diffkv/cache/cache_options.hpp>
#include <diffkv/cache/sequence_usage.hpp>

#include <stdexcept>  // invalid_argument
#include <string>
#include <vector>

namespace llama3 {

//! One sequence through one model and one cache. It counts its positions itself. Several sessions may
//! share a model; all of them belong to one thread at a time.
struct session {
  virtual ~session() = default;

  //! Begins a new sequence with a prompt; the one before it is forgotten, even if this throws.
  //! @return [vocab_size] logits after its last token
  //! @throws std::invalid_argument, before any work, if there are no ids or one is outside the
  //!         vocabulary
  [[nodiscard]] virtual std::vector<float> prompt(std::vector<token_id> const& ids,
                                                  progress_callback const& progress = {}) = 0;

  //! One more token.
  //! @return [vocab_size] logits after it
  //! @throws std::invalid_argument, before any work, for an id outside the vocabulary, if there is no
  //!         prompt before it, or if the sequence is as long as the session allows
  [[nodiscard]] virtual std::vector<float> decode(token_id id) = 0;

  //! What the cache holds now.
  [[nodiscard]] virtual diffkv::sequence_usage usage() = 0;
  //! Of the cache, with every default resolved.
  [[nodiscard]] virtual diffkv::cache_options const& options() const = 0;

  //! Where the time of this session went since it was made or its times were cleared; time of other
  //! sessions of the same model is not in it.
  [[nodiscard]] virtual time_account times() const = 0;
  virtual void clear_times()                       = 0;

 protected:
  //! @throws std::invalid_argument if a sequence of `num_tokens` tokens may have no more than these
  static void expect_room(int num_tokens, int max_tokens)
  {
    if (num_tokens < max_tokens) { return; }
    throw std::invalid_argument("the sequence has all of the session's " +
                                std::to_string(num_tokens) + " tokens");
  }
};

}  // namespace llama3
