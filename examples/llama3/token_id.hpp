// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The number of a token in a model's vocabulary.
//! Read next: llama3/tokenizer.hpp, llama3/sampler.hpp.
#include <cstdint>  // int32_t

namespace llama3 {
//! Signed, as in config.json and every published file; a negative one is never valid.
using token_id = std::int32_t;
}  // namespace llama3
