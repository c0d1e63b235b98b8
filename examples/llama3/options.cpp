// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace llama3 {

namespace {

std::string read_all(std::istream& in)
{
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

//! Text as the options were given, before it means anything.
struct written {
  std::string prompt, prompt_file, high{"k8v4"}, low{"k4v2"}, policy{"relative"};
  std::string conditioning{"centred+rotated"}, report{"text"}, calibrate;
  float clip{0.0f};
};

void add_options(CLI::App& app, program_options& o, written& text)
{
  app.option_defaults()->always_capture_default();
  app.footer(
    "The paper's own settings: --policy paper --conditioning none --threshold-high 1 "
    "--threshold-low 0.02 --score-every 1");
  app.add_option("--model", o.model, "folder with config.json, safetensors and tokenizer.json")
    ->required()
    ->check(CLI::ExistingDirectory);
  auto* prompt = app.add_option("--prompt", text.prompt, "the prompt; else standard input");
  app.add_option("--prompt-file", text.prompt_file, "file with the prompt")->excludes(prompt);
  app.add_flag("--raw", o.raw, "no chat template: continue the text");
  app.add_option("--skip", o.skip, "with --raw: tokens of the input to leave out first")
    ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt-tokens", o.take, "with --raw: tokens of the input to read; 0: all")
    ->check(CLI::NonNegativeNumber);
  app.add_option("--max-tokens", o.max_tokens, "new tokens at most")->check(CLI::NonNegativeNumber);
  app.add_option("--context", o.context, "prompt and new tokens at most; 0: what the model allows")
    ->check(CLI::NonNegativeNumber);

  app.add_option("--high", text.high, "format of important tokens, kXvY");
  app.add_option("--low", text.low, "format of less important tokens, kXvY or none");
  app.add_option("--threshold-high", o.cache.limits.high, "a_h: high above");
  app.add_option("--threshold-low", o.cache.limits.low, "a_l: pruned below");
  app.add_option("--window", o.cache.window, "most recent tokens, always high");
  app.add_option("--policy", text.policy, "paper, artifact, relative or static");
  app.add_option("--budget", o.cache.budget, "static policy: tokens per row besides the window")
    ->check(CLI::NonNegativeNumber);
  app.add_option("--conditioning", text.conditioning, "none, centred, rotated or centred+rotated");
  app.add_option("--clip", text.clip, "range clip of 2-bit and 1-bit codes, above 0 to 1");
  app.add_option("--score-every", o.cache.score_every,
                 "steps between score updates: 1, 2, 4; 0: no scores after the prompt");
  app.add_option("--calibrate", text.calibrate, "text that the key offsets come from")
    ->check(CLI::ExistingFile);

  app.add_option("--temperature", o.sampling.temperature, "0: greedy");
  app.add_option("--top-p", o.sampling.top_p, "share of the probability to choose from");
  app.add_option("--seed", o.sampling.seed, "of the sampler");
  app.add_option("--threads", o.threads, "")->check(CLI::Range(1, 1024));
  app
    .add_option("--compare", o.compare,
                "force so many tokens through a 16-bit and the chosen cache and compare them")
    ->check(CLI::NonNegativeNumber);
  app.add_option("--report", text.report, "text or json (the last line of standard output)")
    ->check(CLI::IsMember({"text", "json"}));
}

//! Gives the written options their meaning.
//! @throws diffkv::invalid_argument, std::invalid_argument naming option and legal values
void interpret(CLI::App const& app, written const& text, program_options& o)
{
  o.cache.high = diffkv::parse_format(text.high);
  o.cache.low  = text.low == "none" ? std::nullopt : std::optional{diffkv::parse_format(text.low)};
  o.cache.policy       = diffkv::parse_policy(text.policy);
  o.cache.conditioning = diffkv::parse_conditioning(text.conditioning);
  o.form               = text.report == "json" ? report_form::json : report_form::text;
  if (app.count("--clip") != 0) {
    if (!(text.clip > 0.0f && text.clip <= 1.0f)) {
      throw std::invalid_argument(
        fmt::format("--clip {}: must be above 0 and at most 1", text.clip));
    }
    o.cache.clip = text.clip;
  }
  if (!text.calibrate.empty()) { o.calibration_text = text.calibrate; }
  if (!o.raw && (o.skip != 0 || o.take != 0)) {
    throw std::invalid_argument(
      "--skip and --prompt-tokens cut the input by tokens: they need --raw");
  }
  diffkv::validate(o.cache.limits);
  static_cast<void>(sampler{o.sampling});  // checks temperature and top-p
}

void read_prompt(CLI::App const& app, written const& text, program_options& o)
{
  if (app.count("--prompt") != 0) {
    o.prompt = text.prompt;
    return;
  }
  if (text.prompt_file.empty()) {
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
