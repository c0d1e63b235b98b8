// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/weights.hpp"

#include "llama3/exact_backend.hpp"
#include "llama3/model.hpp"
#include "naive_model.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace {
using namespace llama3;
using diffkv::test::contains;
using llama3::test::make_tiny_model;
using llama3::test::naive_logits;
using llama3::test::temporary_folder;
using llama3::test::tiny_model;
using llama3::test::tiny_shape;

//! The message with which the weights are refused; "" if they are taken.
std::string refusal(tiny_model const& tiny)
{
  temporary_folder const folder;
  tiny.write(folder.path());
  checkpoint const files{folder.path()};
  try {
    (void)load_weights(tiny.config, files);
    return {};
  } catch (file_error const& error) {
    return error.what();
  }
}

//! WGT-11: 8 ids, hidden size 64, one layer; `tie` is the line of config.json, or empty.
model_config parsed_config(std::string const& tie)
{
  return parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 64,
    "rope_theta": 10000.0, "hidden_act": "silu", "rms_norm_eps": 1e-5)" +
                            tie + "}");
}

tiny_shape shape_of_parsed(bool tied)
{
  tiny_shape shape;
  shape.hidden_size       = 64;
  shape.intermediate_size = 32;
  shape.num_layers        = 1;
  shape.num_q_heads       = 2;
  shape.num_heads         = 1;
  shape.head_dim          = 32;
  shape.vocab_size        = 8;
  shape.tied              = tied;
  return shape;
}

void check_logits(tiny_model const& tiny)
{
  temporary_folder const folder;
  tiny.write(folder.path());
  thread_pool threads{2};
  model loaded{tiny.config, checkpoint{folder.path()}, threads};
  exact_backend cache{tiny.config, threads};
  std::vector<token_id> const ids{1, 2, 3};
  auto const logits   = loaded.prompt(ids, cache);
  auto const expected = naive_logits(tiny, ids).back();
  REQUIRE(logits.size() == expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(logits[i] - expected[i]) < 2e-5);
  }
}
}  // namespace

TEST_CASE("weights: tied embeddings are the output matrix", "[llama3]")
{
  auto tiny   = make_tiny_model(shape_of_parsed(true), 1);  // WGT-11 (a)
  tiny.config = parsed_config(R"(, "tie_word_embeddings": true)");
  REQUIRE(tiny.config.tie_embeddings);
  check_logits(tiny);
}

TEST_CASE("weights: without tied embeddings a missing lm_head is refused by name", "[llama3]")
{
  auto tiny   = make_tiny_model(shape_of_parsed(true), 2);  // WGT-11 (b)
  tiny.config = parsed_config(R"(, "tie_word_embeddings": false)");
  REQUIRE_FALSE(tiny.config.tie_embeddings);
  CHECK_THAT(refusal(tiny), contains("lm_head.weight"));
}

TEST_CASE("weights: where config.json says nothing of tying, lm_head is used", "[llama3]")
{
  auto tiny   = make_tiny_model(shape_of_parsed(false), 3);  // WGT-11 (c)
  tiny.config = parsed_config("");
  REQUIRE_FALSE(tiny.config.tie_embeddings);
  check_logits(tiny);
}

TEST_CASE("weights: tied embeddings win over an lm_head that is stored too", "[llama3]")
{
  auto tiny                  = make_tiny_model(shape_of_parsed(false), 4);
  tiny.config.tie_embeddings = true;
  check_logits(tiny);
}

TEST_CASE("weights: each missing tensor is refused by name", "[llama3]")
{
  tiny_shape shape;
  shape.arch      = architecture::qwen2;
  auto const good = make_tiny_model(shape, 5);
  CHECK(refusal(good).empty());
  for (auto const& [name, tensor] : good.tensors) {
    CAPTURE(name);
    auto tiny = good;
    tiny.tensors.erase(name);
    CHECK_THAT(refusal(tiny), contains(name));
  }
}

TEST_CASE("weights: each misshapen tensor is refused by name", "[llama3]")
{
  tiny_shape shape;
  shape.arch      = architecture::qwen2;
  auto const good = make_tiny_model(shape, 6);
  for (auto const& [name, tensor] : good.tensors) {
    CAPTURE(name);
    auto tiny     = good;
    auto& changed = tiny.tensors[name];
    changed.shape.push_back(1);  // the same elements, one dimension more
    CHECK_THAT(refusal(tiny), contains(name));
    changed = tensor;
    changed.shape.front() += 1;
    changed.values.resize(changed.values.size() / static_cast<std::size_t>(tensor.shape.front()) *
                          static_cast<std::size_t>(changed.shape.front()));
    CHECK_THAT(refusal(tiny), contains(name));
  }
}

TEST_CASE("weights: a tensor that the architecture has no place for is refused by name", "[llama3]")
{
  auto const good = make_tiny_model({}, 7);
  for (std::string const name :
       {"model.layers.0.self_attn.q_norm.weight", "model.layers.1.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight", "extra"}) {
    CAPTURE(name);
    auto tiny          = good;
    tiny.tensors[name] = {{2}, {0.0f, 0.0f}};
    CHECK_THAT(refusal(tiny), contains(name));
  }
  auto old                                                    = good;
  old.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{4}, {1, 1, 1, 1}};
  CHECK(refusal(old).empty());
}

TEST_CASE("weights: a stored bias that config.json does not announce is refused", "[llama3]")
{
  tiny_shape shape;
  shape.all_biases = true;
  auto tiny        = make_tiny_model(shape, 8);
  CHECK(refusal(tiny).empty());
  tiny.config.mlp_bias = false;
  CHECK_THAT(refusal(tiny), contains("_proj.bias"));
  tiny.config.mlp_bias    = true;
  tiny.config.output_bias = false;
  CHECK_THAT(refusal(tiny), contains("o_proj.bias"));
}
