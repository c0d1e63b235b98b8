// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/comparison.hpp"

#include <cmath>
#include <stdexcept>
#include <vector>

#include "backend_session.hpp"
#include "llama3/exact_backend.hpp"
#include "llama3/sampler.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

namespace {
using namespace llama3;
using test::backend_session;
auto near(double value) { return Catch::Matchers::WithinRel(value, 1e-6); }

model load(test::tiny_model const& tiny, thread_pool& threads)
{
  test::temporary_folder const folder;
  tiny.write(folder.path());
  return model{tiny.config, checkpoint{folder.path()}, threads};
}

//! Passes everything on, and keeps the order of the calls: 'p' a prompt, 't' a token.
struct counting_backend final : attention_backend {
  explicit counting_backend(attention_backend& to) : next{to} {}
  void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
              float* out) override
  {
    if (layer == 0) { calls += 'p'; }
    next.prompt(layer, num_tokens, q, k, v, out);
  }
  void begin_token() override
  {
    calls += 't';
    next.begin_token();
  }
  void decode(int layer, float const* q, float const* k, float const* v, float* out) override
  {
    next.decode(layer, q, k, v, out);
  }
  attention_backend& next;
  std::string calls;
};

//! Attends to the newest token alone: a cache that lost everything else.
struct forgetful_backend final : attention_backend {
  explicit forgetful_backend(model_config const& config) : c{config} {}
  void prompt(int, int num_tokens, float const*, float const*, float const* v, float* out) override
  {
    for (int t = 0; t < num_tokens; ++t) { newest(v, out, t); }
  }
  void begin_token() override {}
  void decode(int, float const*, float const*, float const* v, float* out) override
  {
    newest(v, out, 0);
  }
  void newest(float const* v, float* out, int t) const
  {
    for (int h = 0; h < c.num_q_heads; ++h) {
      for (int d = 0; d < c.head_dim; ++d) {
        out[(t * c.num_q_heads + h) * c.head_dim + d] =
          v[(t * c.num_heads + h / c.group()) * c.head_dim + d];
      }
    }
  }
  model_config c;
};

std::vector<token_id> const prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
}  // namespace

TEST_CASE("comparison: KL, agreement and log-probability of two distributions by hand", "[llama3]")
{
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4); an offset of all logits changes nothing.
  float const log_2 = std::log(2.0f);
  std::vector<float> const p{log_2 + 5.0f, 5.0f, 5.0f};
  std::vector<float> const q{-3.0f, log_2 - 3.0f, -3.0f};
  compared_position const at = compare_logits(p, q, 1);
  CHECK_THAT(at.kl, near(0.25 * std::log(2.0)));
  CHECK_FALSE(at.agrees);
  CHECK_THAT(at.log_probability, near(std::log(0.25)));
  CHECK_THAT(at.log_probability_compressed, near(std::log(0.5)));

  CHECK(compare_logits(p, p, 0).kl == 0.0);
  CHECK(compare_logits(p, p, 0).agrees);
  CHECK_THROWS(compare_logits(p, q, 3));
}

TEST_CASE("comparison: a token without probability adds nothing", "[llama3]")
{
  float const never = -std::numeric_limits<float>::infinity();
  CHECK_THAT(compare_logits({0.0f, never}, {0.0f, 0.0f}, 0).kl, near(std::log(2.0)));
  CHECK(compare_logits({0.0f, -1e4f}, {0.0f, -1e4f}, 0).kl == 0.0);
}

TEST_CASE("comparison: means over the positions by hand", "[llama3]")
{
  comparison c;
  CHECK(c.mean_kl() == 0.0);
  CHECK(c.agreement() == 1.0);
  CHECK(c.perplexity_ratio() == 1.0);
  c.positions = {{0.1, true, -1.0, -1.5}, {0.3, false, -2.0, -1.9}, {0.2, true, -0.5, -0.7}};
  CHECK_THAT(c.mean_kl(), near(0.2));
  CHECK_THAT(c.agreement(), near(2.0 / 3.0));
  CHECK_THAT(c.perplexity_ratio(), near(std::exp((0.5 - 0.1 + 0.2) / 3.0)));
}

TEST_CASE("comparison: equal sessions give exactly 0, whatever follows the prompt", "[llama3]")
{
  thread_pool threads{2};
  auto const tiny = test::make_tiny_model({}, 5);
  model of        = load(tiny, threads);
  exact_backend a{tiny.config, threads}, b{tiny.config, threads};
  counting_backend reference{a}, other{b};
  backend_session first{of, reference}, second{of, other};
  comparison const c = compare(first, second, prompt, {1, 2}, 6);
  REQUIRE(c.positions.size() == 6);
  for (auto const& p : c.positions) {
    CHECK(p.kl == 0.0);
    CHECK(p.agrees);
    CHECK(p.log_probability == p.log_probability_compressed);
    CHECK(p.log_probability < 0.0);
  }
  CHECK(c.perplexity_ratio() == 1.0);
  // The prompt once per cache; each forced token once.
  CHECK(reference.calls == "ptttttt");
  CHECK(other.calls == reference.calls);
  CHECK(c.prompt_time.total() > 0.0);
  CHECK(c.decode_time.total() > 0.0);
}

TEST_CASE("comparison: forces the continuation, then what the reference finds most likely",
          "[llama3]")
{
  thread_pool threads{1};
  auto const tiny = test::make_tiny_model({}, 6);
  model of        = load(tiny, threads);
  std::vector<token_id> const continuation{7, 11};

  // By hand: the same tokens through one exact cache.
  exact_backend alone{tiny.config, threads};
  std::vector<token_id> forced = continuation;
  std::vector<std::vector<float>> logits;
  static_cast<void>(of.prompt(prompt, alone));
  for (std::size_t i = 0; i < 5; ++i) {
    logits.push_back(of.decode(forced[i], static_cast<int>(prompt.size() + i), alone));
    if (i + 1 >= forced.size()) { forced.push_back(sampler::greedy(logits.back())); }
  }

  exact_backend reference{tiny.config, threads};
  forgetful_backend other{tiny.config};
  backend_session whole{of, reference}, forgetting{of, other};
  int told        = 0;
  auto const tell = [&](int done, int all) {
    CHECK(done == ++told);
    CHECK(all == 5);
  };
  comparison const c = compare(whole, forgetting, prompt, continuation, 5, {{}, {}, tell});
  CHECK(told == 5);
  REQUIRE(c.positions.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CAPTURE(i);
    auto const expected = compare_logits(logits[i], logits[i], forced[i + 1]);
    CHECK(c.positions[i].log_probability == expected.log_probability);
    CHECK(c.positions[i].kl > 1e-6);  // the other cache has lost the prompt
  }

  // Without continuation the first forced token is the reference's own.
  exact_backend fresh{tiny.config, threads}, again{tiny.config, threads};
  token_id const first = sampler::greedy(of.prompt(prompt, fresh));
  backend_session anew{of, again};
  comparison const greedy        = compare(anew, forgetting, prompt, {}, 1);
  std::vector<float> const after = of.decode(first, static_cast<int>(prompt.size()), fresh);
  CHECK(greedy.positions.at(0).log_probability ==
        compare_logits(after, after, sampler::greedy(after)).log_probability);
}
