// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The forward pass of Llama, Qwen2 and Mistral: token ids in, logits out. K and V go to an
//! attention_backend and nowhere else.
//! Read before this: llama3/attention_backend.hpp, llama3/weights.hpp, llama3/rope.hpp.
#include "llama3/attention_backend.hpp"
#include "llama3/checkpoint.hpp"
#include "llama3/model_config.hpp"
#include "llama3/progress.hpp"
#include "llama3/rope.hpp"
#include "llama3/thread_pool.hpp"
#include "llama3/time_account.hpp"
#include "llama3/token_id.hpp"
#include "llama3/weights.hpp"

#include <vector>

namespace llama3 {

//! A loaded model. It keeps no state of a sequence: that is the backend's, and the caller counts
//! positions. One thread at a time.
class model {
 public:
  //! @param threads  must outlive the model
  //! @throws file_error as load_weights does
  model(model_config const& config, checkpoint const& files, thread_pool& threads);

  [[nodiscard]] model_config const& config() const noexcept { return config_; }

  //! Reads a prompt, positions 0 to ids.size() - 1.
  //! @param progress  told after each layer
  //! @return [vocab_size] logits after its last token
  //! @throws std::invalid_argument, before any work, if there are no ids or one is outside the
  //!         vocabulary
  [[nodiscard]] std::vector<float> prompt(std::vector<token_id> const& ids,
                                          attention_backend& backend,
                                          progress_callback const& progress = {});

  //! The same with logits after chosen tokens.
  //! @param positions  each below ids.size(), else std::invalid_argument; may be empty: K and V only
  //! @return [positions.size(), vocab_size]
  [[nodiscard]] std::vector<float> prompt_logits(std::vector<token_id> const& ids,
                                                 std::vector<int> const& positions,
                                                 attention_backend& backend,
                                                 progress_callback const& progress = {});

  //! One more token at `position`, which counts every token before it, pruned ones too.
  //! @return [vocab_size] logits after it
  //! @throws std::invalid_argument, before any work, for an id outside the vocabulary or a
  //!         position below 0
  [[nodiscard]] std::vector<float> decode(token_id id, int position, attention_backend& backend);

  [[nodiscard]] time_account const& times() const noexcept { return times_; }
  void clear_times() noexcept { times_ = {}; }

 private:
  void check_id(token_id id) const;
  //! Rows of the embedding: [ids.size(), hidden_size]
  [[nodiscard]] std::vector<float> embed(std::vector<token_id> const& ids);
  //! Takes hidden [num_tokens, hidden_size] through one layer. `attend(q, k, v, out)` gets the
  //! arrays of attention_backend.
  template <class Attend>
  void run_layer(layer_weights const& layer, int num_tokens, float* hidden, Attend&& attend);
  //! @param[in] hidden  [num_rows, hidden_size]
  [[nodiscard]] std::vector<float> logits(float const* hidden, int num_rows);
  //! cos and sin of positions first to first + num_tokens - 1
  void set_angles(int first, int num_tokens);

  model_config config_;
  model_weights weights_;
  rope rope_;
  thread_pool* threads_;
  time_account times_;
  std::vector<float> cosines_, sines_;       // [num_tokens, head_dim / 2]
  std::vector<float> q_, k_, v_, attended_;  // of all tokens, as attention_backend wants them
  std::vector<float> normed_, wide_, gated_, narrow_;  // of one slice of tokens
};

}  // namespace llama3
