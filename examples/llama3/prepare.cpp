// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/prepare.hpp"

#include "llama3/chat_template.hpp"
#include "llama3/file_error.hpp"
#include "llama3/generate.hpp"  // check_prompt
#include "llama3/serve.hpp"     // make_requests, longest_sequence

#include <fmt/format.h>

#include <algorithm>  // min
#include <fstream>
#include <iterator>
#include <stdexcept>  // invalid_argument
#include <string>
#include <utility>  // move

namespace llama3 {
namespace {

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
std::vector<token_id> calibration_ids(std::filesystem::path const& file, model_config const& config,
                                      tokenizer const& words)
{
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

//! Tokens of a sequence that begins with this prompt, at most.
//! @throws std::invalid_argument if it cannot work
int checked_length(program_options const& options, input_tokens const& input, int context)
{
  int const wanted = options.compare > 0 ? options.compare : options.max_tokens;
  check_prompt(input.prompt.size(), {wanted, context});
  auto const prompt = static_cast<int>(input.prompt.size());
  if (options.compare > context - prompt) {
    throw std::invalid_argument(
      fmt::format("--compare {}: with {} prompt tokens that is more than "
                  "the context of {}",
                  options.compare, prompt, context));
  }
  return wanted < context - prompt ? prompt + wanted : context;
}

}  // namespace

loaded prepare(program_options const& options, std::filesystem::path const& calibration_text)
{
  model_config config = load_model_config(options.model);
  tokenizer words     = load_tokenizer(options.model);
  int const context   = options.context == 0 ? config.max_positions : options.context;
  if (context > config.max_positions) {
    throw std::invalid_argument(fmt::format(
      "--context {}: the model was made for {} tokens at most", context, config.max_positions));
  }
  input_tokens input;
  std::vector<generation_request> requests;
  int max_tokens = 0;
  if (options.requests.empty()) {
    input      = tokens_of(options, words);
    max_tokens = checked_length(options, input, context);
  } else {
    requests   = make_requests(options, words, context);
    max_tokens = longest_sequence(requests, context);
  }
  check_context(config, max_tokens);
  check_settings(config, options.cache, max_tokens);
  std::vector<token_id> calibration;
  if (has(options.cache.conditioning, diffkv::conditioning::centred)) {
    calibration =
      calibration_ids(options.calibration_text.value_or(calibration_text), config, words);
  }
  return {std::move(config),      std::move(words), std::move(input), std::move(requests),
          std::move(calibration), context,          max_tokens};
}

}  // namespace llama3
