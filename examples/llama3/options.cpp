// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <unistd.h>  // isatty

#include <cstdint>  // int64_t
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

namespace llama3 {

namespace {

std::string read_all(std::istream& in)
{
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

//! CLI11's NonNegativeNumber would print the largest double to its last digit. A type with a sign:
//! CLI11 reads -1 into one without as a large number.
template <class Number>
CLI::Range zero_or_more()
{
  return {Number{0}, std::numeric_limits<Number>::max()};
}

//! Text as the options were given, before it means anything.
struct written {
  std::string prompt, prompt_file, high{"k8v4"}, low{"k4v2"}, policy{"relative"};
  std::string conditioning{"centred+rotated"}, device{"auto"}, report{"text"}, calibrate, requests;
  float clip{0.0f};
  bool by_position{false};
};

void add_options(CLI::App& app, program_options& o, written& text)
{
  app.option_defaults()->always_capture_default();
  app.footer(
    "The settings of the DiffKV paper:\n"
    "  --conditioning none --policy paper --threshold-high 1 --threshold-low 0.02 --score-every 1");
  app.failure_message(
    [](CLI::App const*, CLI::Error const& error) { return error.what() + std::string{"\n"}; });

  auto option = [&](char const* name, auto& value, char const* help) {
    return app.add_option(name, value, help);
  };
  char const* group = "Model and prompt";
  option("--model", o.model, "folder with config.json, *.safetensors and tokenizer.json")
    ->required()
    ->check(CLI::ExistingDirectory)
    ->group(group);
  auto* prompt = option("--prompt", text.prompt,
                        "the prompt; without it and --prompt-file, "
                        "standard input is read")
                   ->group(group);
  prompt->default_str("");
  auto* prompt_file = option("--prompt-file", text.prompt_file, "file with the prompt")
                        ->excludes(prompt)
                        ->check(CLI::ExistingFile)
                        ->group(group);
  app.add_flag("--raw", o.raw, "no chat template: continue the text")->group(group);
  option("--skip", o.skip, "with --raw: leave out so many tokens of the input")
    ->check(zero_or_more<int>())
    ->group(group);
  option("--prompt-tokens", o.take, "with --raw: read so many tokens as the prompt; 0: all")
    ->check(zero_or_more<int>())
    ->group(group);
  option("--context", o.context, "prompt and new tokens at most; 0: what the model allows")
    ->check(zero_or_more<int>())
    ->group(group);

  group = "Cache";
  option("--high", text.high, "format of important tokens: kXvY, X key bits and Y value bits")
    ->group(group);
  option("--low", text.low, "format of less important tokens: kXvY, or none")->group(group);
  option("--policy", text.policy, "what importance decides: paper, artifact, relative or static")
    ->group(group);
  option("--threshold-high", o.cache.limits.high, "tokens above it are high")->group(group);
  option("--threshold-low", o.cache.limits.low, "tokens below it are pruned")->group(group);
  option("--budget", o.cache.budget, "policy static: tokens per row besides the window")
    ->check(zero_or_more<int>())
    ->group(group);
  option("--window", o.cache.window, "so many most recent tokens are always high; at least 1")
    ->check(CLI::Range(1, 1 << 24))
    ->group(group);
  option("--score-every", o.cache.score_every,
         "steps from one score update to the next: 1, 2 or 4; 0: none after the prompt")
    ->check(CLI::IsMember({0, 1, 2, 4}))
    ->group(group);
  app
    .add_flag("--catch-up-by-position", text.by_position,
              "when a sequence's scores are updated does not depend on the rest of the batch")
    ->group(group);
  option("--conditioning", text.conditioning, "none, centred, rotated or centred+rotated")
    ->group(group);
  option("--clip", text.clip, "range of 2-bit and 1-bit codes, above 0 to 1; 0: the codec's own")
    ->group(group);
  option("--calibrate", text.calibrate, "text that the key offsets of centred come from")
    ->check(CLI::ExistingFile)
    ->group(group);

  group = "Answer";
  option("--max-tokens", o.max_tokens, "new tokens at most")
    ->check(zero_or_more<int>())
    ->group(group);
  option("--temperature", o.sampling.temperature, "0: always the most likely token")->group(group);
  option("--top-p", o.sampling.top_p, "choose from the most likely tokens that reach this share")
    ->group(group);
  option("--seed", o.sampling.seed, "of the random choice; 0 or more")
    ->check(zero_or_more<std::int64_t>())
    ->group(group);

  group = "Many prompts at the same time, on a GPU";
  auto* requests =
    option("--requests", text.requests, "file with a prompt on each line; all are answered")
      ->excludes(prompt)
      ->excludes(prompt_file)
      ->check(CLI::ExistingFile)
      ->group(group);
  option("--batch", o.batch, "sequences at the same time")
    ->needs(requests)
    ->check(CLI::Range(1, 1024))
    ->group(group);
  option("--kv-bytes", o.kv_bytes,
         "memory for all keys and values; 0: enough for a whole batch of the longest")
    ->needs(requests)
    ->check(zero_or_more<std::int64_t>())
    ->group(group);

  group = "Run and report";
  option("--device", text.device,
         "where the model runs: cuda, cpu, or auto: cuda if there is a GPU to run on")
    ->check(CLI::IsMember({"auto", "cuda", "cpu"}))
    ->group(group);
  option("--threads", o.threads, "on the CPU: threads for matrices and cache")
    ->check(CLI::Range(1, 1024))
    ->group(group);
  option("--compare", o.compare,
         "instead of an answer: force so many tokens through a 16-bit cache and the chosen one, "
         "and report how far the distributions are apart")
    ->check(zero_or_more<int>())
    ->group(group);
  option("--report", text.report, "text or json; json is the last line of standard output")
    ->check(CLI::IsMember({"text", "json"}))
    ->group(group);
}

//! `parse(text)`, with the option's name before what it objects to.
template <class Parse>
auto parsed(char const* option, std::string const& text, Parse parse)
{
  try {
    return parse(text);
  } catch (std::exception const& error) {
    throw std::invalid_argument(fmt::format("{}: {}", option, error.what()));
  }
}

//! @pre text is auto, cuda or cpu
device_kind device_of(std::string const& text)
{
  if (text == "cuda") { return device_kind::cuda; }
  return text == "cpu" ? device_kind::cpu : device_kind::automatic;
}

//! Gives the written options their meaning.
//! @throws std::invalid_argument naming option and legal values
void interpret(CLI::App const& app, written const& text, program_options& o)
{
  auto const format_of = [](std::string const& name) { return diffkv::parse_format(name); };
  o.cache.high         = parsed("--high", text.high, format_of);
  o.cache.low.reset();
  if (text.low != "none") { o.cache.low = parsed("--low", text.low, format_of); }
  o.cache.policy       = parsed("--policy", text.policy, diffkv::parse_policy);
  o.cache.conditioning = parsed("--conditioning", text.conditioning, diffkv::parse_conditioning);
  if (text.by_position) { o.cache.schedule = diffkv::catch_up_schedule::by_position; }
  o.device = device_of(text.device);
  o.form   = text.report == "json" ? report_form::json : report_form::text;
  if (app.count("--clip") != 0 && text.clip != 0.0f) {
    if (!(text.clip > 0.0f && text.clip <= 1.0f)) {
      throw std::invalid_argument(fmt::format(
        "--clip {}: must be above 0 and at most 1, or 0 for the codec's own", text.clip));
    }
    o.cache.clip = text.clip;
  }
  if (!text.calibrate.empty()) { o.calibration_text = text.calibrate; }
  if (!o.raw && (o.skip != 0 || o.take != 0)) {
    throw std::invalid_argument(
      "--skip and --prompt-tokens cut the input by tokens: they need --raw");
  }
  if (!text.requests.empty()) {
    if (o.skip != 0 || o.take != 0 || o.compare != 0) {
      throw std::invalid_argument(
        "--requests: --skip, --prompt-tokens and --compare are about one prompt");
    }
    if (o.device == device_kind::cpu) {
      throw std::invalid_argument("--requests: many sequences at the same time need --device cuda");
    }
  }
  auto const& limits = o.cache.limits;
  if (!(limits.low >= 0.0f && limits.high >= limits.low)) {
    throw std::invalid_argument(
      fmt::format("--threshold-high {} and --threshold-low {}: the high one must not be below the "
                  "low one, and both must be 0 or more",
                  limits.high, limits.low));
  }
  parsed("--temperature, --top-p", "", [&](std::string const&) { return sampler{o.sampling}; });
}

//! Lines that are not empty.
std::vector<std::string> read_lines(std::string const& name)
{
  std::ifstream file{name, std::ios::binary};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') { line.pop_back(); }
    if (!line.empty()) { lines.push_back(line); }
  }
  if (!file.is_open() || file.bad()) {
    throw std::invalid_argument(fmt::format("--requests {}: cannot be read", name));
  }
  if (lines.empty()) {
    throw std::invalid_argument(fmt::format("--requests {}: there is no prompt in it", name));
  }
  return lines;
}

void read_prompt(CLI::App const& app, written const& text, program_options& o)
{
  if (!text.requests.empty()) {
    o.requests = read_lines(text.requests);
    return;
  }
  if (app.count("--prompt") != 0) {
    o.prompt = text.prompt;
    return;
  }
  if (text.prompt_file.empty()) {
    if (::isatty(STDIN_FILENO) == 1) {
      fmt::print(stderr, "the prompt, please; end it with Ctrl-D on a line of its own\n");
    }
    o.prompt = read_all(std::cin);
    return;
  }
  std::ifstream file{text.prompt_file, std::ios::binary};
  o.prompt = read_all(file);
  if (!file.is_open() || file.bad()) {
    throw std::invalid_argument(fmt::format("--prompt-file {}: cannot be read", text.prompt_file));
  }
}

}  // namespace

std::optional<program_options> parse_options(int argc, char** argv, int& exit_code)
{
  program_options options;
  written text;
  CLI::App app{"A Llama3 decode loop whose keys and values live in diffkv pages"};
  add_options(app, options, text);
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    exit_code = app.exit(error);
    return std::nullopt;
  }
  try {
    interpret(app, text, options);
    read_prompt(app, text, options);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    exit_code = 2;
    return std::nullopt;
  }
  return options;
}

}  // namespace llama3
