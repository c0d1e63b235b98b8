// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How attention is computed: the options of decode and prompt attention.
//! Read before this: attention/score_update.hpp.  Read next: attention/decode_grid.hpp.
#include <diffkv/quant/lag_rounding.hpp>  // what exact_lagged_queries overrides

#include <cstdint>

namespace diffkv {

//! How logits are made from q.k; shared by decode and prompt attention.
struct attention_options {
  float scale    = 0.0f;            //!< usually 1 / sqrt(head_dim); 0 gives the mean of the values
  float soft_cap = 0.0f;            //!< > 0: logit := cap * tanh(logit / cap)
  std::int32_t sliding_window = 0;  //!< > 0: only the last so many positions are attended to
  int splits                  = 1;  //!< parts of a row that the host computes apart and merges
  //! Overrides the default per format (quant/lag_rounding.hpp); wants a cache made with the option of this
  //! name.
  bool exact_lagged_queries = false;
};

}  // namespace diffkv
