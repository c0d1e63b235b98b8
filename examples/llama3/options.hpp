// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line of the decode loop.
//! Read before this: llama3/cache_settings.hpp, llama3/sampler.hpp.  Read next: llama3/main.cpp.
#include "llama3/cache_settings.hpp"
#include "llama3/sampler.hpp"
#include "llama3/thread_pool.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace llama3 {

enum class report_form { text, json };

//! Where the model runs; automatic: on a GPU if there is one that the program has code for.
enum class device_kind { automatic, cuda, cpu };

struct program_options {
  std::filesystem::path model;
  std::string prompt;                   //!< the text, wherever it came from
  std::vector<std::string> requests{};  //!< prompts of --requests; none: `prompt` is answered
  bool raw       = false;               //!< no chat template
  int skip       = 0;                   //!< tokens of the input before the prompt
  int take       = 0;                   //!< --prompt-tokens: tokens of the prompt; 0: all there are
  int max_tokens = 256;
  int context    = 0;  //!< 0: what the model allows
  cache_settings cache{};
  sampler_options sampling{};
  std::optional<std::filesystem::path> calibration_text{};
  device_kind device = device_kind::automatic;
  int threads        = thread_pool::default_threads();
  int batch          = 32;  //!< of requests: sequences at the same time
  std::int64_t kv_bytes =
    0;                   //!< of requests: of all keys and values; 0: enough for the whole batch
  int compare      = 0;  //!< tokens to force through both caches; 0: generate instead
  report_form form = report_form::text;
};

//! Parses the command line and reads the prompt (from its file or standard input) or the requests.
//! @return nothing if the program is done (--help, or an error that was printed); `exit_code` says how
[[nodiscard]] std::optional<program_options> parse_options(int argc, char** argv, int& exit_code);

}  // namespace llama3
