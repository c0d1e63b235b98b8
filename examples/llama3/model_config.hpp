// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What config.json and generation_config.json say about a model, checked, in the words of diffkv.
//! Everything that would change the result and is not computed here is refused by name.
//! Read before this: llama3/file_error.hpp, llama3/rope.hpp.  Read next: the forward pass.
#include "llama3/file_error.hpp"
#include "llama3/rope.hpp"  // rope_parameters

#include <filesystem>  // path
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! LlamaForCausalLM (Llama 2 to 3.3), Qwen2ForCausalLM (Qwen2.5, QwQ), MistralForCausalLM.
enum class architecture { llama, qwen2, mistral };

[[nodiscard]] std::string_view name_of(architecture arch) noexcept;

struct model_config {
  architecture arch{architecture::llama};
  int hidden_size{0};
  int intermediate_size{0};
  int num_layers{0};
  int num_q_heads{0};
  int num_heads{0};  //!< kv heads; divides num_q_heads
  int head_dim{0};   //!< given, or hidden_size / num_q_heads; even
  int vocab_size{0};
  int max_positions{0};
  rope_parameters rope;  //!< theta and scaling as published, head_dim as above
  double rms_norm_eps{1e-6};
  bool tie_embeddings{false};  //!< true: the output matrix is the embedding, lm_head is not read
  bool qkv_bias{false};        //!< biases on q_proj, k_proj and v_proj
  bool output_bias{false};     //!< bias on o_proj
  bool mlp_bias{false};        //!< biases on gate_proj, up_proj and down_proj
  //! A query sees this many tokens at most, itself included, in some or all layers; 0: no limit.
  //! Attention here is over the whole context, so `check_context` refuses a context beyond it.
  int sliding_window{0};
  std::vector<int> stop_ids;  //!< each ends the answer; sorted, no id twice; may be empty
  std::optional<int> bos_id;

  //! q_heads per head
  [[nodiscard]] int group() const noexcept { return num_q_heads / num_heads; }
};

//! Reads `folder`/config.json and, where there is one, `folder`/generation_config.json.
//! @throws file_error naming file and key: missing or out of range, another architecture, another
//!         RoPE type, a quantised checkpoint, an activation other than SiLU
[[nodiscard]] model_config load_model_config(std::filesystem::path const& folder);

//! The same from text. `generation_json` may be empty: then config.json names the stop ids.
[[nodiscard]] model_config parse_model_config(std::string_view config_json,
                                              std::string_view generation_json = {});

//! @throws file_error if a context of so many tokens is beyond what the model computes as published
void check_context(model_config const& config, int context_tokens);
}  // namespace llama3
