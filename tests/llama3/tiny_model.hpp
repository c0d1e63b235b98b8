// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Random checkpoints of a few thousand weights, written as safetensors, for the tests of the model.
#include "llama3/model_config.hpp"
#include "llama3/safetensors.hpp"

#include <unistd.h>  // getpid
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace llama3::test {

//! A folder of its own that goes away with it.
class temporary_folder {
 public:
  temporary_folder()
  {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("diffkv_model_test_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    std::filesystem::create_directories(path_);
  }
  temporary_folder(temporary_folder const&)            = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder()
  {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

struct tiny_tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

//! f32 bits of a value that the narrow type holds exactly (checked by the callers' choice of values).
inline std::uint16_t narrowed(float value, dtype type)
{
  std::uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  if (type == dtype::bf16) { return static_cast<std::uint16_t>(word >> 16); }
  std::uint32_t const sign = (word >> 16) & 0x8000u;
  std::uint32_t const rest = word & 0x7FFF'FFFFu;
  return static_cast<std::uint16_t>(rest == 0 ? sign : sign | ((rest >> 13) - (112u << 10)));
}

//! A model's config and tensors by their published names.
struct tiny_model {
  model_config config;
  std::map<std::string, tiny_tensor> tensors;

  [[nodiscard]] std::vector<float> const& at(std::string const& name) const
  {
    return tensors.at(name).values;
  }

  //! Writes `folder`/model.safetensors.
  void write(std::filesystem::path const& folder, dtype type = dtype::f32) const
  {
    std::vector<tensor_view> views;
    std::vector<std::vector<std::uint16_t>> narrow;
    narrow.reserve(tensors.size());
    for (auto const& [name, tensor] : tensors) {
      auto view = view_of(name, tensor.shape, tensor.values);
      if (type != dtype::f32) {
        auto& words = narrow.emplace_back();
        for (float const value : tensor.values) { words.push_back(narrowed(value, type)); }
        view.type  = type;
        view.data  = reinterpret_cast<std::byte const*>(words.data());
        view.bytes = words.size() * sizeof(std::uint16_t);
      }
      views.push_back(std::move(view));
    }
    write_safetensors(folder / "model.safetensors", views);
  }
};

struct tiny_shape {
  architecture arch{architecture::llama};
  int hidden_size{32};
  int intermediate_size{48};
  int num_layers{2};
  int num_q_heads{4};
  int num_heads{2};
  int head_dim{8};
  int vocab_size{40};
  bool tied{false};
  bool all_biases{false};  //!< on every projection, as llama's attention_bias and mlp_bias
};

//! Weights are multiples of 1/256 below 1/4, or of 1/128 around 1: exact in f32, f16 and bf16.
inline tiny_model make_tiny_model(tiny_shape const& shape, unsigned seed)
{
  std::mt19937 random{seed};
  tiny_model out;
  auto& c             = out.config;
  c.arch              = shape.arch;
  c.hidden_size       = shape.hidden_size;
  c.intermediate_size = shape.intermediate_size;
  c.num_layers        = shape.num_layers;
  c.num_q_heads       = shape.num_q_heads;
  c.num_heads         = shape.num_heads;
  c.head_dim          = shape.head_dim;
  c.vocab_size        = shape.vocab_size;
  c.max_positions     = 1024;
  c.rope.head_dim     = shape.head_dim;
  c.rope.theta        = 10000.0;
  c.rms_norm_eps      = 1e-5;
  c.tie_embeddings    = shape.tied;
  c.qkv_bias          = shape.arch == architecture::qwen2 || shape.all_biases;
  c.output_bias = c.mlp_bias = shape.all_biases;
  auto const add = [&](std::string const& name, std::vector<std::int64_t> sizes, float offset) {
    std::int64_t count = 1;
    for (auto const size : sizes) { count *= size; }
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      int const step = static_cast<int>(random() % 127u) - 63;
      values.push_back(offset + static_cast<float>(step) / (offset == 0.0f ? 256.0f : 128.0f));
    }
    out.tensors[name] = {std::move(sizes), std::move(values)};
  };
  std::int64_t const hidden = c.hidden_size;
  std::int64_t const q_size = c.num_q_heads * c.head_dim, kv_size = c.num_heads * c.head_dim;
  add("model.embed_tokens.weight", {c.vocab_size, hidden}, 0.0f);
  for (int i = 0; i < c.num_layers; ++i) {
    std::string const layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {hidden}, 1.0f);
    add(layer + "self_attn.q_proj.weight", {q_size, hidden}, 0.0f);
    add(layer + "self_attn.k_proj.weight", {kv_size, hidden}, 0.0f);
    add(layer + "self_attn.v_proj.weight", {kv_size, hidden}, 0.0f);
    add(layer + "self_attn.o_proj.weight", {hidden, q_size}, 0.0f);
    if (c.qkv_bias) {
      add(layer + "self_attn.q_proj.bias", {q_size}, 0.0f);
      add(layer + "self_attn.k_proj.bias", {kv_size}, 0.0f);
      add(layer + "self_attn.v_proj.bias", {kv_size}, 0.0f);
    }
    if (shape.all_biases) {
      add(layer + "self_attn.o_proj.bias", {hidden}, 0.0f);
      add(layer + "mlp.gate_proj.bias", {c.intermediate_size}, 0.0f);
      add(layer + "mlp.up_proj.bias", {c.intermediate_size}, 0.0f);
      add(layer + "mlp.down_proj.bias", {hidden}, 0.0f);
    }
    add(layer + "post_attention_layernorm.weight", {hidden}, 1.0f);
    add(layer + "mlp.gate_proj.weight", {c.intermediate_size, hidden}, 0.0f);
    add(layer + "mlp.up_proj.weight", {c.intermediate_size, hidden}, 0.0f);
    add(layer + "mlp.down_proj.weight", {hidden, c.intermediate_size}, 0.0f);
  }
  add("model.norm.weight", {hidden}, 1.0f);
  if (!c.tie_embeddings) { add("lm_head.weight", {c.vocab_size, hidden}, 0.0f); }
  return out;
}

}  // namespace llama3::test
