// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/throughput_options.hpp"

#include <CLI/CLI.hpp>

#include <limits>
#include <map>

namespace llama3 {

std::optional<throughput_options> parse_throughput_options(int argc, char** argv, int& exit_code)
{
  throughput_options o;
  CLI::App app{
    "Speed of the decode loop with random weights of a published shape. The mix of tiers is given, "
    "not from attention: of five tokens two are k8v4, two k4v2, one is pruned."};
  app.option_defaults()->always_capture_default();
  std::map<std::string, throughput_mode> const modes{{"step", throughput_mode::step},
                                                     {"throughput", throughput_mode::throughput},
                                                     {"arrivals", throughput_mode::arrivals}};
  std::map<std::string, measured_caches> const caches{{"both", measured_caches::both},
                                                      {"mix", measured_caches::mix},
                                                      {"k16v16", measured_caches::k16v16}};
  CLI::Range const counts{1, 1 << 20};
  CLI::Range const or_zero{0, 1 << 20};
  app
    .add_option(
      "--mode", o.mode,
      "step: time and parts of a step; throughput: tokens per second at a KV budget; arrivals: "
      "latency of requests that come at rising rates")
    ->transform(CLI::CheckedTransformer(modes));
  app.add_option("--shape", o.shape, "llama3-8b, llama3-70b, qwen2.5-7b, qwen2.5-32b or tiny");
  app.add_option("--layers", o.num_layers, "so many layers only; 0: all")->check(or_zero);
  app.add_option("--cache", o.caches, "both, mix or k16v16")
    ->transform(CLI::CheckedTransformer(caches));
  app.add_option("--prompt", o.prompt_tokens, "tokens of a prompt; 0: 4096 for step, else 512")
    ->check(or_zero);
  app.add_option("--pass-tokens", o.pass_tokens, "of the prompts that are read together")
    ->check(counts);
  app.add_flag("--all-prompts", o.all_prompts,
               "compute every prompt; else the first pass, whose keys and values serve all");
  app.add_option("--batch", o.batch, "step: sequences; arrivals: at most at the same time")
    ->check(CLI::Range(1, 4096));
  app.add_option("--rounds", o.rounds, "step: turns that each case has")->check(counts);
  app
    .add_option("--new", o.new_tokens,
                "throughput, arrivals: new tokens of a sequence; arrivals: on average")
    ->check(CLI::Range(64, 1 << 20));
  app.add_option("--rates", o.rates, "arrivals: requests per second, each in turn")
    ->delimiter(',')
    ->check(CLI::PositiveNumber);
  app.add_option("--requests", o.requests, "arrivals: for each rate")->check(counts);
  app
    .add_option(
      "--kv-bytes", o.kv_bytes,
      "throughput, arrivals: of keys and values; 0: 0.9 of the card less weights and 2 GB")
    ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  app
    .add_option("--card-bytes", o.card_bytes,
                "throughput, arrivals: memory of the card that is supposed")
    ->check(CLI::PositiveNumber);
  app.add_flag("--sampled-steps", o.sampled_steps,
               "throughput: time steps at some lengths and integrate, instead of all of them");
  app.add_option("--samples", o.samples, "throughput: lengths for --sampled-steps")
    ->check(CLI::Range(2, 64));
  app.add_option("--out", o.out, "file for the figures, as Google Benchmark's JSON");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    exit_code = app.exit(error);
    return std::nullopt;
  }
  if (o.prompt_tokens == 0) { o.prompt_tokens = o.mode == throughput_mode::step ? 4096 : 512; }
  return o;
}

}  // namespace llama3
