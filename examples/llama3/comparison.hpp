// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What compression costs: the same tokens through a 16-bit cache and a compressed one.
//! Read before this: llama3/session.hpp.  Read next: llama3/report.hpp.
#include "llama3/progress.hpp"
#include "llama3/session.hpp"
#include "llama3/time_account.hpp"
#include "llama3/token_id.hpp"

#include <vector>

namespace llama3 {

//! The two distributions after one forced token.
struct compared_position {
  double kl                         = 0.0;    //!< KL(16-bit || compressed), nats
  bool agrees                       = false;  //!< the same most likely token
  double log_probability            = 0.0;    //!< of the token that follows, 16-bit
  double log_probability_compressed = 0.0;
};

struct comparison {
  std::vector<compared_position> positions;
  time_account prompt_time{};  //!< of the compressed cache alone
  time_account decode_time{};

  [[nodiscard]] double mean_kl() const;
  [[nodiscard]] double agreement() const;  //!< share of positions that agree
  //! exp of the mean difference of log-probabilities of the tokens that follow
  [[nodiscard]] double perplexity_ratio() const;
};

//! Compares one pair of distributions.
//! @param reference, other  [vocab_size] logits
//! @param next              token whose log-probability is taken
[[nodiscard]] compared_position compare_logits(std::vector<float> const& reference,
                                               std::vector<float> const& other, token_id next);

//! Told how far each part is; each may be empty.
struct compare_progress {
  progress_callback reference_prompt, other_prompt, tokens;
};

//! Reads `prompt` into both sessions, once each, then forces `count` tokens through them: those of
//! `continuation`, then, where it ends, what is most likely under `reference`. Clears the times of
//! `other`.
[[nodiscard]] comparison compare(session& reference, session& other,
                                 std::vector<token_id> const& prompt,
                                 std::vector<token_id> const& continuation, int count,
                                 compare_progress const& progress = {});

}  // namespace llama3
