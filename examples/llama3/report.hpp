// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a run says about itself at its end, for people and for scripts.
//! Read before this: llama3/comparison.hpp.  Read next: llama3/main.cpp.
#include "llama3/comparison.hpp"
#include "llama3/time_account.hpp"

#include <diffkv/cache/cache_options.hpp>
#include <diffkv/cache/sequence_usage.hpp>

#include <optional>
#include <string>

namespace llama3 {

struct run_report {
  std::string device{};  //!< where the model ran: "cpu" or "cuda"
  int prompt_tokens       = 0;
  int new_tokens          = 0;
  double prompt_seconds   = 0.0;
  double generate_seconds = 0.0;
  time_account prompt_time{};    //!< where the time of the prompt went
  time_account generate_time{};  //!< and that of the new tokens
  std::string finish{};          //!< "stop", "length" or "compare"
  diffkv::sequence_usage usage{};
  diffkv::cache_options cache{};
  std::optional<comparison> compared{};

  //! Bytes of all pages held, over 16-bit bytes of all tokens seen, pruned ones too.
  [[nodiscard]] double kv_bytes_ratio() const;
  //! Code bits of the stored tokens over the same.
  [[nodiscard]] double nominal_bytes_ratio() const;
  //! Tokens that went through the cache one by one. The first new one came with the prompt.
  [[nodiscard]] double tokens_per_second() const;
};

//! As reports name them, e.g. "k8v4 + k4v2".
[[nodiscard]] std::string formats_text(diffkv::format_spec const& high,
                                       std::optional<diffkv::format_spec> const& low);

//! Several lines for a reader.
[[nodiscard]] std::string as_text(run_report const& report);

//! One line; the keys are documented in examples/llama3/README.md.
[[nodiscard]] std::string as_json(run_report const& report);

}  // namespace llama3
