// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a run needs beside the weights: small, and enough to refuse what cannot work before they are read.
//! Read before this: llama3/options.hpp, llama3/tokenizer.hpp, llama3/scheduler.hpp.
//! Read next: llama3/main.cpp.
#include "llama3/model_config.hpp"
#include "llama3/options.hpp"
#include "llama3/scheduler.hpp"  // generation_request
#include "llama3/tokenizer.hpp"

#include <filesystem>
#include <vector>

namespace llama3 {

//! What the user's text is as tokens: the prompt, and what comes behind it in the input.
struct input_tokens {
  std::vector<token_id> prompt;
  std::vector<token_id> continuation;
};

//! Everything that is loaded before a token is read.
struct loaded {
  model_config config;
  tokenizer words;
  input_tokens input;                        //!< of one sequence
  std::vector<generation_request> requests;  //!< or of many
  std::vector<token_id> calibration;         //!< empty unless keys are centred
  int context;                               //!< prompt and new tokens at most
  int max_tokens;                            //!< of this sequence, or the longest
};

//! @param calibration_text  unless the options name another
//! @throws std::invalid_argument, file_error naming what cannot work
[[nodiscard]] loaded prepare(program_options const& options,
                             std::filesystem::path const& calibration_text);

}  // namespace llama3
