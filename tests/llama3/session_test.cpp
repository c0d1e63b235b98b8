// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/session.hpp"

#include <stdexcept>
#include <vector>

#include "llama3/cpu_session.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

namespace {
using namespace llama3;

//! A tiny model and a cache that prunes and requantises what leaves its window.
struct fixture {
  static test::tiny_model make()
  {
    test::tiny_shape shape;
    shape.hidden_size = 64;
    shape.head_dim    = 32;  // the least that pages hold
    return test::make_tiny_model(shape, 17);
  }
  static model load(test::tiny_model const& tiny, thread_pool& threads)
  {
    test::temporary_folder const folder;
    tiny.write(folder.path());
    return model{tiny.config, checkpoint{folder.path()}, threads};
  }
  fixture()
  {
    settings.conditioning = diffkv::conditioning::none;
    settings.limits       = {1.2f, 0.9f};
    settings.window       = 4;
    settings.score_every  = 1;
  }
  cpu_session make_session() { return {of, settings, 64, {}, threads}; }
  paged_backend make_backend() { return {tiny.config, settings, 64, {}, threads}; }

  test::tiny_model tiny = make();
  thread_pool threads{2};
  model of = load(tiny, threads);
  cache_settings settings;
};

using logits_of_steps = std::vector<std::vector<float>>;

//! Logits after the prompt and after each of `tokens`.
logits_of_steps run(session& s, std::vector<token_id> const& prompt,
                    std::vector<token_id> const& tokens)
{
  logits_of_steps logits{s.prompt(prompt)};
  for (token_id const id : tokens) { logits.push_back(s.decode(id)); }
  return logits;
}

std::vector<token_id> const prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
std::vector<token_id> const other_prompt{2, 7, 1, 8, 2, 8, 1};
std::vector<token_id> const tokens{9, 7, 9, 3, 2, 3, 8, 4};
}  // namespace

TEST_CASE("session: it counts the positions, pruned tokens too", "[llama3]")
{
  fixture f;
  auto s            = f.make_session();
  auto const logits = run(s, prompt, tokens);
  auto backend      = f.make_backend();
  CHECK(logits[0] == f.of.prompt(prompt, backend));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CAPTURE(i);
    int const position = static_cast<int>(prompt.size() + i);
    CHECK(logits[i + 1] == f.of.decode(tokens[i], position, backend));
  }
  CHECK(s.usage().pruned > 0);
  CHECK(s.usage().num_tokens == static_cast<int>(prompt.size() + tokens.size()));
  CHECK(s.usage().bytes == backend.usage().bytes);
}

TEST_CASE("session: a prompt begins anew", "[llama3]")
{
  fixture f;
  auto fresh          = f.make_session();
  auto used           = f.make_session();
  auto const expected = run(fresh, prompt, tokens);
  (void)run(used, other_prompt, tokens);
  CHECK(run(used, prompt, tokens) == expected);
  CHECK(used.usage().num_tokens == fresh.usage().num_tokens);
  CHECK(used.usage().pages == fresh.usage().pages);
  CHECK(run(used, prompt, tokens) == expected);  // the same prompt too
}

TEST_CASE("session: two that share a model do not meet", "[llama3]")
{
  fixture f;
  auto alone = f.make_session(), a = f.make_session(), b = f.make_session();
  auto const expected_a = run(alone, prompt, tokens);
  auto const expected_b = run(alone, other_prompt, tokens);
  logits_of_steps of_a{a.prompt(prompt)}, of_b{b.prompt(other_prompt)};
  for (token_id const id : tokens) {
    of_a.push_back(a.decode(id));
    of_b.push_back(b.decode(id));
  }
  CHECK(of_a == expected_a);
  CHECK(of_b == expected_b);
}

TEST_CASE("session: its times are its own", "[llama3]")
{
  fixture f;
  auto a = f.make_session(), b = f.make_session();
  CHECK(a.times().total() == 0.0);
  (void)a.prompt(prompt);
  double const of_prompt = a.times().total();
  CHECK(a.times().matrices > 0.0);
  CHECK(a.times().attention > 0.0);
  CHECK(a.times().device == 0.0);  // all of it is split up
  (void)run(b, prompt, tokens);
  CHECK(a.times().total() == of_prompt);
  CHECK(b.times().total() > 0.0);
  (void)a.decode(1);
  CHECK(a.times().total() > of_prompt);
  a.clear_times();
  CHECK(a.times().total() == 0.0);
  CHECK(b.times().total() > 0.0);
}

TEST_CASE("session: what cannot be a token is refused and changes nothing", "[llama3]")
{
  fixture f;
  auto s = f.make_session();
  CHECK_THROWS_AS(s.decode(1), std::invalid_argument);  // before any prompt
  CHECK_THROWS_AS(s.prompt({}), std::invalid_argument);
  auto fresh          = f.make_session();
  auto const expected = run(fresh, prompt, {9, 7});
  (void)run(s, prompt, {9});
  CHECK_THROWS_AS(s.decode(f.tiny.config.vocab_size), std::invalid_argument);
  CHECK(s.decode(7) == expected.back());

  // A prompt that is refused ends the sequence before it all the same.
  CHECK_THROWS_AS(s.prompt({1, -1}), std::invalid_argument);
  CHECK_THROWS_AS(s.decode(1), std::invalid_argument);
  CHECK(run(s, prompt, {9, 7}) == expected);
}

TEST_CASE("session: a sequence ends at the session's length", "[llama3]")
{
  fixture f;
  auto s = f.make_session();  // of 64 tokens
  (void)s.prompt(prompt);
  for (auto length = prompt.size(); length < 64; ++length) { (void)s.decode(1); }
  CHECK_THROWS_AS(s.decode(1), std::invalid_argument);
  CHECK(s.usage().num_tokens == 64);
}

TEST_CASE("session: progress is told after each layer of the prompt", "[llama3]")
{
  fixture f;
  auto s   = f.make_session();
  int told = 0;
  (void)s.prompt(prompt, [&](int done, int all) {
    CHECK(done == ++told);
    CHECK(all == f.tiny.config.num_layers);
  });
  CHECK(told == f.tiny.config.num_layers);
}

TEST_CASE("session: its options are those of its cache, with every default resolved", "[llama3]")
{
  fixture f;
  auto const s = f.make_session();
  CHECK(diffkv::name(s.options().high) == "k8v4");
  CHECK(s.options().page_bytes > 0);
  CHECK(s.options().num_pages > 0);
  CHECK(s.options().shape.window == 4);
}

TEST_CASE("time_account: the total is the sum of its entries, and accounts add up", "[llama3]")
{
  time_account a{1.0, 2.0, 4.0, 8.0};
  CHECK(a.total() == 15.0);
  a += {0.5, 0.25, 0.125, 0.0625};
  CHECK(a.matrices == 1.5);
  CHECK(a.attention == 2.25);
  CHECK(a.other == 4.125);
  CHECK(a.device == 8.0625);
}
