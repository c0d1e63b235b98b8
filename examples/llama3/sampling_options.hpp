// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the tokens of one request are chosen, where many requests are served at the same time.
//! Read next: llama3/batch_runner.hpp.
#include <cstdint>

namespace llama3 {

//! How the next token of one sequence is chosen.
struct sampling {
  float temperature{0.0f};  //!< 0: greedy; else probabilities are softmax(logits / temperature)
  float top_p{1.0f};        //!< keep the most likely tokens whose probabilities reach this; (0, 1]
  std::uint64_t seed{0};
};

}  // namespace llama3
