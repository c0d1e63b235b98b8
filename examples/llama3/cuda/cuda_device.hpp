// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The model on a GPU. A host header: whoever includes it needs no CUDA. LLAMA3_CUDA is 1 where the
//! library was built with this part.
//! Read before this: llama3/session.hpp, llama3/cache_settings.hpp.
#include "llama3/cache_settings.hpp"
#include "llama3/checkpoint.hpp"
#include "llama3/model_config.hpp"
#include "llama3/session.hpp"
#include "llama3/token_id.hpp"

#include <memory>  // unique_ptr
#include <string>
#include <vector>

namespace llama3 {

//! Whether a GPU is there that this program has code for; if not, `why` says what is missing.
[[nodiscard]] bool cuda_is_usable(std::string& why);

//! Whether there is code for a cache of these settings: before any weight is read.
//! @throws std::invalid_argument naming the caches that there is code for
void check_device_settings(model_config const& config, cache_settings const& settings);

//! A loaded model. Its sessions share it: it must outlive them.
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
};

//! Loads the weights onto the GPU.
//! @param max_tokens  the longest prompt or sequence that it will be given, calibration's too
//! @throws file_error as load_weights does
[[nodiscard]] std::unique_ptr<cuda_device> open_cuda_device(model_config const& config,
                                                            checkpoint const& files,
                                                            int max_tokens);

}  // namespace llama3
