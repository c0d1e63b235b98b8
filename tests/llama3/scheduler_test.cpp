// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Continuous batching over a runner that has no model: its tokens follow from what a sequence holds, its
//! pages are counted, and it throws if it is used in a way that batch_runner does not allow.
#include "llama3/scheduler.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake_runner.hpp"
#include "support/catch.hpp"

namespace {
using namespace llama3;
using diffkv::test::contains;
using test::fake_runner;
using test::fake_setup;

constexpr token_id stop_id = 7;

//! What a request gets if nobody else is there.
served_request alone(generation_request const& r, int longest, std::vector<token_id> const& stops)
{
  served_request served;
  served.id                 = r.id;
  std::vector<token_id> ids = r.prompt;
  while (static_cast<int>(served.tokens.size()) < r.max_tokens &&
         static_cast<int>(ids.size()) < longest) {
    token_id const next = test::fake_token(ids, r.how);
    if (std::find(stops.begin(), stops.end(), next) != stops.end()) {
      served.reason = request_end::stop;
      break;
    }
    ids.push_back(next);
    served.tokens.push_back(next);
  }
  return served;
}

generation_request make_request(std::uint64_t id, int prompt_tokens, int max_tokens)
{
  generation_request r;
  r.id         = id;
  r.max_tokens = max_tokens;
  r.how.seed   = id * 31;
  for (int t = 0; t < prompt_tokens; ++t) {
    r.prompt.push_back(static_cast<token_id>((id * 17 + static_cast<std::uint64_t>(t) * 5) % 90));
  }
  return r;
}

std::vector<generation_request> some_requests(std::uint32_t seed, int count, int longest)
{
  std::mt19937 random{seed};
  std::vector<generation_request> requests;
  for (int i = 0; i < count; ++i) {
    auto const below = [&](int n) {
      return static_cast<int>(random() % static_cast<std::uint32_t>(n));
    };
    requests.push_back(
      make_request(static_cast<std::uint64_t>(i), 1 + below(longest / 2), below(longest)));
  }
  return requests;
}

//! Everything that a scheduler said.
struct heard {
  std::map<std::uint64_t, std::vector<token_id>> tokens;
  std::map<std::uint64_t, served_request> served;
  std::vector<std::uint64_t> order;  // of their ends

  scheduler_callbacks callbacks()
  {
    return {[this](std::uint64_t id, token_id token) {
              CHECK(served.count(id) == 0);
              tokens[id].push_back(token);
            },
            [this](served_request const& r) {
              CHECK(served.emplace(r.id, r).second);
              order.push_back(r.id);
            }};
  }
};

struct outcome {
  heard said;
  std::uint64_t preemptions = 0, steps = 0;
  int peak = 0;
};

//! Serves them all; pages are conserved, and everyone hears the end.
outcome serve(fake_runner& runs, std::vector<generation_request> const& requests,
              std::vector<token_id> const& stops = {stop_id})
{
  outcome result;
  scheduler batch{runs, stops, result.said.callbacks()};
  for (auto const& r : requests) { batch.submit(r); }
  int rounds = 0;
  while (batch.advance()) {
    CHECK(batch.num_running() <= runs.num_slots());
    REQUIRE(++rounds < 1'000'000);
  }
  CHECK_FALSE(batch.advance());
  CHECK(batch.num_waiting() == 0);
  CHECK(batch.num_running() == 0);
  CHECK(runs.outstanding() == 0);
  CHECK(runs.free_pages() == runs.num_pages());
  CHECK(result.said.served.size() == requests.size());
  std::uint64_t preemptions = 0;
  for (auto const& [id, r] : result.said.served) {
    CAPTURE(id);
    CHECK(result.said.tokens[id] == r.tokens);
    preemptions += static_cast<std::uint64_t>(r.preemptions);
  }
  CHECK(batch.preemptions() == preemptions);
  result.preemptions = batch.preemptions();
  result.steps       = batch.steps();
  result.peak        = batch.peak_running();
  CHECK(result.steps == runs.steps());
  return result;
}

//! Each request got what it gets alone.
void check_answers(outcome const& result, std::vector<generation_request> const& requests,
                   int longest, std::vector<token_id> const& stops = {stop_id})
{
  for (auto const& r : requests) {
    CAPTURE(r.id);
    served_request const expected = alone(r, longest, stops);
    served_request const& got     = result.said.served.at(r.id);
    CHECK(got.tokens == expected.tokens);
    CHECK(got.reason == expected.reason);
  }
}

std::string message_of(scheduler& batch, generation_request const& r)
{
  try {
    batch.submit(r);
  } catch (std::invalid_argument const& error) {
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("scheduler: a request's tokens do not depend on batch, slots, memory or order",
          "[llama3]")
{
  auto requests  = some_requests(/*seed=*/1, 40, 300);
  bool preempted = false;
  for (int const slots : {1, 2, 7, 64}) {
    for (std::uint64_t const pages : {38u, 60u, 150u, 5000u}) {
      for (int const kept : {1, 2, 4}) {
        CAPTURE(slots, pages, kept);
        fake_setup setup;
        setup.max_tokens = setup.max_prompt_tokens = 300;
        setup.num_slots                            = slots;
        setup.num_pages                            = pages;
        setup.keep_one_of                          = kept;
        fake_runner runs{setup};
        outcome const result = serve(runs, requests);
        check_answers(result, requests, setup.max_tokens);
        if (slots == 1 || pages == 5000u) { CHECK(result.preemptions == 0); }
        preempted = preempted || result.preemptions > 0;
        std::rotate(requests.begin(), requests.begin() + 7, requests.end());
      }
    }
  }
  CHECK(preempted);
}

TEST_CASE("scheduler: memory for half of the requests finishes all of them", "[llama3]")
{
  std::vector<generation_request> requests;
  for (std::uint64_t id = 0; id < 8; ++id) { requests.push_back(make_request(id, 8, 92)); }
  fake_setup setup;
  setup.num_slots = 8;
  setup.num_pages = 4 * test::fake_pages(100, setup.tokens_per_page);
  SECTION("let in with little, they grow, and some are preempted")
  {
    fake_runner runs{setup};
    outcome const result = serve(runs, requests, {});
    check_answers(result, requests, setup.max_tokens, {});
    CHECK(result.preemptions > 0);
    CHECK(result.peak > 4);
    // The oldest is never preempted.
    CHECK(result.said.served.at(0).preemptions == 0);
  }
  SECTION("with memory for all of them nobody is")
  {
    setup.num_pages *= 2;
    fake_runner runs{setup};
    outcome const result = serve(runs, requests, {});
    check_answers(result, requests, setup.max_tokens, {});
    CHECK(result.preemptions == 0);
    CHECK(result.peak == 8);
    CHECK(result.steps == 91);
  }
}

TEST_CASE("scheduler: steps are launched ahead, and none too many", "[llama3]")
{
  for (int const ahead : {1, 2, 3}) {
    CAPTURE(ahead);
    fake_setup setup;
    setup.max_steps_ahead = ahead;
    fake_runner runs{setup};
    std::vector<generation_request> requests;
    for (std::uint64_t id = 0; id < 4; ++id) { requests.push_back(make_request(id, 10, 60)); }
    outcome const result = serve(runs, requests, {});
    check_answers(result, requests, setup.max_tokens, {});
    CHECK(result.steps == 59);  // the first token comes with the prompt
    // With two ahead, a step waits behind each one that runs, but for the first.
    CHECK(runs.idle_launches() == (ahead == 1 ? 59 : 1));
  }
}

TEST_CASE("scheduler: what a step chose behind a stop id is dropped", "[llama3]")
{
  fake_setup setup;
  setup.max_tokens        = 400;
  setup.num_pages         = 400;
  setup.max_prompt_tokens = 400;
  std::vector<generation_request> requests;
  for (std::uint64_t id = 0; id < 12; ++id) { requests.push_back(make_request(id, 3, 390)); }
  fake_runner runs{setup};
  outcome const result = serve(runs, requests, {stop_id, 8, 9});
  check_answers(result, requests, setup.max_tokens, {stop_id, 8, 9});
  int stopped = 0;
  for (auto const& [id, r] : result.said.served) { stopped += r.reason == request_end::stop; }
  CHECK(stopped > 6);

  SECTION("a stop id that is chosen first gives an empty answer")
  {
    generation_request const r = make_request(99, 5, 10);
    fake_runner again{setup};
    outcome const empty = serve(again, {r}, {test::fake_token(r.prompt, r.how)});
    CHECK(empty.said.served.at(99).tokens.empty());
    CHECK(empty.said.served.at(99).reason == request_end::stop);
    CHECK(empty.steps == 0);
  }
}

TEST_CASE("scheduler: no token, one token, and the longest sequence", "[llama3]")
{
  fake_setup setup;
  setup.num_slots = 2;
  std::vector<generation_request> const requests{
    make_request(0, 10, 0), make_request(1, 10, 1),  make_request(2, setup.max_tokens - 1, 50),
    make_request(3, 1, 0),  make_request(4, 1, 500), make_request(5, 4, 2)};
  fake_runner runs{setup};
  outcome const result = serve(runs, requests, {});
  check_answers(result, requests, setup.max_tokens, {});
  CHECK(result.said.served.at(0).tokens.empty());
  CHECK(result.said.served.at(2).tokens.size() == 1);
  CHECK(result.said.served.at(4).tokens.size() == static_cast<std::size_t>(setup.max_tokens) - 1);
}

TEST_CASE("scheduler: with one slot requests are served one after the other, in order", "[llama3]")
{
  fake_setup setup;
  setup.num_slots = 1;
  fake_runner runs{setup};
  auto const requests  = some_requests(/*seed=*/3, 10, 80);
  outcome const result = serve(runs, requests);
  check_answers(result, requests, setup.max_tokens);
  std::vector<std::uint64_t> order(10);
  std::iota(order.begin(), order.end(), 0u);
  CHECK(result.said.order == order);
  CHECK(result.peak == 1);
}

TEST_CASE("scheduler: prompts are read in groups within the runner's limits", "[llama3]")
{
  fake_setup setup;
  setup.num_slots   = 16;
  setup.max_prompts = 3;
  fake_runner runs{setup};
  std::vector<generation_request> requests;
  for (std::uint64_t id = 0; id < 6; ++id) { requests.push_back(make_request(id, 10, 5)); }
  for (std::uint64_t id = 6; id < 8; ++id) { requests.push_back(make_request(id, 60, 5)); }
  outcome const result = serve(runs, requests, {});
  check_answers(result, requests, setup.max_tokens, {});
  CHECK(runs.groups() == std::vector<int>{3, 3, 1, 1});  // 60 + 60 tokens are more than 100
}

TEST_CASE("scheduler: a sequence alone that gets no page ends with what it has", "[llama3]")
{
  fake_setup setup;
  setup.num_pages = 4;
  fake_runner runs{setup};
  std::vector<generation_request> const requests{make_request(0, 10, 50), make_request(1, 10, 6)};
  outcome const result        = serve(runs, requests, {});
  served_request const& first = result.said.served.at(0);
  CHECK(first.reason == request_end::no_memory);
  // What it holds fills the pages; the token chosen last is not among it.
  CHECK(first.tokens.size() == 4u * static_cast<unsigned>(setup.tokens_per_page) - 10 + 1);
  std::vector<token_id> expected = alone(requests[0], setup.max_tokens, {}).tokens;
  expected.resize(first.tokens.size());
  CHECK(first.tokens == expected);
  CHECK(result.said.served.at(1).reason == request_end::length);
  CHECK(result.said.served.at(1).tokens == alone(requests[1], setup.max_tokens, {}).tokens);
}

TEST_CASE("scheduler: nobody is preempted who could not be read again", "[llama3]")
{
  // Held, a sequence takes a quarter of the pages that reading it takes: two do not fit at their
  // ends, when an empty pool would not do to read one of them.
  fake_setup setup;
  setup.max_tokens = setup.max_prompt_tokens = 300;
  setup.num_pages                            = 18;
  setup.keep_one_of                          = 4;
  std::vector<generation_request> const requests{make_request(0, 4, 296), make_request(1, 4, 296)};
  fake_runner runs{setup};
  outcome const result = serve(runs, requests, {});
  CHECK(result.peak == 2);
  CHECK(result.preemptions == 0);
  std::vector<token_id> expected = alone(requests[0], setup.max_tokens, {}).tokens;
  CHECK(result.said.served.at(0).tokens == expected);
  CHECK(result.said.served.at(0).reason == request_end::length);
  served_request const& younger = result.said.served.at(1);
  expected                      = alone(requests[1], setup.max_tokens, {}).tokens;
  CHECK(younger.reason == request_end::no_memory);
  REQUIRE(younger.tokens.size() > 200);
  expected.resize(younger.tokens.size());
  CHECK(younger.tokens == expected);
}

TEST_CASE("scheduler: requests come while others run, from callbacks too", "[llama3]")
{
  fake_setup setup;
  setup.num_slots = 3;
  setup.num_pages = 40;
  fake_runner runs{setup};
  auto const requests = some_requests(/*seed=*/5, 30, 90);
  outcome result;
  std::size_t next    = 0;
  scheduler* there    = nullptr;
  auto callbacks      = result.said.callbacks();
  auto const finish   = callbacks.on_finish;
  callbacks.on_finish = [&](served_request const& r) {
    finish(r);
    if (next < requests.size()) { there->submit(requests[next++]); }
  };
  scheduler batch{runs, {stop_id}, callbacks};
  there = &batch;
  CHECK_FALSE(batch.advance());
  for (int round = 0; batch.advance() || next < requests.size(); ++round) {
    if (round % 5 == 0 && next < requests.size()) { batch.submit(requests[next++]); }
    REQUIRE(round < 100'000);
  }
  CHECK(result.said.served.size() == requests.size());
  check_answers(result, requests, setup.max_tokens);
}

TEST_CASE("scheduler: what cannot work is refused by name", "[llama3]")
{
  fake_setup setup;
  setup.num_pages         = 9;
  setup.max_prompt_tokens = 80;
  fake_runner runs{setup};
  scheduler batch{runs, {}, {}};
  CHECK_THAT(message_of(batch, make_request(3, 0, 5)), contains("request 3: the prompt is empty"));
  CHECK_THAT(message_of(batch, make_request(0, 4, -1)), contains("0 or more, not -1"));
  CHECK_THAT(message_of(batch, make_request(0, 100, 0)),
             contains("has 100 tokens, a sequence at most 100"));
  CHECK_THAT(message_of(batch, make_request(0, 90, 0)),
             contains("one prompt of 90 tokens, which may have 80"));
  CHECK_THAT(message_of(batch, make_request(0, 60, 30)), contains("one prompt of 89 tokens"));
  CHECK_THAT(message_of(batch, make_request(0, 73, 5)), contains("needs 10 pages, the pool has 9"));
  CHECK(message_of(batch, make_request(0, 72, 9)).empty());
  CHECK(batch.num_waiting() == 1);
}

TEST_CASE("scheduler: a runner that refuses at random loses nobody", "[llama3]")
{
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random{seed};
    fake_setup setup;
    setup.num_slots       = 1 + static_cast<int>(random() % 9);
    setup.num_pages       = 13 + random() % 60;
    setup.keep_one_of     = 1 + static_cast<int>(random() % 4);
    setup.max_prompts     = 1 + static_cast<int>(random() % 4);
    setup.max_steps_ahead = 1 + static_cast<int>(random() % 3);
    setup.refuse_one_of   = seed % 2 == 0 ? 0 : 2 + static_cast<int>(random() % 20);
    setup.seed            = seed;
    fake_runner runs{setup};
    auto const requests  = some_requests(seed, 30, 100);
    outcome const result = serve(runs, requests);
    for (auto const& r : requests) {
      CAPTURE(r.id);
      served_request const expected = alone(r, setup.max_tokens, {stop_id});
      served_request const& got     = result.said.served.at(r.id);
      if (got.reason != request_end::no_memory) {
        CHECK(got.tokens == expected.tokens);
        CHECK(got.reason == expected.reason);
      } else {
        REQUIRE(got.tokens.size() <= expected.tokens.size());
        CHECK(std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin()));
      }
    }
  }
}
