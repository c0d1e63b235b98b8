// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Dimensions of published models: with random weights of them a step takes as long as with the real ones.
//! Read before this: llama3/model_config.hpp.  Read next: llama3/throughput/measured_cache.hpp.
#include "llama3/model_config.hpp"

#include <cstdint>
#include <stdexcept>  // invalid_argument
#include <string>

namespace llama3 {

struct model_shape {
  char const* name;
  char const* short_name;  //!< in the names of figures
  architecture arch;
  int hidden_size, intermediate_size, num_layers, num_q_heads, num_heads, vocab_size;
  double theta, epsilon;
  bool qkv_bias;
  char const* source;  //!< whose config.json says so
};

//! head_dim is 128 in all of them.
inline constexpr model_shape model_shapes[] = {
  {"llama3-8b", "8b", architecture::llama, 4096, 14336, 32, 32, 8, 128256, 5e5, 1e-5, false,
   "meta-llama/Meta-Llama-3-8B"},
  {"llama3-70b", "70b", architecture::llama, 8192, 28672, 80, 64, 8, 128256, 5e5, 1e-5, false,
   "meta-llama/Meta-Llama-3-70B"},
  {"qwen2.5-7b", "qwen7b", architecture::qwen2, 3584, 18944, 28, 28, 4, 152064, 1e6, 1e-6, true,
   "Qwen/Qwen2.5-7B-Instruct"},
  {"qwen2.5-32b", "qwen32b", architecture::qwen2, 5120, 27648, 64, 40, 8, 152064, 1e6, 1e-6, true,
   "Qwen/Qwen2.5-32B-Instruct"},
  {"tiny", "tiny", architecture::llama, 512, 1024, 2, 4, 1, 2048, 1e4, 1e-5, false,
   "nobody: to see whether the program runs"},
};

//! @throws std::invalid_argument naming the shapes there are
[[nodiscard]] inline model_shape const& find_shape(std::string const& name)
{
  std::string names;
  for (model_shape const& shape : model_shapes) {
    if (name == shape.name) { return shape; }
    names += (names.empty() ? "" : ", ") + std::string{shape.name};
  }
  throw std::invalid_argument("--shape " + name + ": must be one of " + names);
}

//! @param num_layers     0: as published
//! @param max_positions  longest sequence: what a position is called changes no time
[[nodiscard]] inline model_config config_of(model_shape const& shape, int num_layers,
                                            int max_positions)
{
  model_config config;
  config.arch              = shape.arch;
  config.hidden_size       = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.num_layers        = num_layers > 0 ? num_layers : shape.num_layers;
  config.num_q_heads       = shape.num_q_heads;
  config.num_heads         = shape.num_heads;
  config.head_dim          = 128;
  config.vocab_size        = shape.vocab_size;
  config.max_positions     = max_positions;
  config.rope.head_dim     = config.head_dim;
  config.rope.theta        = shape.theta;
  config.rms_norm_eps      = shape.epsilon;
  config.qkv_bias          = shape.qkv_bias;
  return config;
}

//! As it stands in the names of figures: a shape that is cut says so.
[[nodiscard]] inline std::string figure_name(model_shape const& shape, int num_layers)
{
  std::string const name = shape.short_name;
  return num_layers == 0 ? name : name + "_" + std::to_string(num_layers) + "_layers";
}

//! Bytes of the matrices in f16; norms and biases are not worth mentioning.
[[nodiscard]] inline std::int64_t weight_bytes(model_config const& c)
{
  std::int64_t const hidden    = c.hidden_size;
  std::int64_t const q_size    = std::int64_t{c.num_q_heads} * c.head_dim;
  std::int64_t const kv_size   = std::int64_t{c.num_heads} * c.head_dim;
  std::int64_t const per_layer = hidden * (2 * q_size + 2 * kv_size + 3 * c.intermediate_size);
  std::int64_t const vocab     = std::int64_t{c.vocab_size} * hidden;
  return 2 * (per_layer * c.num_layers + (c.tie_embeddings ? 1 : 2) * vocab);
}

}  // namespace llama3
