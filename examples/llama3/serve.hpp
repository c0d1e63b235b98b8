// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Many prompts answered at the same time: from the lines of a file to texts and a report.
//! Read before this: llama3/scheduler.hpp, llama3/options.hpp.  Read next: llama3/main.cpp.
#include "llama3/options.hpp"
#include "llama3/scheduler.hpp"
#include "llama3/tokenizer.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llama3 {

//! The prompts of options.requests, numbered from 1, as tokens: through the model's chat template, or as
//! they are with options.raw. The first has the seed of the options, each other one more than the last.
//! @param context  prompt and new tokens of one at most
//! @throws std::invalid_argument naming the prompt that leaves no room in the context;
//!         file_error if there is no chat template
[[nodiscard]] std::vector<generation_request> make_requests(program_options const& options,
                                                            tokenizer const& words, int context);

//! Tokens of the longest sequence that comes of them, within the context.
[[nodiscard]] int longest_sequence(std::vector<generation_request> const& requests, int context);

//! One that is finished.
struct request_answer {
  std::uint64_t id = 0;
  std::string text{};
  request_end reason = request_end::length;
  int new_tokens     = 0;
  int preemptions    = 0;
};

//! What a run with many requests says about itself.
struct serving_report {
  std::string device{};   //!< where the model ran
  std::string formats{};  //!< of the cache
  int requests        = 0;
  int no_memory       = 0;  //!< of these, ended for want of pages
  int prompt_tokens   = 0;
  int new_tokens      = 0;
  double seconds      = 0.0;  //!< prompts and steps
  int slots           = 0;
  int peak_batch      = 0;  //!< sequences at the same time
  std::uint64_t steps = 0, preemptions = 0;
  std::uint64_t pages = 0;  //!< of the pool

  //! New tokens of all requests, over the whole time.
  [[nodiscard]] double tokens_per_second() const;
};

//! Answers all of them.
//! @param stop_ids   each ends an answer
//! @param on_answer  called with each answer when it is finished
//! @return  without device and formats
//! @throws  std::invalid_argument, before any work, as scheduler::submit does
[[nodiscard]] serving_report serve(batch_runner& runs, tokenizer const& words,
                                   std::vector<token_id> const& stop_ids,
                                   std::vector<generation_request> const& requests,
                                   std::function<void(request_answer const&)> const& on_answer);

//! A line about the answer, then its text.
[[nodiscard]] std::string as_text(request_answer const& answer);
[[nodiscard]] std::string as_text(serving_report const& report);

//! One line; the keys are documented in examples/llama3/README.md.
[[nodiscard]] std::string as_json(request_answer const& answer);
[[nodiscard]] std::string as_json(serving_report const& report);

}  // namespace llama3
