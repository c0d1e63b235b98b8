// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! The generation loop with scripted logits: limits, stop ids, and what the model is given.
#include "llama3/generate.hpp"

#include "support/catch.hpp"

#include <stdexcept>
#include <string>
#include <vector>

namespace {
using diffkv::test::contains;
using llama3::finish_reason;
using llama3::token_id;
using ids = std::vector<token_id>;

// A "model" of 10 tokens that says `script`, then 0 for ever, and remembers what it was given.
class scripted_model {
 public:
  explicit scripted_model(ids script) : script_(std::move(script)) {}

  llama3::next_logits_function function()
  {
    return [this](ids const& tokens) {
      given.push_back(tokens);
      std::size_t const step = given.size() - 1;
      logits_.assign(10, 0.0f);
      if (step < script_.size()) { logits_[static_cast<std::size_t>(script_[step])] = 1.0f; }
      return llama3::logits_view(logits_);
    };
  }
  std::vector<ids> given;

 private:
  ids script_;
  std::vector<float> logits_;
};

llama3::generation run(scripted_model& model, ids const& prompt, ids const& stop_ids,
                       int max_tokens, int context = 100, ids* shown = nullptr)
{
  llama3::sampler greedy;
  return llama3::generate(prompt, model.function(), greedy, stop_ids, {max_tokens, context},
                          [&](token_id id) {
                            if (shown != nullptr) { shown->push_back(id); }
                          });
}

std::string message_of(std::size_t prompt, int max_tokens, int context)
{
  try {
    llama3::check_prompt(prompt, {max_tokens, context});
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("generate: the model gets the prompt at once and then each token by itself", "[llama3]")
{
  scripted_model model({4, 2, 9});
  ids shown;
  auto const result = run(model, {7, 8}, {}, 3, 100, &shown);
  CHECK(result.tokens == ids{4, 2, 9});
  CHECK(shown == result.tokens);
  CHECK(result.reason == finish_reason::length);
  CHECK(model.given == std::vector<ids>{{7, 8}, {4}, {2}});
}

TEST_CASE("generate: each stop id ends the answer and is not part of it", "[llama3]")
{
  scripted_model both({1, 2, 7, 3});
  ids shown;
  auto const listed = run(both, {6}, {5, 7}, 10, 100, &shown);
  CHECK(listed.tokens == ids{1, 2});
  CHECK(shown == ids{1, 2});
  CHECK(listed.reason == finish_reason::stop);
  CHECK(name_of(listed.reason) == "stop");

  scripted_model one({1, 2, 7, 3});
  auto const single = run(one, {6}, {5}, 4);
  CHECK(single.tokens == ids{1, 2, 7, 3});
  CHECK(single.reason == finish_reason::length);
  CHECK(name_of(single.reason) == "length");

  scripted_model until({1, 2, 7, 3, 5, 4});
  auto const stopped = run(until, {6}, {5}, 10);
  CHECK(stopped.tokens == ids{1, 2, 7, 3});
  CHECK(stopped.reason == finish_reason::stop);

  scripted_model at_once({7});
  CHECK(run(at_once, {6}, {7}, 10).tokens.empty());

  // A stop id in the prompt ends nothing.
  scripted_model after({1, 5});
  CHECK(run(after, {5, 7, 5}, {5}, 10).tokens == ids{1});
}

TEST_CASE("generate: a prompt near the context gives what still fits", "[llama3]")
{
  struct row {
    std::size_t prompt;
    int max_tokens;
    std::size_t expected;
  };
  for (row const& r : {row{1, 10, 10}, row{22, 10, 10}, row{23, 10, 9}, row{30, 10, 2},
                       row{31, 10, 1}, row{32, 10, 0}, row{5, 0, 0}, row{5, 1, 1}}) {
    scripted_model model({1, 2, 3});
    auto const result = run(model, ids(r.prompt, 6), {9}, r.max_tokens, 32);
    CAPTURE(r.prompt, r.max_tokens);
    CHECK(result.tokens.size() == r.expected);
    CHECK(result.reason == finish_reason::length);
    // Nothing is computed past the last token, and nothing at all where none fits.
    CHECK(model.given.size() == r.expected);
  }
}

TEST_CASE("generate: a prompt longer than the context is refused with both numbers", "[llama3]")
{
  for (std::size_t const prompt : {33u, 34u, 5000u}) {
    scripted_model model({1});
    CHECK_THROWS_AS(run(model, ids(prompt, 6), {}, 10, 32), std::invalid_argument);
    CHECK(model.given.empty());
    CHECK_THAT(message_of(prompt, 10, 32), contains(std::to_string(prompt)));
    CHECK_THAT(message_of(prompt, 10, 32), contains("32"));
  }
  CHECK(message_of(32, 10, 32).empty());
}

TEST_CASE("generate: an empty prompt is refused before any work", "[llama3]")
{
  scripted_model model({1, 2, 3});
  CHECK_THROWS_AS(run(model, {}, {}, 3), std::invalid_argument);
  CHECK(model.given.empty());
  CHECK_THAT(message_of(0, 3, 32), contains("empty"));
  // With BOS the prompt of an empty text is that one token, and works.
  CHECK(run(model, {0}, {}, 3).tokens == ids{1, 2, 3});
}

TEST_CASE("generate: limits that make no sense are refused", "[llama3]")
{
  CHECK_THAT(message_of(1, -1, 32), contains("-1"));
  CHECK_THAT(message_of(1, 1, 0), contains("context holds 0"));
  CHECK_THAT(message_of(1, 1, -5), contains("-5"));
}

TEST_CASE("generate: an error of the model or of the listener reaches the caller", "[llama3]")
{
  llama3::sampler greedy;
  auto const broken = [](ids const&) -> llama3::logits_view { throw std::domain_error("pages"); };
  CHECK_THROWS_AS(llama3::generate({1}, broken, greedy, {}, {3, 10}), std::domain_error);
  scripted_model model({1, 2, 3});
  auto const cancel = [](token_id id) {
    if (id == 2) { throw std::range_error("enough"); }
  };
  CHECK_THROWS_AS(llama3::generate({1}, model.function(), greedy, {}, {3, 10}, cancel),
                  std::range_error);
  CHECK(model.given.size() == 2);
}

TEST_CASE("generate: ids beyond the tokenizer never come out", "[llama3]")
{
  scripted_model model({9, 8, 9, 7});
  llama3::sampler_options options;
  options.num_ids = 8;
  llama3::sampler narrow(options);
  auto const result = llama3::generate({1}, model.function(), narrow, {}, {4, 10});
  for (token_id const id : result.tokens) { CHECK(id < 8); }
  CHECK(result.tokens.back() == 7);
}
