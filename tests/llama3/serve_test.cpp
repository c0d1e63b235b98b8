// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! From lines of text to answers and a report, over a runner without a model.
#include "llama3/serve.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "fake_runner.hpp"
#include "support/catch.hpp"
#include "tiny_tokenizer.hpp"

namespace {
using namespace llama3;
using diffkv::test::contains;

tokenizer bytes() { return parse_tokenizer(test::byte_tokenizer().dump()); }

program_options options_for(std::vector<std::string> const& prompts, int max_tokens)
{
  program_options options;
  options.raw        = true;
  options.requests   = prompts;
  options.max_tokens = max_tokens;
  return options;
}
}  // namespace

TEST_CASE("serve: prompts become requests, numbered from 1", "[llama3]")
{
  program_options options      = options_for({"one", "three"}, 20);
  options.sampling.temperature = 0.5;
  options.sampling.top_p       = 0.25;
  options.sampling.seed        = 9;
  auto const requests          = make_requests(options, bytes(), 100);
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].id == 1);
  CHECK(requests[1].id == 2);
  CHECK(requests[0].prompt == std::vector<token_id>{'o', 'n', 'e'});
  CHECK(requests[1].max_tokens == 20);
  CHECK(requests[1].how.temperature == 0.5f);
  CHECK(requests[1].how.top_p == 0.25f);
  CHECK(requests[0].how.seed == 9);
  CHECK(requests[1].how.seed == 10);
  CHECK(longest_sequence(requests, 100) == 25);
  CHECK(longest_sequence(requests, 21) == 21);
  // Even if no token is asked for, a runner needs room for one.
  CHECK(longest_sequence(make_requests(options_for({"one"}, 0), bytes(), 100), 100) == 4);
}

TEST_CASE("serve: a prompt that leaves no room is named", "[llama3]")
{
  auto const refused = [](std::vector<std::string> const& prompts, int context) {
    try {
      static_cast<void>(make_requests(options_for(prompts, 5), bytes(), context));
    } catch (std::invalid_argument const& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  CHECK_THAT(refused({"abc", "abcd"}, 4), contains("prompt 2: its 4 tokens") && contains("of 4"));
  CHECK(refused({"abc", "abcd"}, 5).empty());
}

TEST_CASE("serve: every prompt is answered, and the report counts", "[llama3]")
{
  tokenizer const words = bytes();
  std::vector<std::string> prompts;
  for (int i = 0; i < 20; ++i) { prompts.push_back("prompt number " + std::to_string(i)); }
  auto const requests = make_requests(options_for(prompts, 150), words, 300);
  test::fake_setup setup;
  setup.num_slots  = 20;
  setup.max_tokens = setup.max_prompt_tokens = longest_sequence(requests, 300);
  setup.num_pages                            = 10 * test::fake_pages(setup.max_tokens, 8);
  test::fake_runner runs{setup};
  std::map<std::uint64_t, request_answer> answers;
  int preemptions = 0, new_tokens = 0;
  serving_report const report = serve(runs, words, {}, requests, [&](request_answer const& answer) {
    CHECK(answers.emplace(answer.id, answer).second);
    preemptions += answer.preemptions;
    new_tokens += answer.new_tokens;
  });
  REQUIRE(answers.size() == 20);
  for (auto const& r : requests) {
    std::vector<token_id> ids = r.prompt;
    std::string text;
    while (text.size() < 150) {
      ids.push_back(test::fake_token(ids, r.how));  // below 97: one byte each
      text.push_back(static_cast<char>(ids.back()));
    }
    CHECK(answers.at(r.id).text == text);
  }
  CHECK(report.requests == 20);
  CHECK(report.new_tokens == 20 * 150);
  CHECK(new_tokens == report.new_tokens);
  CHECK(report.prompt_tokens == 10 * 15 + 10 * 16);
  CHECK(report.preemptions > 0);
  CHECK(static_cast<int>(report.preemptions) == preemptions);
  CHECK(report.peak_batch > 10);
  CHECK(report.steps == runs.steps());
  CHECK(report.slots == 20);
  CHECK(report.pages == setup.num_pages);
  CHECK(report.no_memory == 0);
}

TEST_CASE("serve: answers and report are written for people and for scripts", "[llama3]")
{
  request_answer const answer{3, "a \"text\"\nof two lines", request_end::stop, 7, 2};
  CHECK(as_text(answer) == "[3] 7 tokens, stop, preempted 2 times\na \"text\"\nof two lines\n");
  std::string const line = as_json(answer);
  CHECK(line.find('\n') == std::string::npos);
  auto const json = nlohmann::json::parse(line);
  CHECK(json["index"] == 3);
  CHECK(json["text"] == answer.text);
  CHECK(json["finish"] == "stop");
  CHECK(json["new_tokens"] == 7);
  CHECK(json["preemptions"] == 2);

  serving_report report;
  report.device      = "cuda";
  report.formats     = "k8v4 + k4v2";
  report.requests    = 12;
  report.new_tokens  = 300;
  report.seconds     = 1.5;
  report.peak_batch  = 8;
  report.preemptions = 4;
  CHECK_THAT(as_text(report), contains("12 requests") && contains("200.0 tokens/s") &&
                                contains("k8v4 + k4v2") && contains("preemptions      4;"));
  auto const numbers = nlohmann::json::parse(as_json(report));
  CHECK(numbers["tokens_per_second"] == 200.0);
  CHECK(numbers["peak_batch"] == 8);
  CHECK(numbers["preemptions"] == 4);
  CHECK(numbers["requests"] == 12);
  CHECK(serving_report{}.tokens_per_second() == 0.0);
}
