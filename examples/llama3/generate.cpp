// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/generate.hpp"

#include <algorithm>  // find, min
#include <stdexcept>  // invalid_argument
#include <string>

namespace llama3 {
std::string_view name_of(finish_reason reason) noexcept
{
  return reason == finish_reason::stop ? "stop" : "length";
}

void check_prompt(std::size_t prompt_tokens, generation_limits const& limits)
{
  if (limits.max_tokens < 0) {
    throw std::invalid_argument("the number of new tokens must be 0 or more, not " +
                                std::to_string(limits.max_tokens));
  }
  if (prompt_tokens == 0) {
    throw std::invalid_argument(
      "the prompt is empty, and the tokenizer has no token for the beginning of a text: "
      "give at least one character");
  }
  if (limits.context < 0 || prompt_tokens > static_cast<std::size_t>(limits.context)) {
    throw std::invalid_argument("the prompt has " + std::to_string(prompt_tokens) +
                                " tokens, the context holds " + std::to_string(limits.context) +
                                ": shorten the prompt or allow a longer context");
  }
}

generation generate(std::vector<token_id> const& prompt, next_logits_function const& next_logits,
                    sampler& choose, std::vector<token_id> const& stop_ids,
                    generation_limits const& limits, std::function<void(token_id)> const& on_token)
{
  check_prompt(prompt.size(), limits);
  std::size_t const room = static_cast<std::size_t>(limits.context) - prompt.size();
  std::size_t const most = std::min(static_cast<std::size_t>(limits.max_tokens), room);

  generation result;
  std::vector<token_id> tokens = prompt;  // what the model has not seen yet
  while (result.tokens.size() < most) {
    token_id const id = choose.sample(next_logits(tokens));
    if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
      result.reason = finish_reason::stop;
      break;
    }
    result.tokens.push_back(id);
    if (on_token) { on_token(id); }
    tokens.assign(1, id);
  }
  return result;
}
}  // namespace llama3
