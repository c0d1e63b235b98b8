// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Key offsets for `centred` conditioning: the mean key of each layer and head over a text, computed
//! once per model and kept beside it.
//! Read before this: llama3/model.hpp, llama3/safetensors.hpp.
#include "llama3/checkpoint.hpp"
#include "llama3/model.hpp"
#include "llama3/progress.hpp"
#include "llama3/thread_pool.hpp"
#include "llama3/token_id.hpp"

#include <cstdint>     // int64_t
#include <filesystem>  // path
#include <functional>  // function
#include <string>
#include <vector>

namespace llama3 {

//! Mean over the tokens of `ids`, as one prompt, of the rotated (RoPE applied) keys.
//! @return [num_layers, num_heads, head_dim]
//! @throws std::invalid_argument as model::prompt does
[[nodiscard]] std::vector<float> calibrate(model& of, std::vector<token_id> const& ids,
                                           thread_pool& threads,
                                           progress_callback const& progress = {});

//! What key offsets belong to. A file whose identity differs in any part is not used.
struct offsets_identity {
  std::vector<std::int64_t> shape;  //!< [num_layers, num_heads, head_dim]
  std::string model_bytes;          //!< of all tensors, decimal
  std::string weights_digest;       //!< of the last norm and the key projections, 16 hex digits
  std::string text_digest;          //!< of the token ids, 16 hex digits
};

[[nodiscard]] offsets_identity identity_of(model_config const& config, checkpoint const& files,
                                           std::vector<token_id> const& ids);

//! Name of the file beside the model.
inline constexpr char offsets_file_name[] = "diffkv_key_offsets.safetensors";

//! @return [num_layers, num_heads, head_dim]
//! @throws file_error if there is no such file, it is damaged, holds a value that is not finite, or
//!         is of another model or text
[[nodiscard]] std::vector<float> load_key_offsets(std::filesystem::path const& file,
                                                  offsets_identity const& identity);

//! @throws file_error if it cannot be written
void save_key_offsets(std::filesystem::path const& file, offsets_identity const& identity,
                      std::vector<float> const& offsets);

//! Told what a reader should know: why a file is not used, that it cannot be written.
using message_callback = std::function<void(std::string const&)>;

//! Computes the offsets over a text, wherever the model runs.
using offsets_function = std::function<std::vector<float>()>;

//! The offsets of the file in `files.folder()`, or, if that cannot be used, calibrated now and
//! written there. If it cannot be written they serve this run only, and `say` is told.
//! @param ids      the text that they are of
//! @param compute  called only if the file cannot be used
[[nodiscard]] std::vector<float> key_offsets(model_config const& config, checkpoint const& files,
                                             std::vector<token_id> const& ids,
                                             offsets_function const& compute,
                                             message_callback const& say);

}  // namespace llama3
