// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The one exception for everything that can be wrong with a model on disk.
//! Read next: llama3/safetensors.hpp, llama3/model_config.hpp.
#include <stdexcept>  // runtime_error

namespace llama3 {
//! A file is missing, damaged or of a kind that is not read. `what()` names the file, the tensor
//! or key where there is one, and what the reader can do about it.
struct file_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace llama3
