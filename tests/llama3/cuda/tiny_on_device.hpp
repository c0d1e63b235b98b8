// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A tiny model whose heads the device has code for, and a cache that compresses early.
#include "llama3/cache_settings.hpp"
#include "llama3/checkpoint.hpp"
#include "llama3/tiny_model.hpp"
#include "llama3/token_id.hpp"

#include <random>
#include <vector>

namespace llama3::test {

[[nodiscard]] inline cache_settings mixed(int score_every)
{
  cache_settings settings;
  settings.score_every = score_every;
  settings.window      = 16;
  return settings;
}

//! The same model on both processors: three layers of two heads of 64 for three q_heads each.
struct tiny_on_device {
  tiny_on_device() : made{make()} { made.write(folder.path()); }

  static tiny_model make()
  {
    tiny_shape shape;
    shape.hidden_size       = 96;
    shape.intermediate_size = 160;
    shape.num_layers        = 3;
    shape.num_q_heads       = 6;
    shape.num_heads         = 2;
    shape.head_dim          = 64;
    shape.vocab_size        = 200;
    return make_tiny_model(shape, 11);
  }
  [[nodiscard]] std::vector<token_id> ids(int count, unsigned seed) const
  {
    std::mt19937 random{seed};
    std::vector<token_id> all;
    for (int i = 0; i < count; ++i) { all.push_back(static_cast<token_id>(random() % 200u)); }
    return all;
  }
  [[nodiscard]] checkpoint files() const { return checkpoint{folder.path()}; }
  [[nodiscard]] std::vector<float> offsets() const
  {
    std::vector<float> all;
    for (int i = 0; i < 3 * 2 * 64; ++i) { all.push_back(static_cast<float>(i % 7 - 3) / 8.0f); }
    return all;
  }

  temporary_folder folder;
  tiny_model made;
};

}  // namespace llama3::test
