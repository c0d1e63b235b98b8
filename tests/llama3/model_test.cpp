// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/model.hpp"

#include "llama3/exact_backend.hpp"
#include "naive_model.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
using namespace llama3;
using llama3::test::make_tiny_model;
using llama3::test::naive_logits;
using llama3::test::temporary_folder;
using llama3::test::tiny_model;
using llama3::test::tiny_shape;

model load(tiny_model const& tiny, thread_pool& threads, dtype type = dtype::f32)
{
  temporary_folder const folder;
  tiny.write(folder.path(), type);
  return model{tiny.config, checkpoint{folder.path()}, threads};
}

std::vector<token_id> random_ids(int count, int vocab_size, unsigned seed)
{
  std::mt19937 random{seed};
  std::vector<token_id> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(static_cast<token_id>(random() % static_cast<unsigned>(vocab_size)));
  }
  return ids;
}

std::vector<int> all_positions(std::size_t count)
{
  std::vector<int> positions;
  for (std::size_t i = 0; i < count; ++i) { positions.push_back(static_cast<int>(i)); }
  return positions;
}

//! Largest difference between logits of all positions and those of the f64 loops.
double difference(std::vector<float> const& logits,
                  std::vector<std::vector<double>> const& expected)
{
  double largest = 0.0;
  std::size_t at = 0;
  for (auto const& row : expected) {
    for (double const value : row) {
      largest = std::max(largest, std::abs(logits.at(at++) - value));
    }
  }
  return at == logits.size() ? largest : 1e30;
}

double difference(std::vector<float> const& a, std::vector<float> const& b)
{
  double largest = a.size() == b.size() ? 0.0 : 1e30;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  }
  return largest;
}

//! Attends to nothing and keeps what the model hands over in layer 0.
struct recording_backend final : attention_backend {
  explicit recording_backend(model_config const& config) : c{config} {}
  void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
              float* out) override
  {
    record(layer, num_tokens, q, k, v, out);
  }
  void begin_token() override { ++tokens_begun; }
  void decode(int layer, float const* q, float const* k, float const* v, float* out) override
  {
    record(layer, 1, q, k, v, out);
  }
  void record(int layer, int num_tokens, float const* q, float const* k, float const* v, float* out)
  {
    ++calls;
    auto const q_size  = num_tokens * c.num_q_heads * c.head_dim;
    auto const kv_size = num_tokens * c.num_heads * c.head_dim;
    std::fill_n(out, q_size, 0.0f);
    if (layer == 0) {
      queries.assign(q, q + q_size);
      keys.assign(k, k + kv_size);
      values.assign(v, v + kv_size);
    }
  }
  model_config c;
  std::vector<float> queries, keys, values;
  int calls{0}, tokens_begun{0};
};

constexpr double tolerance = 2e-5;  // f32 sums over at most 96 elements, logits of a few units
}  // namespace

TEST_CASE("model: logits agree with a plain f64 forward pass", "[llama3]")
{
  struct {
    char const* name;
    tiny_shape shape;
  } cases[9];
  cases[0]                         = {"llama, group 2", {}};
  cases[1]                         = {"llama, group 1, tied", {}};
  cases[1].shape.num_heads         = 4;
  cases[1].shape.tied              = true;
  cases[2]                         = {"llama, group 4", {}};
  cases[2].shape.num_heads         = 1;
  cases[3]                         = {"llama, group 3, heads wider than the hidden vector", {}};
  cases[3].shape.num_q_heads       = 6;
  cases[3].shape.head_dim          = 16;
  cases[4]                         = {"qwen2, biases", {}};
  cases[4].shape.arch              = architecture::qwen2;
  cases[5]                         = {"qwen2, tied, group 4", {}};
  cases[5].shape.arch              = architecture::qwen2;
  cases[5].shape.tied              = true;
  cases[5].shape.num_heads         = 1;
  cases[6]                         = {"mistral", {}};
  cases[6].shape.arch              = architecture::mistral;
  cases[7]                         = {"odd sizes", {}};
  cases[7].shape.hidden_size       = 33;
  cases[7].shape.intermediate_size = 71;
  cases[7].shape.vocab_size        = 13;
  cases[8]                         = {"llama, biases everywhere", {}};
  cases[8].shape.all_biases        = true;
  thread_pool threads{2};
  unsigned seed = 100;
  for (auto const& c : cases) {
    CAPTURE(c.name, ++seed);
    auto const tiny     = make_tiny_model(c.shape, seed);
    auto const ids      = random_ids(19, c.shape.vocab_size, seed);
    auto const expected = naive_logits(tiny, ids);
    auto loaded         = load(tiny, threads);
    exact_backend cache{tiny.config, threads};
    CHECK(difference(loaded.prompt_logits(ids, all_positions(ids.size()), cache), expected) <
          tolerance);
    CHECK(difference(loaded.prompt(ids, cache), {expected.back()}) < tolerance);
  }
}

TEST_CASE("model: decoding after a prompt equals a prompt of the longer text", "[llama3]")
{
  thread_pool threads{2};
  for (auto const arch : {architecture::llama, architecture::qwen2}) {
    tiny_shape shape;
    shape.arch          = arch;
    auto const tiny     = make_tiny_model(shape, 7);
    auto const ids      = random_ids(24, shape.vocab_size, 7);
    auto const expected = naive_logits(tiny, ids);
    auto loaded         = load(tiny, threads);
    for (int const prompt_tokens : {1, 2, 10, 23}) {
      CAPTURE(name_of(arch), prompt_tokens);
      exact_backend cache{tiny.config, threads};
      (void)loaded.prompt({ids.begin(), ids.begin() + prompt_tokens}, cache);
      for (int t = prompt_tokens; t < static_cast<int>(ids.size()); ++t) {
        auto const at = static_cast<std::size_t>(t);
        CAPTURE(t);
        CHECK(difference(loaded.decode(ids[at], t, cache), {expected[at]}) < tolerance);
      }
    }
  }
}

TEST_CASE("model: a prompt longer than a slice of tokens agrees at its edges", "[llama3]")
{
  thread_pool threads{2};
  tiny_shape shape;
  shape.hidden_size = 16;
  auto const tiny   = make_tiny_model(shape, 8);
  auto const ids    = random_ids(600, shape.vocab_size, 8);
  auto const naive  = naive_logits(tiny, ids);
  auto loaded       = load(tiny, threads);
  exact_backend cache{tiny.config, threads};
  auto const logits = loaded.prompt_logits(ids, {0, 511, 512, 599, 511}, cache);
  CHECK(difference(logits, {naive[0], naive[511], naive[512], naive[599], naive[511]}) < tolerance);
}

TEST_CASE("model: f16 and bf16 weights give the logits of the same values in f32", "[llama3]")
{
  thread_pool threads{2};
  for (auto const arch : {architecture::llama, architecture::qwen2}) {
    tiny_shape shape;
    shape.arch      = arch;
    auto const tiny = make_tiny_model(shape, 9);
    auto const ids  = random_ids(9, shape.vocab_size, 9);
    auto run        = [&](dtype type) {
      auto loaded = load(tiny, threads, type);
      exact_backend cache{tiny.config, threads};
      auto logits     = loaded.prompt(ids, cache);
      auto const next = loaded.decode(3, 9, cache);
      logits.insert(logits.end(), next.begin(), next.end());
      return logits;
    };
    auto const expected = run(dtype::f32);
    CHECK(difference(run(dtype::f16), expected) < tolerance);
    CHECK(difference(run(dtype::bf16), expected) < tolerance);
  }
}

TEST_CASE("model: logits do not depend on the number of threads", "[llama3]")
{
  auto const tiny = make_tiny_model({}, 10);
  auto const ids  = random_ids(70, tiny.config.vocab_size, 10);
  std::vector<float> first;
  for (int const num_threads : {1, 2, 3, 5}) {
    thread_pool threads{num_threads};
    auto loaded = load(tiny, threads);
    exact_backend cache{tiny.config, threads};
    auto logits     = loaded.prompt_logits(ids, all_positions(ids.size()), cache);
    auto const next = loaded.decode(1, 70, cache);
    logits.insert(logits.end(), next.begin(), next.end());
    if (first.empty()) { first = logits; }
    CAPTURE(num_threads);
    CHECK(logits == first);
  }
}

TEST_CASE("model: a second prompt is not touched by the first", "[llama3]")
{
  thread_pool threads{2};
  auto const tiny = make_tiny_model({}, 11);
  auto const a    = random_ids(30, tiny.config.vocab_size, 11);
  auto const b    = random_ids(7, tiny.config.vocab_size, 12);
  auto loaded     = load(tiny, threads);
  exact_backend fresh{tiny.config, threads}, used{tiny.config, threads};
  (void)loaded.prompt(a, used);
  (void)loaded.decode(5, 30, used);
  CHECK(loaded.prompt(b, used) == loaded.prompt(b, fresh));
  CHECK(used.num_tokens(0) == 7);
  CHECK(loaded.decode(2, 7, used) == loaded.decode(2, 7, fresh));
}

TEST_CASE("model: rotary weights are read in half-split order", "[llama3]")
{
  // WGT-13: one head of 4, identity projections, x = (1, 0, 0, 0) after the norm.
  tiny_shape shape;
  shape.hidden_size = shape.head_dim = 4;
  shape.num_q_heads = shape.num_heads = shape.num_layers = 1;
  shape.vocab_size                                       = 1;
  auto tiny                                              = make_tiny_model(shape, 1);
  tiny.config.rms_norm_eps                               = 0.0;
  std::vector<float> const identity{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  tiny.tensors["model.embed_tokens.weight"].values              = {1, 0, 0, 0};
  tiny.tensors["model.layers.0.input_layernorm.weight"].values  = {0.5, 1, 1, 1};
  tiny.tensors["model.layers.0.self_attn.q_proj.weight"].values = identity;
  tiny.tensors["model.layers.0.self_attn.k_proj.weight"].values = identity;
  thread_pool threads{1};
  auto loaded = load(tiny, threads);
  recording_backend recorded{tiny.config};
  (void)loaded.prompt({0, 0, 0, 0}, recorded);
  auto const* const q = recorded.queries.data() + 4;  // position 1
  CHECK(std::abs(q[0] - 0.540302) < 1e-6);
  CHECK(std::abs(q[1]) < 1e-6);
  CHECK(std::abs(q[2] - 0.841471) < 1e-6);
  CHECK(std::abs(q[3]) < 1e-6);
  double dot = 0.0;
  for (std::size_t i = 0; i < 4; ++i) { dot += double{q[i]} * recorded.keys[3 * 4 + i]; }
  CHECK(std::abs(dot - -0.416147) < 1e-6);
}

TEST_CASE("model: the position is the caller's, whatever the cache kept", "[llama3]")
{
  // MOD-08: of 101 tokens this cache keeps none; the next one is still rotated to position 100.
  thread_pool threads{2};
  auto const tiny = make_tiny_model({}, 13);
  auto const ids  = random_ids(101, tiny.config.vocab_size, 13);
  auto loaded     = load(tiny, threads);
  recording_backend long_prompt{tiny.config}, short_prompt{tiny.config};
  (void)loaded.prompt(ids, long_prompt);
  (void)loaded.decode(ids.back(), 100, short_prompt);
  std::vector<float> const last(long_prompt.keys.end() - 16, long_prompt.keys.end());
  CHECK(difference(short_prompt.keys, last) < 1e-5);
  CHECK(short_prompt.tokens_begun == 1);
  CHECK(short_prompt.calls == tiny.config.num_layers);
}

TEST_CASE("model: progress is told after each layer and the clock runs", "[llama3]")
{
  thread_pool threads{2};
  auto const tiny = make_tiny_model({}, 14);
  auto loaded     = load(tiny, threads);
  exact_backend cache{tiny.config, threads};
  std::vector<int> told;
  (void)loaded.prompt({1, 2, 3}, cache, [&](int done, int of) {
    CHECK(of == 2);
    told.push_back(done);
  });
  CHECK(told == std::vector<int>{1, 2});
  auto const& times = loaded.times();
  CHECK(times.matrices > 0.0);
  CHECK(times.attention > 0.0);
  CHECK(times.other > 0.0);
  CHECK(times.total() == times.matrices + times.attention + times.other);
  loaded.clear_times();
  CHECK(loaded.times().total() == 0.0);
}

TEST_CASE("model: ids and positions out of range are refused before any work", "[llama3]")
{
  thread_pool threads{1};
  auto const tiny = make_tiny_model({}, 15);
  auto loaded     = load(tiny, threads);
  recording_backend cache{tiny.config};
  CHECK_THROWS_AS(loaded.prompt({}, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.prompt({0, 40}, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.prompt({0, -1}, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.prompt_logits({0, 1}, {2}, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.prompt_logits({0, 1}, {-1}, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.decode(40, 0, cache), std::invalid_argument);
  CHECK_THROWS_AS(loaded.decode(0, -1, cache), std::invalid_argument);
  CHECK(cache.calls == 0);
  CHECK(cache.tokens_begun == 0);
  CHECK(loaded.prompt_logits({0, 1}, {}, cache).empty());
}
