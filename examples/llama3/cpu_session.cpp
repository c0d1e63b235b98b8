// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cpu_session.hpp"

#include <stdexcept>  // invalid_argument
#include <utility>    // forward, move

namespace llama3 {

cpu_session::cpu_session(model& of, cache_settings const& settings, int max_tokens,
                         std::vector<float> key_offsets, thread_pool& threads)
  : model_{&of}, cache_{of.config(), settings, max_tokens, std::move(key_offsets), threads}
{}

template <class Work>
std::vector<float> cpu_session::charged(Work&& work)
{
  model_->clear_times();
  std::vector<float> logits = std::forward<Work>(work)();
  times_ += model_->times();
  return logits;
}

std::vector<float> cpu_session::prompt(std::vector<token_id> const& ids,
                                       progress_callback const& progress)
{
  position_   = 0;
  auto logits = charged([&] { return model_->prompt(ids, cache_, progress); });
  position_   = static_cast<int>(ids.size());
  return logits;
}

std::vector<float> cpu_session::decode(token_id id)
{
  if (position_ == 0) { throw std::invalid_argument("a sequence begins with a prompt"); }
  expect_room(position_, options().shape.max_tokens);
  auto logits = charged([&] { return model_->decode(id, position_, cache_); });
  ++position_;
  return logits;
}

}  // namespace llama3
