// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The generation loop: from a prompt's ids to an answer's ids. It knows no model and no cache.
//! Read before this: llama3/sampler.hpp.  Read next: llama3/main.cpp.
#include "llama3/sampler.hpp"

#include <functional>
#include <string_view>
#include <vector>

namespace llama3 {
//! Takes tokens into the context and returns the logits after the last of them. It is given the
//! whole prompt first, then each generated token by itself. The view must hold until the next call.
using next_logits_function = std::function<logits_view(std::vector<token_id> const& tokens)>;

struct generation_limits {
  int max_tokens{0};  //!< new tokens at most
  int context{0};     //!< prompt and new tokens together at most
};

//! stop: the model ended its answer; length: max_tokens or the context did.
enum class finish_reason { stop, length };

[[nodiscard]] std::string_view name_of(finish_reason reason) noexcept;

struct generation {
  std::vector<token_id> tokens;  //!< without the stop id
  finish_reason reason{finish_reason::length};
};

//! Refuses a prompt that cannot be answered, before any work.
//! @throws std::invalid_argument if the prompt is empty (a model has nothing to start from; a
//!         tokenizer with BOS never gives an empty one), or longer than the context, naming both
//!         numbers; or if max_tokens is negative
void check_prompt(std::size_t prompt_tokens, generation_limits const& limits);

//! Generates until a stop id or a limit; a prompt that fills the context gives no tokens. The last
//! token is not taken into the context: nothing comes after it.
//! @param[in] stop_ids  each ends the answer and is neither returned nor given to `on_token`
//! @param[in] on_token  called with each token as soon as it is chosen; may be empty
//! @throws  std::invalid_argument as `check_prompt`; and what the functions given throw
[[nodiscard]] generation generate(std::vector<token_id> const& prompt,
                                  next_logits_function const& next_logits, sampler& choose,
                                  std::vector<token_id> const& stop_ids,
                                  generation_limits const& limits,
                                  std::function<void(token_id)> const& on_token = {});
}  // namespace llama3
