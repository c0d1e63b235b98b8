// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/model_config.hpp"

#include "llama3/json_text.hpp"
#include "llama3/mapped_file.hpp"

#include <algorithm>  // sort, unique, any_of
#include <cstddef>
#include <cstdint>
#include <system_error>  // error_code

namespace llama3 {
namespace {
constexpr std::size_t max_config_bytes = 1'000'000;

//! One JSON object with the name of its file: every value is asked for with its limits.
class checked_object {
 public:
  checked_object(nlohmann::json const& object, std::string where)
    : object_{object}, where_{std::move(where)}
  {}

  [[nodiscard]] std::string const& where() const noexcept { return where_; }
  [[noreturn]] void fail(std::string const& what) const { throw file_error(where_ + ": " + what); }

  //! nullptr if the key is missing or null, which means the same
  [[nodiscard]] nlohmann::json const* find(char const* key) const
  {
    auto const found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] int integer(char const* key, int least, int most) const
  {
    auto const* const value = find(key);
    if (value == nullptr) { fail(std::string{key} + " is missing"); }
    return as_integer(*value, key, least, most);
  }

  [[nodiscard]] int integer_or(char const* key, int fallback, int least, int most) const
  {
    return find(key) == nullptr ? fallback : integer(key, least, most);
  }

  [[nodiscard]] int as_integer(nlohmann::json const& value, char const* key, int least,
                               int most) const
  {
    bool const fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most)
                        : value.is_number_integer() && value.get<std::int64_t>() <= most;
    if (!fits || value.get<std::int64_t>() < least) {
      fail(std::string{key} + " is " + value.dump().substr(0, 60) + ", not a whole number from " +
           std::to_string(least) + " to " + std::to_string(most));
    }
    return value.get<int>();
  }

  [[nodiscard]] double number(char const* key, double least, double most) const
  {
    auto const* const value = find(key);
    if (value == nullptr) { fail(std::string{key} + " is missing"); }
    double const number = value->is_number() ? value->get<double>() : least - 1.0;
    if (!(number >= least && number <= most)) {
      fail(std::string{key} + " is " + value->dump().substr(0, 60) + ", not a number from " +
           nlohmann::json(least).dump() + " to " + nlohmann::json(most).dump());
    }
    return number;
  }

  [[nodiscard]] double number_or(char const* key, double fallback, double least, double most) const
  {
    return find(key) == nullptr ? fallback : number(key, least, most);
  }

  [[nodiscard]] bool flag(char const* key) const
  {
    auto const* const value = find(key);
    if (value == nullptr) { return false; }
    if (!value->is_boolean()) { fail(std::string{key} + " is neither true nor false"); }
    return value->get<bool>();
  }

  [[nodiscard]] std::string text_or(char const* key, char const* fallback) const
  {
    auto const* const value = find(key);
    if (value == nullptr) { return fallback; }
    if (!value->is_string()) { fail(std::string{key} + " is not a string"); }
    return value->get<std::string>();
  }

 private:
  nlohmann::json const& object_;
  std::string where_;
};

architecture read_architecture(checked_object const& config)
{
  auto const* const names = config.find("architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
    config.fail("architectures does not name one architecture");
  }
  auto const name = (*names)[0].get<std::string>();
  for (auto const arch : {architecture::llama, architecture::qwen2, architecture::mistral}) {
    if (name == name_of(arch)) { return arch; }
  }
  config.fail("the architecture " + in_quotes(name) +
              " is not computed here; LlamaForCausalLM, Qwen2ForCausalLM and "
              "MistralForCausalLM are");
}

//! What is published under these architectures but computes something else.
void refuse_variants(checked_object const& config)
{
  if (auto const* const quantised = config.find("quantization_config")) {
    checked_object const settings{*quantised, config.where() + ": quantization_config"};
    auto const method = quantised->is_object() ? settings.text_or("quant_method", "?") : "?";
    config.fail("the checkpoint is quantised (quantization_config, " + in_quotes(method) +
                "); take the one in F16 or BF16");
  }
  auto const activation = config.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.fail("hidden_act is " + in_quotes(activation) + "; only silu is computed here");
  }
  if (config.number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0) {
    config.fail("partial_rotary_factor is not 1; only heads that are rotated whole are computed");
  }
  if (config.flag("rope_interleaved")) {
    config.fail("rope_interleaved is true; only halves are rotated against each other here");
  }
}

rope_parameters read_rope(checked_object const& config, int head_dim)
{
  rope_parameters rope;
  rope.head_dim = head_dim;
  // Transformers 5 writes one object rope_parameters, with theta in it.
  char const* const key =
    config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  auto const* const found  = config.find(key);
  constexpr double largest = 1e12;
  rope.theta               = config.number_or("rope_theta", 10000.0, 1.0, largest);
  if (found == nullptr) { return rope; }
  if (!found->is_object()) { config.fail(std::string{key} + " is not an object"); }

  checked_object const values{*found, config.where() + ": " + key};
  rope.theta      = values.number_or("rope_theta", rope.theta, 1.0, largest);
  auto const type = values.text_or("rope_type", values.text_or("type", "default").c_str());
  if (type == "default") { return rope; }
  if (type == "linear") {
    rope.scaling = rope_scaling_type::linear;
    rope.factor  = values.number("factor", 1.0, 1e6);
  } else if (type == "llama3") {
    rope.scaling               = rope_scaling_type::llama3;
    rope.factor                = values.number("factor", 1.0, 1e6);
    rope.low_freq_factor       = values.number("low_freq_factor", 1e-6, 1e6);
    rope.high_freq_factor      = values.number("high_freq_factor", 1e-6, 1e6);
    rope.original_max_position = values.number("original_max_position_embeddings", 1.0, 1e9);
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      values.fail("high_freq_factor is not above low_freq_factor");
    }
  } else {
    values.fail("the RoPE type " + in_quotes(type) +
                " is not computed here; default, linear and llama3 are");
  }
  return rope;
}

//! 0 if every layer sees the whole context.
int read_sliding_window(checked_object const& config, model_config const& model)
{
  if (model.arch == architecture::llama) { return 0; }
  bool used = model.arch == architecture::mistral || config.flag("use_sliding_window");
  if (auto const* const types = config.find("layer_types")) {
    if (!types->is_array()) { config.fail("layer_types is not a list"); }
    used = used && std::any_of(types->begin(), types->end(),
                               [](auto const& type) { return type != "full_attention"; });
  } else if (model.arch == architecture::qwen2) {
    // Layers below max_window_layers see everything.
    used = used && config.integer_or("max_window_layers", 0, 0, 1 << 20) < model.num_layers;
  }
  return used ? config.integer_or("sliding_window", 0, 1, 1 << 30) : 0;
}

//! eos_token_id: one id or a list of them.
std::vector<int> read_stop_ids(checked_object const& source, int vocab_size)
{
  auto const* const value = source.find("eos_token_id");
  if (value == nullptr) { return {}; }
  std::vector<int> ids;
  if (value->is_array()) {
    for (auto const& id : *value) {
      ids.push_back(source.as_integer(id, "eos_token_id", 0, vocab_size - 1));
    }
  } else {
    ids.push_back(source.as_integer(*value, "eos_token_id", 0, vocab_size - 1));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

model_config parse(std::string_view config_text, std::string const& config_where,
                   std::string_view generation_text, std::string const& generation_where)
{
  auto const config_object = parse_json_object(config_text, config_where);
  checked_object const config{config_object, config_where};
  model_config model;
  model.arch = read_architecture(config);
  refuse_variants(config);

  model.hidden_size       = config.integer("hidden_size", 1, 1 << 16);
  model.intermediate_size = config.integer("intermediate_size", 1, 1 << 20);
  model.num_layers        = config.integer("num_hidden_layers", 1, 1 << 10);
  model.num_q_heads       = config.integer("num_attention_heads", 1, 1 << 10);
  model.num_heads =
    config.integer_or("num_key_value_heads", model.num_q_heads, 1, model.num_q_heads);
  model.vocab_size    = config.integer("vocab_size", 1, 1 << 24);
  model.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  if (model.num_q_heads % model.num_heads != 0) {
    config.fail("num_attention_heads is no multiple of num_key_value_heads");
  }
  if (config.find("head_dim") != nullptr) {
    model.head_dim = config.integer("head_dim", 2, 1 << 10);
  } else if (model.hidden_size % model.num_q_heads == 0) {
    model.head_dim = model.hidden_size / model.num_q_heads;
  } else {
    config.fail("head_dim is missing and hidden_size is no multiple of num_attention_heads");
  }
  if (model.head_dim % 2 != 0) { config.fail("head_dim is odd, so pairs cannot be rotated"); }

  model.rope           = read_rope(config, model.head_dim);
  model.rms_norm_eps   = config.number_or("rms_norm_eps", 1e-6, 0.0, 1.0);
  model.tie_embeddings = config.flag("tie_word_embeddings");
  if (model.arch == architecture::llama) {
    model.qkv_bias = model.output_bias = config.flag("attention_bias");
    model.mlp_bias                     = config.flag("mlp_bias");
  } else {
    model.qkv_bias = model.arch == architecture::qwen2;
  }
  model.sliding_window = read_sliding_window(config, model);
  model.stop_ids       = read_stop_ids(config, model.vocab_size);
  if (config.find("bos_token_id") != nullptr) {
    model.bos_id = config.integer("bos_token_id", 0, model.vocab_size - 1);
  }

  if (!generation_text.empty()) {
    auto const object = parse_json_object(generation_text, generation_where);
    checked_object const generation{object, generation_where};
    // Models that end a turn and a text by different tokens list them all only here.
    if (generation.find("eos_token_id") != nullptr) {
      model.stop_ids = read_stop_ids(generation, model.vocab_size);
    }
    if (!model.bos_id && generation.find("bos_token_id") != nullptr) {
      model.bos_id = generation.integer("bos_token_id", 0, model.vocab_size - 1);
    }
  }
  return model;
}
}  // namespace

std::string_view name_of(architecture arch) noexcept
{
  switch (arch) {
    case architecture::llama:
      return "LlamaForCausalLM";
    case architecture::qwen2:
      return "Qwen2ForCausalLM";
    case architecture::mistral:
      return "MistralForCausalLM";
  }
  return "";
}

model_config parse_model_config(std::string_view config_json, std::string_view generation_json)
{
  return parse(config_json, "config.json", generation_json, "generation_config.json");
}

model_config load_model_config(std::filesystem::path const& folder)
{
  expect_model_folder(folder);
  auto const config     = folder / "config.json";
  auto const generation = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(config, ignored)) {
    throw file_error(config.string() + ": is missing; scripts/get_model.py makes a model folder");
  }
  std::string generation_text;
  if (std::filesystem::exists(generation, ignored)) {
    generation_text = read_text_file(generation, max_config_bytes);
    if (generation_text.empty()) { throw file_error(generation.string() + ": is empty"); }
  }
  return parse(read_text_file(config, max_config_bytes), config.string(), generation_text,
               generation.string());
}

void check_context(model_config const& config, int context_tokens)
{
  if (context_tokens > config.max_positions) {
    throw file_error("a context of " + std::to_string(context_tokens) +
                     " tokens is beyond the model's " + std::to_string(config.max_positions) +
                     "; ask for less with --context");
  }
  if (config.sliding_window > 0 && context_tokens > config.sliding_window) {
    throw file_error("a context of " + std::to_string(context_tokens) +
                     " tokens is beyond the model's sliding window of " +
                     std::to_string(config.sliding_window) +
                     ", which is not computed here; ask for less with --context");
  }
}
}  // namespace llama3
