// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/model_config.hpp"

#include "llama3/safetensors_bytes.hpp"
#include "support/catch.hpp"

#include <nlohmann/json.hpp>

namespace {
using diffkv::test::contains;
using namespace llama3::test;
using llama3::architecture;
using llama3::file_error;
using llama3::parse_model_config;
using llama3::rope_scaling_type;
using nlohmann::json;

//! Llama 3.1 8B as published, without the keys that say nothing about the computation.
json llama31()
{
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})");
}

json qwen25()
{
  return json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "use_sliding_window": false, "vocab_size": 151936})");
}

json mistral()
{
  return json::parse(R"({
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": null, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})");
}

llama3::model_config parse(json const& config) { return parse_model_config(config.dump()); }

std::string refusal(json const& config)
{
  try {
    (void)parse(config);
  } catch (file_error const& error) {
    CHECK_THAT(error.what(), contains("config.json"));
    return error.what();
  }
  return {};
}

std::string refusal_with(char const* key, json const& value)
{
  auto config = llama31();
  config[key] = value;
  return refusal(config);
}
}  // namespace

TEST_CASE("model_config: Llama 3.1 is read as published", "[llama3]")
{
  auto const config = parse(llama31());
  CHECK(config.arch == architecture::llama);
  CHECK(config.hidden_size == 4096);
  CHECK(config.intermediate_size == 14336);
  CHECK(config.num_layers == 32);
  CHECK(config.num_q_heads == 32);
  CHECK(config.num_heads == 8);
  CHECK(config.group() == 4);
  CHECK(config.head_dim == 128);
  CHECK(config.vocab_size == 128256);
  CHECK(config.max_positions == 131072);
  CHECK(config.rope.head_dim == 128);
  CHECK(config.rope.theta == 500000.0);
  CHECK(config.rope.scaling == rope_scaling_type::llama3);
  CHECK(config.rope.factor == 8.0);
  CHECK(config.rope.low_freq_factor == 1.0);
  CHECK(config.rope.high_freq_factor == 4.0);
  CHECK(config.rope.original_max_position == 8192.0);
  CHECK(config.rms_norm_eps == 1e-5);
  CHECK_FALSE(config.tie_embeddings);
  CHECK_FALSE(config.qkv_bias);
  CHECK_FALSE(config.output_bias);
  CHECK_FALSE(config.mlp_bias);
  CHECK(config.sliding_window == 0);
  CHECK(config.stop_ids == std::vector<int>{128001, 128008, 128009});
  CHECK(config.bos_id == 128000);
}

TEST_CASE("model_config: Qwen2.5 has biases on q, k, v and an idle window", "[llama3]")
{
  auto json_config  = qwen25();
  auto const config = parse(json_config);
  CHECK(config.arch == architecture::qwen2);
  CHECK(config.head_dim == 64);
  CHECK(config.group() == 7);
  CHECK(config.qkv_bias);
  CHECK_FALSE(config.output_bias);
  CHECK(config.tie_embeddings);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.sliding_window == 0);
  CHECK(config.stop_ids == std::vector<int>{151645});

  json_config["use_sliding_window"] = true;
  CHECK(parse(json_config).sliding_window == 32768);
  json_config["max_window_layers"] = 24;
  CHECK(parse(json_config).sliding_window == 0);
  json_config["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK(parse(json_config).sliding_window == 32768);
  json_config["layer_types"] = {"full_attention"};
  CHECK(parse(json_config).sliding_window == 0);
}

TEST_CASE("model_config: a context beyond a window or the positions is refused", "[llama3]")
{
  auto json_config = mistral();
  auto config      = parse(json_config);
  CHECK(config.arch == architecture::mistral);
  CHECK(config.head_dim == 128);
  CHECK(config.sliding_window == 4096);
  CHECK_NOTHROW(check_context(config, 4096));
  CHECK_THROWS_WITH(check_context(config, 4097), contains("4096") && contains("--context"));
  json_config["sliding_window"] = nullptr;
  config                        = parse(json_config);
  CHECK_NOTHROW(check_context(config, 32768));
  CHECK_THROWS_WITH(check_context(config, 32769), contains("32768") && contains("--context"));
}

TEST_CASE("model_config: keys that older and newer files leave out have their meaning", "[llama3]")
{
  auto config = llama31();
  for (char const* const key : {"rope_scaling", "rope_theta", "tie_word_embeddings",
                                "num_key_value_heads", "attention_bias", "bos_token_id"}) {
    config.erase(key);
  }
  auto parsed = parse(config);
  CHECK(parsed.rope.scaling == rope_scaling_type::none);
  CHECK(parsed.rope.theta == 10000.0);
  CHECK_FALSE(parsed.tie_embeddings);
  CHECK(parsed.num_heads == 32);
  CHECK_FALSE(parsed.bos_id.has_value());

  config["head_dim"]       = 64;
  config["attention_bias"] = true;
  config["mlp_bias"]       = true;
  parsed                   = parse(config);
  CHECK(parsed.head_dim == 64);
  CHECK((parsed.qkv_bias && parsed.output_bias && parsed.mlp_bias));

  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  parsed                 = parse(config);
  CHECK(parsed.rope.scaling == rope_scaling_type::linear);
  CHECK(parsed.rope.factor == 2.5);

  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 130000.0}};
  CHECK(parse(config).rope.theta == 130000.0);
  CHECK(parse(config).rope.scaling == rope_scaling_type::none);
}

TEST_CASE("model_config: stop ids come from generation_config.json where it names them", "[llama3]")
{
  auto const config = qwen25().dump();
  CHECK(parse_model_config(config, R"({"eos_token_id":[151645,151643,151645]})").stop_ids ==
        std::vector<int>{151643, 151645});
  CHECK(parse_model_config(config, R"({"eos_token_id":7})").stop_ids == std::vector<int>{7});
  CHECK(parse_model_config(config, R"({"temperature":0.7})").stop_ids == std::vector<int>{151645});
  CHECK_THROWS_WITH(parse_model_config(config, R"({"eos_token_id":[-1]})"),
                    contains("generation_config.json") && contains("eos_token_id"));
  CHECK_THROWS_WITH(parse_model_config(config, R"({"eos_token_id":151936})"),
                    contains("eos_token_id"));
  CHECK_THROWS_AS(parse_model_config(config, "{"), file_error);

  auto without = qwen25();
  without.erase("eos_token_id");
  without.erase("bos_token_id");
  CHECK(parse(without).stop_ids.empty());
  CHECK(parse_model_config(without.dump(), R"({"bos_token_id":3})").bos_id == 3);
}

TEST_CASE("model_config: what is not computed here is refused by name", "[llama3]")
{
  REQUIRE(refusal(llama31()).empty());
  CHECK_THAT(refusal_with("architectures", {"GemmaForCausalLM"}), contains("'GemmaForCausalLM'"));
  CHECK_THAT(refusal_with("architectures", {"MixtralForCausalLM"}), contains("Mixtral"));
  CHECK_THAT(refusal_with("architectures", json::array()), contains("architectures"));
  CHECK_THAT(refusal_with("architectures", "LlamaForCausalLM"), contains("architectures"));
  CHECK_THAT(refusal_with("quantization_config", {{"quant_method", "gptq"}}), contains("'gptq'"));
  CHECK_THAT(refusal_with("quantization_config", {{"quant_method", 4}}), contains("quant_method"));
  CHECK_THAT(refusal_with("quantization_config", "awq"), contains("quantised"));
  CHECK_THAT(refusal_with("hidden_act", "gelu"), contains("'gelu'"));
  CHECK_THAT(refusal_with("partial_rotary_factor", 0.5), contains("partial_rotary_factor"));
  CHECK_THAT(refusal_with("rope_interleaved", true), contains("rope_interleaved"));
  for (char const* const type : {"yarn", "dynamic", "longrope", "su", ""}) {
    CAPTURE(type);
    CHECK_THAT(refusal_with("rope_scaling", {{"rope_type", type}, {"factor", 4.0}}),
               contains("RoPE type '" + std::string{type}));
    CHECK_THAT(refusal_with("rope_parameters", {{"type", type}, {"factor", 4.0}}),
               contains("RoPE type '" + std::string{type}));
  }
}

TEST_CASE("model_config: a number outside its limits is refused by its key", "[llama3]")
{
  for (char const* const key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"}) {
    for (json const& value : {json(0), json(-1), json(1.5), json("64"), json(true), json::array(),
                              json(std::uint64_t{1} << 63), json(2147483648u), json(1e300)}) {
      CAPTURE(key, value.dump());
      CHECK_THAT(refusal_with(key, value), contains(key));
    }
  }
  for (char const* const key : {"hidden_size", "num_hidden_layers", "vocab_size"}) {
    auto config = llama31();
    config.erase(key);
    CHECK_THAT(refusal(config), contains(key) && contains("missing"));
  }
  for (json const& value : {json(-1), json(0), json("x"), json(1e13), json::array()}) {
    CHECK_THAT(refusal_with("rope_theta", value), contains("rope_theta"));
  }
  for (json const& value : {json(-1e-6), json(2), json("x")}) {
    CHECK_THAT(refusal_with("rms_norm_eps", value), contains("rms_norm_eps"));
  }
  CHECK_THAT(refusal_with("num_key_value_heads", 5), contains("num_key_value_heads"));
  CHECK_THAT(refusal_with("num_key_value_heads", 64), contains("num_key_value_heads"));
  CHECK_THAT(refusal_with("head_dim", 65), contains("head_dim"));
  CHECK_THAT(refusal_with("hidden_size", 4095), contains("head_dim"));
  CHECK_THAT(refusal_with("tie_word_embeddings", 1), contains("tie_word_embeddings"));
  CHECK_THAT(refusal_with("bos_token_id", 128256), contains("bos_token_id"));
  CHECK_THAT(refusal_with("eos_token_id", {1, "x"}), contains("eos_token_id"));
  CHECK_THAT(refusal_with("rope_scaling", 8), contains("rope_scaling"));
}

TEST_CASE("model_config: Llama 3.1 scaling without one of its numbers is refused", "[llama3]")
{
  for (char const* const key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    auto config = llama31();
    config["rope_scaling"].erase(key);
    CHECK_THAT(refusal(config), contains("rope_scaling") && contains(key));
  }
  auto config                      = llama31();
  config["rope_scaling"]["factor"] = 0.5;
  CHECK_THAT(refusal(config), contains("factor"));
  config                                     = llama31();
  config["rope_scaling"]["high_freq_factor"] = 1.0;
  CHECK_THAT(refusal(config), contains("high_freq_factor"));
}

TEST_CASE("model_config: a text that is no configuration is refused", "[llama3]")
{
  for (char const* const text :
       {"", "{", "[]", "null", "{}", "\xFF\xFE", R"({"hidden_size":1,"hidden_size":2})"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_model_config(text), contains("config.json"));
  }
  auto twice   = llama31().dump();
  twice.back() = ',';
  CHECK_THROWS_WITH(parse_model_config(twice + R"("hidden_size":4096})"),
                    contains("'hidden_size' stands twice"));
  CHECK_THROWS_AS(parse_model_config(std::string(100'000, '[')), file_error);
  CHECK_THROWS_AS(parse_model_config(llama31().dump() + std::string(1, '\0') + "x"), file_error);
}

TEST_CASE("model_config: a folder is read, and one without a configuration says what to do",
          "[llama3]")
{
  temporary_folder const folder;
  CHECK_THROWS_WITH(llama3::load_model_config(folder.path()),
                    contains("config.json") && contains("get_model.py"));
  CHECK_THROWS_WITH(llama3::load_model_config(folder.path() / "absent"), contains("get_model.py"));
  write_file(folder.path() / "config.json", qwen25().dump());
  CHECK(llama3::load_model_config(folder.path()).stop_ids == std::vector<int>{151645});
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id":[5,4]})");
  CHECK(llama3::load_model_config(folder.path()).stop_ids == std::vector<int>{4, 5});
  write_file(folder.path() / "generation_config.json", "");
  CHECK_THROWS_WITH(llama3::load_model_config(folder.path()), contains("generation_config.json"));
  write_file(folder.path() / "config.json", std::string(1'000'001, ' '));
  CHECK_THROWS_WITH(llama3::load_model_config(folder.path()), contains("config.json"));
}
