// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The decode loop: a Llama-family model answers a prompt with its keys and values in diffkv pages.
//! Read before this: llama3/session.hpp, llama3/generate.hpp, llama3/options.hpp. The order of all
//! files is in README.md.
#include "llama3/calibration.hpp"
#include "llama3/chat_template.hpp"
#include "llama3/comparison.hpp"
#include "llama3/cpu_session.hpp"
#include "llama3/generate.hpp"
#include "llama3/options.hpp"
#include "llama3/progress.hpp"
#include "llama3/report.hpp"
#include "llama3/tokenizer.hpp"
#include "llama3/utf8_stream.hpp"
#if LLAMA3_CUDA
#include "llama3/cuda/cuda_device.hpp"
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>  // function
#include <iterator>
#include <memory>  // make_shared, make_unique

namespace {

using namespace llama3;

void say(std::string const& message) { fmt::print(stderr, "{}\n", message); }

//! What the user's text is as tokens: the prompt, and what comes behind it in the input.
struct input_tokens {
  std::vector<token_id> prompt;
  std::vector<token_id> continuation;
};

input_tokens tokens_of(program_options const& options, tokenizer const& words)
{
  if (!options.raw) {
    return {load_chat_template(options.model, words).render(words, options.prompt), {}};
  }
  std::vector<token_id> const all = words.encode(options.prompt);
  auto const skip                 = static_cast<std::size_t>(options.skip);
  if (skip > all.size()) {
    throw std::invalid_argument(
      fmt::format("--skip {}: the input has only {} tokens", skip, all.size()));
  }
  std::size_t const rest = all.size() - skip;
  std::size_t const take =
    options.take == 0 ? rest : std::min(rest, static_cast<std::size_t>(options.take));
  auto const begin = all.begin() + static_cast<std::ptrdiff_t>(skip);
  auto const end   = begin + static_cast<std::ptrdiff_t>(take);
  return {words.with_bos({begin, end}), {end, all.end()}};
}

//! The text that key offsets are calibrated on.
std::vector<token_id> calibration_ids(program_options const& options, model_config const& config,
                                      tokenizer const& words)
{
  std::filesystem::path const file = options.calibration_text.value_or(LLAMA3_CALIBRATION_TEXT);
  std::ifstream in{file, std::ios::binary};
  std::string text{std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
  if (text.empty()) {
    throw file_error(file.string() +
                     ": cannot be read or is empty; name a text with --calibrate FILE, or use "
                     "--conditioning rotated, which needs none");
  }
  std::vector<token_id> ids = words.with_bos(words.encode(text));
  std::size_t const longest = static_cast<std::size_t>(std::min(config.max_positions, 2048));
  ids.resize(std::min(ids.size(), longest));
  return ids;
}

//! Everything that is loaded before a token is read.
struct loaded {
  model_config config;
  tokenizer words;
  input_tokens input;
  std::vector<token_id> calibration;  // empty unless keys are centred
  int context;                        // prompt and new tokens at most
  int max_tokens;                     // of this sequence
};

//! Loads what is small and refuses what cannot work, before any weight is read.
loaded prepare(program_options const& options)
{
  model_config config = load_model_config(options.model);
  tokenizer words     = load_tokenizer(options.model);
  int const context   = options.context == 0 ? config.max_positions : options.context;
  if (context > config.max_positions) {
    throw std::invalid_argument(fmt::format(
      "--context {}: the model was made for {} tokens at most", context, config.max_positions));
  }
  input_tokens input = tokens_of(options, words);
  int const wanted   = options.compare > 0 ? options.compare : options.max_tokens;
  check_prompt(input.prompt.size(), {wanted, context});
  auto const prompt = static_cast<int>(input.prompt.size());
  if (options.compare > 0 && prompt + options.compare > context) {
    throw std::invalid_argument(
      fmt::format("--compare {}: with {} prompt tokens that is more than "
                  "the context of {}",
                  options.compare, prompt, context));
  }
  int const max_tokens = wanted < context - prompt ? prompt + wanted : context;
  check_context(config, max_tokens);
  check_settings(config, options.cache, max_tokens);
  std::vector<token_id> calibration;
  if (has(options.cache.conditioning, diffkv::conditioning::centred)) {
    calibration = calibration_ids(options, config, words);
  }
  return {std::move(config),      std::move(words), std::move(input),
          std::move(calibration), context,          max_tokens};
}

//! Where the model runs, decided; nothing is loaded yet.
//! @throws std::runtime_error if the GPU was asked for and cannot be had, or has no code for the cache
device_kind choose_device(program_options const& options,
                          [[maybe_unused]] model_config const& config)
{
  if (options.device == device_kind::cpu) { return device_kind::cpu; }
  std::string why = "this program was built without its CUDA part";
#if LLAMA3_CUDA
  if (cuda_is_usable(why)) {
    try {
      check_device_settings(config, options.cache);
      if (options.compare > 0) { check_device_settings(config, uncompressed_settings()); }
      return device_kind::cuda;
    } catch (std::invalid_argument const& error) {
      why = error.what();
      if (options.device == device_kind::automatic) { say("running on the CPU: " + why); }
    }
  }
#endif
  if (options.device == device_kind::cuda) { throw std::runtime_error("--device cuda: " + why); }
  return device_kind::cpu;
}

//! A model loaded onto its device. The functions keep it alive, sessions do not.
struct loaded_model {
  std::string device;          // of the report
  offsets_function calibrate;  // over loaded::calibration
  std::function<std::unique_ptr<session>(cache_settings const&, std::vector<float> key_offsets)>
    make_session;
};

loaded_model load_on_cpu(program_options const& options, loaded const& l, checkpoint const& files)
{
  struct parts {
    parts(int num_threads, model_config const& config, checkpoint const& files)
      : threads{num_threads}, of{config, files, threads}
    {}
    thread_pool threads;
    model of;
  };
  auto const shared = std::make_shared<parts>(options.threads, l.config, files);
  return {"cpu",
          [shared, &l] {
            return calibrate(shared->of, l.calibration, shared->threads,
                             progress_on_stderr("calibrating key offsets"));
          },
          [shared, &l](cache_settings const& settings, std::vector<float> offsets) {
            return std::make_unique<cpu_session>(shared->of, settings, l.max_tokens,
                                                 std::move(offsets), shared->threads);
          }};
}

loaded_model load_on_gpu([[maybe_unused]] loaded const& l, [[maybe_unused]] checkpoint const& files)
{
#if LLAMA3_CUDA
  int const longest = std::max(l.max_tokens, static_cast<int>(l.calibration.size()));
  std::shared_ptr<cuda_device> const shared = open_cuda_device(l.config, files, longest);
  return {"cuda", [shared, &l] { return shared->calibrate(l.calibration); },
          [shared, &l](cache_settings const& settings, std::vector<float> offsets) {
            return shared->make_session(settings, l.max_tokens, std::move(offsets));
          }};
#else
  throw std::logic_error("choose_device allows no GPU here");
#endif
}

void run_comparison(program_options const& options, loaded const& l, session& reference,
                    session& compressed, run_report& report)
{
  report.compared = compare(
    reference, compressed, l.input.prompt, l.input.continuation, options.compare,
    {progress_on_stderr("16-bit cache, reading the prompt"),
     progress_on_stderr("compressed cache, reading the prompt"), progress_on_stderr("comparing")});
  report.new_tokens       = options.compare;
  report.finish           = "compare";
  report.prompt_time      = report.compared->prompt_time;
  report.prompt_seconds   = report.prompt_time.total();
  report.generate_time    = report.compared->decode_time;
  report.generate_seconds = report.generate_time.total();
}

void run_generation(program_options const& options, loaded const& l, session& compressed,
                    run_report& report)
{
  sampler_options sampling = options.sampling;
  sampling.num_ids         = l.words.size();
  sampler choose{sampling};
  utf8_stream stream;
  auto const show = [](std::string const& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  std::vector<float> logits;
  auto const read_prompt = [&] {
    logits = compressed.prompt(l.input.prompt, progress_on_stderr("reading the prompt"));
    report.prompt_time    = compressed.times();
    report.prompt_seconds = report.prompt_time.total();
    compressed.clear_times();
  };
  // The prompt first, then one token at a time.
  auto const next = [&](std::vector<token_id> const& tokens) -> logits_view {
    if (logits.empty()) {
      read_prompt();
    } else {
      logits = compressed.decode(tokens.front());
    }
    return logits;
  };
  generation const answer = generate(l.input.prompt, next, choose, l.config.stop_ids,
                                     {options.max_tokens, l.context}, [&](token_id id) {
                                       if (!l.words.is_control(id)) {
                                         show(stream.push(l.words.token_bytes(id)));
                                       }
                                     });
  show(stream.finish() + "\n");
  // No new token was asked for, or the prompt fills the context: the report is about the prompt.
  if (logits.empty()) { read_prompt(); }
  report.new_tokens       = static_cast<int>(answer.tokens.size());
  report.finish           = std::string{name_of(answer.reason)};
  report.generate_time    = compressed.times();
  report.generate_seconds = report.generate_time.total();
}

int run(program_options const& options)
{
  loaded const l           = prepare(options);
  device_kind const device = choose_device(options, l.config);
  checkpoint const files{options.model};
  loaded_model const of =
    device == device_kind::cuda ? load_on_gpu(l, files) : load_on_cpu(options, l, files);

  std::vector<float> offsets;
  if (!l.calibration.empty()) {
    offsets = key_offsets(l.config, files, l.calibration, of.calibrate, say);
  }
  auto const compressed = of.make_session(options.cache, std::move(offsets));

  run_report report;
  report.device        = of.device;
  report.prompt_tokens = static_cast<int>(l.input.prompt.size());
  if (options.compare > 0) {
    auto const reference = of.make_session(uncompressed_settings(), {});
    run_comparison(options, l, *reference, *compressed, report);
  } else {
    run_generation(options, l, *compressed, report);
  }
  report.usage = compressed->usage();
  report.cache = compressed->options();
  fmt::print("{}\n", options.form == report_form::json ? as_json(report) : as_text(report));
  return 0;
}

}  // namespace

int main(int argc, char** argv)
{
  int exit_code      = 0;
  auto const options = llama3::parse_options(argc, argv, exit_code);
  if (!options) { return exit_code; }
  try {
    return run(*options);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
