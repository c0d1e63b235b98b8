// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The decode loop: a Llama-family model answers a prompt with its keys and values in diffkv pages.
//! Read before this: llama3/session.hpp, llama3/generate.hpp, llama3/serve.hpp, llama3/prepare.hpp. The
//! order of all files is in README.md.
#include "llama3/calibration.hpp"
#include "llama3/comparison.hpp"
#include "llama3/cpu_session.hpp"
#include "llama3/generate.hpp"
#include "llama3/options.hpp"
#include "llama3/prepare.hpp"
#include "llama3/progress.hpp"
#include "llama3/report.hpp"
#include "llama3/serve.hpp"
#include "llama3/utf8_stream.hpp"
#if LLAMA3_CUDA
#include "llama3/cuda/cuda_device.hpp"
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>  // function
#include <memory>      // make_shared, make_unique

namespace {

using namespace llama3;

void say(std::string const& message) { fmt::print(stderr, "{}\n", message); }

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
      if (options.requests.empty()) {  // else the CPU is no way out
        if (options.device == device_kind::automatic) { say("running on the CPU: " + why); }
        why += "; use one of these, or --device cpu";
      }
    }
  }
#endif
  if (options.device == device_kind::cuda) { throw std::runtime_error("--device cuda: " + why); }
  if (!options.requests.empty()) {
    throw std::runtime_error("--requests: many sequences at the same time need a GPU, but " + why);
  }
  return device_kind::cpu;
}

#if LLAMA3_CUDA
runner_size runner_size_for(program_options const& options, loaded const& l)
{
  runner_size size;
  size.slots      = std::min(options.batch, static_cast<int>(l.requests.size()));
  size.max_tokens = l.max_tokens;
  size.num_ids    = static_cast<int>(l.words.size());
  size.kv_bytes   = static_cast<std::uint64_t>(options.kv_bytes);
  return size;
}
#endif

//! Refuses requests that the GPU has no memory for, before any weight is read.
//! @throws std::invalid_argument naming the option that asks for too much or too little
void check_requests([[maybe_unused]] program_options const& options,
                    [[maybe_unused]] loaded const& l)
{
#if LLAMA3_CUDA
  std::size_t longest = 0;
  for (generation_request const& r : l.requests) { longest = std::max(longest, r.prompt.size()); }
  check_runner_size(l.config, options.cache, runner_size_for(options, l),
                    static_cast<int>(longest));
#endif
}

//! A model loaded onto its device. The functions keep it alive, sessions do not.
struct loaded_model {
  std::string device;          // of the report
  offsets_function calibrate;  // over loaded::calibration
  std::function<std::unique_ptr<session>(cache_settings const&, std::vector<float> key_offsets)>
    make_session;
  std::function<std::unique_ptr<batch_runner>(std::vector<float> key_offsets)> make_runner;  // GPU
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
          },
          {}};
}

loaded_model load_on_gpu([[maybe_unused]] program_options const& options,
                         [[maybe_unused]] loaded const& l, [[maybe_unused]] checkpoint const& files)
{
#if LLAMA3_CUDA
  constexpr std::size_t most_together = 4096;  // tokens of prompts that are read together
  std::size_t together                = 0;
  for (generation_request const& r : l.requests) { together += r.prompt.size(); }
  runner_size const size = runner_size_for(options, l);
  int const at_once = std::max({l.max_tokens, static_cast<int>(l.calibration.size()), size.slots,
                                static_cast<int>(std::min(together, most_together))});
  std::shared_ptr<cuda_device> const shared = open_cuda_device(l.config, files, at_once);
  return {"cuda", [shared, &l] { return shared->calibrate(l.calibration); },
          [shared, &l](cache_settings const& settings, std::vector<float> offsets) {
            return shared->make_session(settings, l.max_tokens, std::move(offsets));
          },
          [shared, &options, size](std::vector<float> offsets) {
            return shared->make_runner(options.cache, size, std::move(offsets));
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

void run_requests(program_options const& options, loaded const& l, std::string const& device,
                  batch_runner& runs)
{
  bool const as_lines = options.form == report_form::json;
  serving_report report =
    serve(runs, l.words, l.config.stop_ids, l.requests, [&](request_answer const& answer) {
      fmt::print("{}\n", as_lines ? as_json(answer) : as_text(answer));
      std::fflush(stdout);
    });
  report.device  = device;
  report.formats = formats_text(options.cache.high, options.cache.low);
  fmt::print("{}\n", as_lines ? as_json(report) : as_text(report));
}

int run(program_options const& options)
{
  loaded const l           = prepare(options, LLAMA3_CALIBRATION_TEXT);
  device_kind const device = choose_device(options, l.config);
  if (!l.requests.empty()) { check_requests(options, l); }
  checkpoint const files{options.model};
  loaded_model const of =
    device == device_kind::cuda ? load_on_gpu(options, l, files) : load_on_cpu(options, l, files);

  std::vector<float> offsets;
  if (!l.calibration.empty()) {
    offsets = key_offsets(l.config, files, l.calibration, of.calibrate, say);
  }
  if (!l.requests.empty()) {
    run_requests(options, l, of.device, *of.make_runner(std::move(offsets)));
    return 0;
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
