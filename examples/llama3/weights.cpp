// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/weights.hpp"

#include <cstdint>  // int64_t
#include <set>
#include <string>
#include <string_view>

namespace llama3 {
namespace {

using shape = std::vector<std::int64_t>;

//! Finds tensors by name and shape and remembers which were asked for.
class tensor_source {
 public:
  explicit tensor_source(checkpoint const& files) : files_{files} {}

  tensor_view const& at(std::string const& name, shape const& expected)
  {
    auto const& tensor = files_.at(name, expected);
    if (tensor.type != dtype::f32 && tensor.type != dtype::f16 && tensor.type != dtype::bf16) {
      throw file_error(files_.folder().string() + ": tensor " + name + " is of type " +
                       std::string{name_of(tensor.type)} +
                       "; weights are read as F32, F16 or BF16");
    }
    used_.insert(name);
    return tensor;
  }

  void refuse_unused(bool tied) const
  {
    for (auto const& name : files_.names()) {
      bool const passed_over =
        ends_with(name, ".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
      if (!passed_over && used_.count(name) == 0) {
        throw file_error(files_.folder().string() + ": tensor " + name +
                         " has no place in the architecture that config.json names");
      }
    }
  }

 private:
  static bool ends_with(std::string_view text, std::string_view end)
  {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  }

  checkpoint const& files_;
  std::set<std::string> used_;
};

//! One walk over all names serves twice: to check everything first, then to copy.
class loader {
 public:
  loader(model_config const& config, checkpoint const& files) : config_{config}, source_{files} {}

  model_weights walk(bool copy)
  {
    copy_                     = copy;
    std::int64_t const hidden = config_.hidden_size;
    model_weights out;
    out.embedding = weight_matrix{hidden};
    add(out.embedding, "model.embed_tokens.weight", config_.vocab_size, hidden);
    for (int i = 0; i < config_.num_layers; ++i) {
      out.layers.push_back(layer("model.layers." + std::to_string(i) + "."));
    }
    out.norm = vector("model.norm.weight", hidden);
    if (!config_.tie_embeddings) {
      out.head = weight_matrix{hidden};
      add(out.head, "lm_head.weight", config_.vocab_size, hidden);
    }
    source_.refuse_unused(config_.tie_embeddings);
    return out;
  }

 private:
  layer_weights layer(std::string const& prefix)
  {
    std::int64_t const hidden       = config_.hidden_size;
    std::int64_t const intermediate = config_.intermediate_size;
    std::int64_t const q_size       = std::int64_t{config_.num_q_heads} * config_.head_dim;
    std::int64_t const kv_size      = std::int64_t{config_.num_heads} * config_.head_dim;
    std::string const attention     = prefix + "self_attn.";
    std::string const mlp           = prefix + "mlp.";
    layer_weights out;
    out.input_norm             = vector(prefix + "input_layernorm.weight", hidden);
    out.query_key_value.weight = weight_matrix{hidden};
    add(out.query_key_value, attention + "q_proj", q_size, hidden, config_.qkv_bias);
    add(out.query_key_value, attention + "k_proj", kv_size, hidden, config_.qkv_bias);
    add(out.query_key_value, attention + "v_proj", kv_size, hidden, config_.qkv_bias);
    out.attention_output.weight = weight_matrix{q_size};
    add(out.attention_output, attention + "o_proj", hidden, q_size, config_.output_bias);
    out.post_attention_norm = vector(prefix + "post_attention_layernorm.weight", hidden);
    out.gate_up.weight      = weight_matrix{hidden};
    add(out.gate_up, mlp + "gate_proj", intermediate, hidden, config_.mlp_bias);
    add(out.gate_up, mlp + "up_proj", intermediate, hidden, config_.mlp_bias);
    out.down.weight = weight_matrix{intermediate};
    add(out.down, mlp + "down_proj", hidden, intermediate, config_.mlp_bias);
    return out;
  }

  void add(weight_matrix& matrix, std::string const& name, std::int64_t rows, std::int64_t columns)
  {
    auto const& tensor = source_.at(name, {rows, columns});
    if (copy_) { matrix.append_rows(tensor); }
  }

  void add(projection& to, std::string const& name, std::int64_t rows, std::int64_t columns,
           bool has_bias)
  {
    add(to.weight, name + ".weight", rows, columns);
    if (has_bias) {
      auto const bias = vector(name + ".bias", rows);
      to.bias.insert(to.bias.end(), bias.begin(), bias.end());
    }
  }

  std::vector<float> vector(std::string const& name, std::int64_t size)
  {
    auto const& tensor = source_.at(name, {size});
    return copy_ ? to_f32(tensor) : std::vector<float>{};
  }

  model_config const& config_;
  tensor_source source_;
  bool copy_{false};
};

}  // namespace

void projection::apply(float const* x, std::int64_t num_tokens, float* y,
                       thread_pool& threads) const
{
  weight.multiply(x, num_tokens, y, threads);
  if (!bias.empty()) {
    auto const rows = static_cast<std::int64_t>(bias.size());
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t r = 0; r < rows; ++r) {
        y[t * rows + r] += bias[static_cast<std::size_t>(r)];
      }
    }
  }
}

model_weights load_weights(model_config const& config, checkpoint const& files)
{
  loader all{config, files};
  (void)all.walk(false);
  return all.walk(true);
}

}  // namespace llama3
