// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/cuda_session.hpp"

#include "llama3/cuda/device_cache_kind.hpp"

#include <stdexcept>  // invalid_argument, runtime_error
#include <string>

namespace llama3 {
namespace {

[[nodiscard]] device_cache_setup setup_for(int max_tokens)
{
  device_cache_setup setup;
  setup.max_tokens    = max_tokens;
  setup.prompt_tokens = max_tokens;
  return setup;
}

}  // namespace

cuda_session::cuda_session(device_model& of, cache_settings const& settings, int max_tokens,
                           std::vector<float> key_offsets)
  : model_{of},
    runner_{of,
            make_device_cache(of.config(), settings, setup_for(max_tokens), std::move(key_offsets),
                              of.stream()),
            setup_for(max_tokens), of.config().vocab_size}
{}

std::vector<float> cuda_session::logits() const
{
  return to_host(runner_.logits(), static_cast<std::size_t>(model_.config().vocab_size),
                 model_.stream());
}

std::vector<float> cuda_session::prompt(std::vector<token_id> const& ids,
                                        progress_callback const& progress)
{
  timed const clock{times_.device};
  num_tokens_ = 0;
  if (holds_pages_) { runner_.release({slot}); }
  holds_pages_ = false;
  model_.check_ids(ids);
  if (static_cast<int>(ids.size()) > runner_.max_prompt_tokens()) {
    throw std::invalid_argument("a prompt of " + std::to_string(ids.size()) +
                                " tokens is longer than the session's " +
                                std::to_string(runner_.max_prompt_tokens()));
  }
  holds_pages_ = true;
  if (!runner_.read_prompts({{slot, ids, {}}}, progress).front()) {
    throw std::runtime_error("not enough pages for a prompt of " + std::to_string(ids.size()) +
                             " tokens");
  }
  num_tokens_ = static_cast<int>(ids.size());
  return logits();
}

std::vector<float> cuda_session::decode(token_id id)
{
  timed const clock{times_.device};
  model_.check_ids({id});
  if (num_tokens_ == 0) { throw std::invalid_argument("there is no prompt before this token"); }
  expect_room(num_tokens_, runner_.max_tokens());
  runner_.set_token(slot, id);
  runner_.step({slot});
  if (!runner_.collect().tokens.front()) {
    throw std::runtime_error("not enough pages for one more token");
  }
  ++num_tokens_;
  return logits();
}

}  // namespace llama3
