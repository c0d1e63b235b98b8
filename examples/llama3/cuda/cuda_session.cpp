// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/cuda_session.hpp"

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

void check_ids(model_config const& config, std::vector<token_id> const& ids)
{
  if (ids.empty()) { throw std::invalid_argument("a prompt needs at least one token"); }
  for (token_id const id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      throw std::invalid_argument("token id " + std::to_string(id) +
                                  " is outside the vocabulary of " +
                                  std::to_string(config.vocab_size));
    }
  }
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
  check_ids(model_.config(), ids);
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
  check_ids(model_.config(), {id});
  if (num_tokens_ == 0) { throw std::invalid_argument("there is no prompt before this token"); }
  if (num_tokens_ == runner_.max_tokens()) {
    throw std::invalid_argument("the sequence has all of the session's " +
                                std::to_string(num_tokens_) + " tokens");
  }
  runner_.set_token(slot, id);
  runner_.step({slot});
  if (!runner_.collect().tokens.front()) {
    throw std::runtime_error("not enough pages for one more token");
  }
  ++num_tokens_;
  return logits();
}

std::vector<float> calibrate_on_device(device_model& of, std::vector<token_id> const& ids)
{
  model_config const& config = of.config();
  check_ids(config, ids);
  cudaStream_t const stream = of.stream();
  std::vector<std::int32_t> positions;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    positions.push_back(static_cast<std::int32_t>(t));
  }
  auto const device_ids       = to_device(ids, stream);
  auto const device_positions = to_device(positions, stream);
  auto const first_tokens =
    to_device(std::vector<std::int64_t>{0, static_cast<std::int64_t>(ids.size())}, stream);
  std::size_t const per_layer =
    static_cast<std::size_t>(config.num_heads) * static_cast<std::size_t>(config.head_dim);
  auto offsets =
    make_array<float>(std::int64_t{config.num_layers} * config.num_heads * config.head_dim, stream);
  calibrate_function const calibrate = find_calibration(config);
  auto const count                   = static_cast<int>(ids.size());
  of.run({count, device_ids.data(), device_positions.data()},
         [&](int layer, __half const* q, __half const* k, __half const* v, __half* out) {
           calibrate({config.num_q_heads, config.num_heads, count, first_tokens.data(), q, k, v,
                      out, offsets.data() + static_cast<std::size_t>(layer) * per_layer},
                     stream);
         });
  return to_host(offsets.data(), offsets.size(), stream);
}

}  // namespace llama3
