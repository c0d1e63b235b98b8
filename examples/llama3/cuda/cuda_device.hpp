// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The model on a GPU. A host header: whoever includes it needs no CUDA. LLAMA3_CUDA is 1 where the
//! library was built with this part.
//! Read before this: llama3/session.hpp, llama3/batch_runner.hpp, llama3/cache_settings.hpp.
#include "llama3/batch_runner.hpp"
#include "llama3/cache_settings.hpp"
#include "llama3/checkpoint.hpp"
#include "llama3/model_config.hpp"
#include "llama3/session.hpp"
#include "llama3/token_id.hpp"

#include <cstdint>
#include <memory>  // unique_ptr
#include <string>
#include <vector>

namespace llama3 {

//! Whether a GPU is there that this program has code for; if not, `why` says what is missing.
[[nodiscard]] bool cuda_is_usable(std::string& why);

//! Whether there is code for a cache of these settings: before any weight is read.
//! @throws std::invalid_argument, in one line, naming the caches that there is code for
void check_device_settings(model_config const& config, cache_settings const& settings);

//! What a runner must have room for.
struct runner_size {
  int slots              = 1;  //!< sequences at the same time
  int max_tokens         = 0;  //!< longest sequence
  int num_ids            = 0;  //!< ids from here on are never chosen: tokenizer::size()
  std::uint64_t kv_bytes = 0;  //!< of all keys and values; 0: enough for all slots at max_tokens
};

//! Whether a runner of this size has pages for prompts of up to so many tokens: before any weight is read.
//! @throws std::invalid_argument naming the option that asks for too much or too little
void check_runner_size(model_config const& config, cache_settings const& settings,
                       runner_size const& size, int longest_prompt);

//! A loaded model. Its sessions and runners share it: it must outlive them.
class cuda_device {
 public:
  virtual ~cuda_device() = default;

  //! Mean over the tokens of `ids`, as one prompt, of the rotated (RoPE applied) keys.
  //! @return [num_layers, num_heads, head_dim]
  [[nodiscard]] virtual std::vector<float> calibrate(std::vector<token_id> const& ids) = 0;

  //! @param max_tokens   longest sequence; pages are there for all of it
  //! @param key_offsets  [num_layers, num_heads, head_dim] where the settings are centred, else empty
  //! @throws std::invalid_argument for settings it has no code for, naming those it has
  [[nodiscard]] virtual std::unique_ptr<session> make_session(cache_settings const& settings,
                                                              int max_tokens,
                                                              std::vector<float> key_offsets) = 0;

  //! Prompts that it reads together may have as many tokens as the device was opened for.
  //! @pre size.max_tokens and size.slots are no more than those tokens
  //! @throws std::invalid_argument for settings it has no code for, naming those it has, and for a pool of
  //!         no or too many pages
  [[nodiscard]] virtual std::unique_ptr<batch_runner> make_runner(
    cache_settings const& settings, runner_size const& size, std::vector<float> key_offsets) = 0;
};

//! Loads the weights onto the GPU.
//! @param max_tokens  that it will be given at once, calibration's too: the longest sequence, prompts
//!                    read together, slots of a runner
//! @throws file_error as load_weights does
[[nodiscard]] std::unique_ptr<cuda_device> open_cuda_device(model_config const& config,
                                                            checkpoint const& files,
                                                            int max_tokens);

}  // namespace llama3
