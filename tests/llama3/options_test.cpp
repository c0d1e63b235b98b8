// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/options.hpp"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama3/progress.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

namespace {
using namespace llama3;
using diffkv::test::contains;

//! Another buffer for a stream, for as long as this lives.
class redirected {
 public:
  redirected(std::ios& stream, std::streambuf* to) : stream_{stream}, old_{stream.rdbuf(to)} {}
  redirected(redirected const&)            = delete;
  redirected& operator=(redirected const&) = delete;
  ~redirected() { stream_.rdbuf(old_); }

 private:
  std::ios& stream_;
  std::streambuf* old_;
};

struct parsed_line {
  std::optional<program_options> options;
  int exit_code{0};
  bool input_was_read{false};
  std::string said;
};

//! The command line `arguments` with `input` on standard input.
parsed_line parse(std::vector<std::string> arguments, std::string const& input = "from stdin")
{
  arguments.insert(arguments.begin(), "diffkv_llama3");
  std::vector<char*> argv;
  for (auto& argument : arguments) { argv.push_back(argument.data()); }
  std::istringstream in{input};
  std::ostringstream out;
  redirected const cin{std::cin, in.rdbuf()}, cout{std::cout, out.rdbuf()};
  redirected const cerr{std::cerr, out.rdbuf()};
  parsed_line result;
  result.options = parse_options(static_cast<int>(argv.size()), argv.data(), result.exit_code);
  result.input_was_read = in.tellg() != 0;
  result.said           = out.str();
  return result;
}

//! The same with a model folder that exists and a prompt.
parsed_line parse_with_model(std::vector<std::string> const& arguments)
{
  test::temporary_folder const folder;
  std::vector<std::string> all{"--model", folder.path().string(), "--prompt", "Hello"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return parse(all);
}
}  // namespace

TEST_CASE("options: defaults are those that the project promises", "[llama3]")
{
  test::temporary_folder const folder;
  auto const line = parse({"--model", folder.path().string()});
  REQUIRE(line.options);
  auto const& o = *line.options;
  CHECK(o.model == folder.path());
  CHECK(o.prompt == "from stdin");
  CHECK_FALSE(o.raw);
  CHECK(o.skip == 0);
  CHECK(o.take == 0);
  CHECK(o.context == 0);
  CHECK(o.compare == 0);
  CHECK(o.form == report_form::text);
  CHECK(diffkv::name(o.cache.high) == "k8v4");
  REQUIRE(o.cache.low);
  CHECK(diffkv::name(*o.cache.low) == "k4v2");
  CHECK(o.cache.policy == diffkv::policy_kind::relative);
  CHECK(o.cache.limits.high == 2.0f);
  CHECK(o.cache.limits.low == 0.0f);
  CHECK(o.cache.window == 64);
  CHECK(o.cache.score_every == 4);
  CHECK(o.cache.schedule == diffkv::catch_up_schedule::by_batch);
  CHECK(o.cache.conditioning == (diffkv::conditioning::centred | diffkv::conditioning::rotated));
  CHECK_FALSE(o.cache.clip);
  CHECK(o.sampling.temperature == 0.0);
  CHECK(o.sampling.top_p == 1.0);
  CHECK_FALSE(o.calibration_text);
  CHECK(o.device == device_kind::automatic);
  CHECK(o.threads >= 1);
  CHECK(o.requests.empty());
  CHECK(o.batch == 32);
  CHECK(o.kv_bytes == 0);
}

TEST_CASE("options: every option is spelled as promised and arrives", "[llama3]")
{
  test::temporary_folder const folder;
  auto const text = folder.path() / "text.txt";
  std::ofstream{text} << "A prompt\nof two lines.";
  auto const line = parse({"--model",
                           folder.path().string(),
                           "--prompt-file",
                           text.string(),
                           "--raw",
                           "--skip",
                           "5",
                           "--prompt-tokens",
                           "7",
                           "--max-tokens",
                           "9",
                           "--context",
                           "500",
                           "--high",
                           "k8v8",
                           "--low",
                           "none",
                           "--threshold-high",
                           "4",
                           "--threshold-low",
                           "0.5",
                           "--window",
                           "32",
                           "--policy",
                           "static",
                           "--budget",
                           "100",
                           "--conditioning",
                           "centred",
                           "--clip",
                           "0.7",
                           "--score-every",
                           "2",
                           "--catch-up-by-position",
                           "--temperature",
                           "0.8",
                           "--top-p",
                           "0.9",
                           "--seed",
                           "12345678901",
                           "--threads",
                           "3",
                           "--report",
                           "json",
                           "--compare",
                           "11",
                           "--calibrate",
                           text.string()});
  REQUIRE(line.options);
  auto const& o = *line.options;
  CHECK(o.prompt == "A prompt\nof two lines.");
  CHECK(o.raw);
  CHECK(o.skip == 5);
  CHECK(o.take == 7);
  CHECK(o.max_tokens == 9);
  CHECK(o.context == 500);
  CHECK(diffkv::name(o.cache.high) == "k8v8");
  CHECK_FALSE(o.cache.low);
  CHECK(o.cache.limits.high == 4.0f);
  CHECK(o.cache.limits.low == 0.5f);
  CHECK(o.cache.window == 32);
  CHECK(o.cache.policy == diffkv::policy_kind::static_budget);
  CHECK(o.cache.budget == 100);
  CHECK(o.cache.conditioning == diffkv::conditioning::centred);
  CHECK(o.cache.clip == 0.7f);
  CHECK(o.cache.score_every == 2);
  CHECK(o.cache.schedule == diffkv::catch_up_schedule::by_position);
  CHECK(o.sampling.temperature == 0.8);
  CHECK(o.sampling.top_p == 0.9);
  CHECK(o.sampling.seed == 12345678901u);
  CHECK(o.threads == 3);
  CHECK(o.form == report_form::json);
  CHECK(o.compare == 11);
  REQUIRE(o.calibration_text);
  CHECK(*o.calibration_text == text);
  CHECK_FALSE(line.input_was_read);
}

TEST_CASE("options: requests are the lines of a file that are not empty", "[llama3]")
{
  test::temporary_folder const folder;
  auto const file = folder.path() / "requests.txt";
  std::ofstream{file, std::ios::binary} << "first\n\nsecond one\r\n\r\nlast";
  std::vector<std::string> const common{"--model", folder.path().string(), "--requests",
                                        file.string()};
  auto const with = [&](std::vector<std::string> const& more) {
    std::vector<std::string> all = common;
    all.insert(all.end(), more.begin(), more.end());
    return parse(all);
  };
  auto const line = with({"--batch", "5", "--kv-bytes", "5000000000", "--raw"});
  REQUIRE(line.options);
  CHECK(line.options->requests == std::vector<std::string>{"first", "second one", "last"});
  CHECK(line.options->batch == 5);
  CHECK(line.options->kv_bytes == 5'000'000'000);
  CHECK_FALSE(line.input_was_read);
  for (std::vector<std::string> const& more :
       std::vector<std::vector<std::string>>{{"--prompt", "x"},
                                             {"--prompt-file", file.string()},
                                             {"--compare", "5"},
                                             {"--raw", "--skip", "1"},
                                             {"--device", "cpu"},
                                             {"--batch", "0"},
                                             {"--kv-bytes", "-1"}}) {
    CAPTURE(more);
    CHECK_FALSE(with(more).options);
  }
  CHECK_FALSE(parse_with_model({"--batch", "4"}).options);  // about requests
  std::ofstream{file, std::ios::binary} << "\n\n";
  CHECK(with({}).exit_code == 2);
}

TEST_CASE("options: each policy and conditioning has its name", "[llama3]")
{
  for (char const* name : {"paper", "artifact", "relative", "static"}) {
    CAPTURE(name);
    auto const line = parse_with_model({"--policy", name});
    REQUIRE(line.options);
    CHECK(line.options->cache.policy == diffkv::parse_policy(name));
  }
  using diffkv::conditioning;
  std::pair<char const*, conditioning> const sets[] = {
    {"none", conditioning::none},
    {"centred", conditioning::centred},
    {"rotated", conditioning::rotated},
    {"centred+rotated", conditioning::centred | conditioning::rotated}};
  for (auto const& [name, set] : sets) {
    CAPTURE(name);
    auto const line = parse_with_model({"--conditioning", name});
    REQUIRE(line.options);
    CHECK(line.options->cache.conditioning == set);
  }
}

TEST_CASE("options: each device has its name", "[llama3]")
{
  std::pair<char const*, device_kind> const devices[] = {
    {"auto", device_kind::automatic}, {"cuda", device_kind::cuda}, {"cpu", device_kind::cpu}};
  for (auto const& [name, device] : devices) {
    CAPTURE(name);
    auto const line = parse_with_model({"--device", name});
    REQUIRE(line.options);
    CHECK(line.options->device == device);
  }
}

TEST_CASE("options: the paper's own settings are one command line", "[llama3]")
{
  auto const line =
    parse_with_model({"--conditioning", "none", "--policy", "paper", "--threshold-high", "1",
                      "--threshold-low", "0.02", "--score-every", "1"});
  REQUIRE(line.options);
  auto const& cache = line.options->cache;
  CHECK(cache.conditioning == diffkv::conditioning::none);
  CHECK(cache.policy == diffkv::policy_kind::paper);
  CHECK(cache.limits.high == 1.0f);
  CHECK(cache.limits.low == 0.02f);
  CHECK(cache.score_every == 1);
  CHECK(cache.window == 64);
}

TEST_CASE("options: bad values are refused before the prompt is read", "[llama3]")
{
  test::temporary_folder const folder;
  std::vector<std::vector<std::string>> const bad = {
    {"--high", "k8"},
    {"--high", "none"},
    {"--low", "k4v3"},
    {"--policy", "h2o"},
    {"--conditioning", "centered"},
    {"--window", "0"},
    {"--window", "-1"},
    {"--threshold-high", "1", "--threshold-low", "2"},
    {"--threshold-low", "-0.5"},
    {"--threshold-high", "nan"},
    {"--budget", "-1"},
    {"--clip", "1.5"},
    {"--clip", "-0.5"},
    {"--score-every", "3"},
    {"--temperature", "-1"},
    {"--temperature", "nan"},
    {"--top-p", "0"},
    {"--top-p", "1.5"},
    {"--seed", "-1"},
    {"--device", "gpu"},
    {"--device", ""},
    {"--threads", "0"},
    {"--max-tokens", "-1"},
    {"--max-tokens", "many"},
    {"--context", "-1"},
    {"--compare", "-1"},
    {"--report", "xml"},
    {"--skip", "1"},           // without --raw
    {"--prompt-tokens", "1"},  // without --raw
    {"--raw", "--skip", "-1"},
    {"--calibrate", "/nowhere/text.txt"},
    {"--requests", "/nowhere/text.txt"},
    {"--prompt-file", "/nowhere/text.txt"},
    {"--unknown"},
  };
  for (auto const& arguments : bad) {
    std::vector<std::string> all{"--model", folder.path().string()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    CAPTURE(arguments);
    auto const line = parse(all);
    CHECK_FALSE(line.options);
    CHECK(line.exit_code != 0);
    CHECK_FALSE(line.input_was_read);
    CHECK(line.said.size() < 200);  // one line that a person reads
  }
  CHECK_FALSE(parse({}).options);  // --model is required
  CHECK_FALSE(parse({"--model", "/nowhere"}).options);
  CHECK_FALSE(parse_with_model({"--prompt-file", "x"}).options);  // two prompts
}

TEST_CASE("options: help is no error and names every group", "[llama3]")
{
  auto const line = parse({"--help"});
  CHECK_FALSE(line.options);
  CHECK(line.exit_code == 0);
}

TEST_CASE("options: an empty prompt is a prompt", "[llama3]")
{
  test::temporary_folder const folder;
  for (bool const raw : {false, true}) {
    std::vector<std::string> arguments{"--model", folder.path().string(), "--prompt", ""};
    if (raw) { arguments.push_back("--raw"); }
    auto const line = parse(arguments);
    REQUIRE(line.options);
    CHECK(line.options->prompt.empty());
    CHECK(line.options->raw == raw);
    CHECK_FALSE(line.input_was_read);
  }
}

TEST_CASE("progress: a terminal gets one line, a file one line per tenth", "[llama3]")
{
  CHECK(progress_text("reading", 1, 30, 0, true) == "\rreading: 1/30");
  CHECK(progress_text("reading", 30, 30, 29, true) == "\rreading: 30/30\n");
  for (int const all : {1, 3, 10, 30, 192, 1000}) {
    int lines = 0, shown = 0;
    for (int done = 1; done <= all; ++done) {
      std::string const text = progress_text("reading", done, all, shown, false);
      if (text.empty()) { continue; }
      CHECK(text.back() == '\n');
      CHECK(text.find('\r') == std::string::npos);
      shown = done;
      ++lines;
    }
    CAPTURE(all);
    CHECK(shown == all);
    CHECK(lines == std::min(all, 10));
  }
}
