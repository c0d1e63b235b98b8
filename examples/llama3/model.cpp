// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/model.hpp"

#include "llama3/rms_norm.hpp"
#include "llama3/swiglu.hpp"

#include <algorithm>  // copy_n, max, min
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <stdexcept>  // invalid_argument
#include <string>

namespace llama3 {
namespace {

//! Tokens that go through the matrices of a layer together: enough to use each converted block of
//! weights often, few enough to bound the memory of a long prompt.
constexpr int slice_tokens = 512;

std::size_t size_of(std::int64_t rows, std::int64_t columns)
{
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

//! Scratch only grows: one long prompt, then many single tokens.
void at_least(std::vector<float>& scratch, std::size_t size)
{
  if (scratch.size() < size) { scratch.resize(size); }
}

}  // namespace

model::model(model_config const& config, checkpoint const& files, thread_pool& threads)
  : config_{config}, weights_{load_weights(config, files)}, rope_{config.rope}, threads_{&threads}
{}

void model::check_id(token_id id) const
{
  if (id < 0 || id >= config_.vocab_size) {
    throw std::invalid_argument("token id " + std::to_string(id) +
                                " is outside the vocabulary of " +
                                std::to_string(config_.vocab_size));
  }
}

std::vector<float> model::embed(std::vector<token_id> const& ids)
{
  timed const clock{times_.other};
  std::vector<float> hidden(size_of(static_cast<std::int64_t>(ids.size()), config_.hidden_size));
  for (std::size_t t = 0; t < ids.size(); ++t) {
    float* const row = hidden.data() + t * static_cast<std::size_t>(config_.hidden_size);
    weights_.embedding.read_rows(ids[t], 1, row);
  }
  return hidden;
}

void model::set_angles(int first, int num_tokens)
{
  timed const clock{times_.other};
  std::int64_t const half = config_.head_dim / 2;
  at_least(cosines_, size_of(num_tokens, half));
  at_least(sines_, size_of(num_tokens, half));
  threads_->parallel_for(num_tokens, [&](std::int64_t t) {
    rope_.angles(first + static_cast<int>(t), cosines_.data() + t * half, sines_.data() + t * half);
  });
}

template <class Attend>
void model::run_layer(layer_weights const& layer, int num_tokens, float* hidden, Attend&& attend)
{
  std::int64_t const hidden_size  = config_.hidden_size;
  std::int64_t const intermediate = config_.intermediate_size;
  std::int64_t const q_size       = std::int64_t{config_.num_q_heads} * config_.head_dim;
  std::int64_t const kv_size      = std::int64_t{config_.num_heads} * config_.head_dim;
  std::int64_t const qkv_size     = q_size + 2 * kv_size;
  std::int64_t const half         = config_.head_dim / 2;
  std::int64_t const slice        = std::min(num_tokens, slice_tokens);
  auto const hidden_width         = static_cast<std::size_t>(hidden_size);
  at_least(q_, size_of(num_tokens, q_size));
  at_least(k_, size_of(num_tokens, kv_size));
  at_least(v_, size_of(num_tokens, kv_size));
  at_least(attended_, size_of(num_tokens, q_size));
  at_least(normed_, size_of(slice, hidden_size));
  at_least(gated_, size_of(slice, intermediate));
  at_least(narrow_, size_of(slice, hidden_size));
  at_least(wide_, size_of(slice, std::max(qkv_size, 2 * intermediate)));

  auto const norm = [&](std::vector<float> const& weight, std::int64_t begin, std::int64_t count) {
    timed const clock{times_.other};
    threads_->parallel_for(count, [&](std::int64_t t) {
      rms_norm(hidden + (begin + t) * hidden_size, weight.data(), hidden_width,
               config_.rms_norm_eps, normed_.data() + t * hidden_size);
    });
  };
  auto const product = [&](projection const& by, float const* x, std::int64_t count, float* y) {
    timed const clock{times_.matrices};
    by.apply(x, count, y, *threads_);
  };
  auto const add_to_hidden = [&](std::int64_t begin, std::int64_t count) {
    timed const clock{times_.other};
    float* const to = hidden + begin * hidden_size;
    for (std::int64_t i = 0; i < count * hidden_size; ++i) {
      to[i] += narrow_[static_cast<std::size_t>(i)];
    }
  };

  for (std::int64_t begin = 0; begin < num_tokens; begin += slice) {
    std::int64_t const count = std::min(slice, num_tokens - begin);
    norm(layer.input_norm, begin, count);
    product(layer.query_key_value, normed_.data(), count, wide_.data());
    timed const clock{times_.other};
    threads_->parallel_for(count, [&](std::int64_t t) {
      std::int64_t const token   = begin + t;
      float const* const q       = wide_.data() + t * qkv_size;
      float const* const cosines = cosines_.data() + token * half;
      float const* const sines   = sines_.data() + token * half;
      rope_.rotate(q, q_.data() + token * q_size, config_.num_q_heads, cosines, sines);
      rope_.rotate(q + q_size, k_.data() + token * kv_size, config_.num_heads, cosines, sines);
      std::copy_n(q + q_size + kv_size, kv_size, v_.data() + token * kv_size);
    });
  }
  {
    timed const clock{times_.attention};
    attend(q_.data(), k_.data(), v_.data(), attended_.data());
  }
  for (std::int64_t begin = 0; begin < num_tokens; begin += slice) {
    std::int64_t const count = std::min(slice, num_tokens - begin);
    product(layer.attention_output, attended_.data() + begin * q_size, count, narrow_.data());
    add_to_hidden(begin, count);
    norm(layer.post_attention_norm, begin, count);
    product(layer.gate_up, normed_.data(), count, wide_.data());
    {
      timed const clock{times_.other};
      threads_->parallel_for(count, [&](std::int64_t t) {
        float const* const gate = wide_.data() + t * 2 * intermediate;
        swiglu(gate, gate + intermediate, static_cast<std::size_t>(intermediate),
               gated_.data() + t * intermediate);
      });
    }
    product(layer.down, gated_.data(), count, narrow_.data());
    add_to_hidden(begin, count);
  }
}

std::vector<float> model::logits(float const* hidden, int num_rows)
{
  std::int64_t const width = config_.hidden_size;
  std::vector<float> normed(size_of(num_rows, width));
  {
    timed const clock{times_.other};
    for (int i = 0; i < num_rows; ++i) {
      rms_norm(hidden + i * width, weights_.norm.data(), static_cast<std::size_t>(width),
               config_.rms_norm_eps, normed.data() + i * width);
    }
  }
  timed const clock{times_.matrices};
  std::vector<float> out(size_of(num_rows, config_.vocab_size));
  auto const& head = weights_.head.empty() ? weights_.embedding : weights_.head;
  head.multiply(normed.data(), num_rows, out.data(), *threads_);
  return out;
}

std::vector<float> model::prompt(std::vector<token_id> const& ids, attention_backend& backend,
                                 progress_callback const& progress)
{
  return prompt_logits(ids, {static_cast<int>(ids.size()) - 1}, backend, progress);
}

std::vector<float> model::prompt_logits(std::vector<token_id> const& ids,
                                        std::vector<int> const& positions,
                                        attention_backend& backend,
                                        progress_callback const& progress)
{
  int const num_tokens = static_cast<int>(ids.size());
  if (ids.empty()) { throw std::invalid_argument("a prompt needs at least one token"); }
  for (token_id const id : ids) { check_id(id); }
  for (int const position : positions) {
    if (position < 0 || position >= num_tokens) {
      throw std::invalid_argument("position " + std::to_string(position) +
                                  " is outside the prompt of " + std::to_string(num_tokens));
    }
  }
  auto hidden = embed(ids);
  set_angles(0, num_tokens);
  for (int i = 0; i < config_.num_layers; ++i) {
    auto const attend = [&](float const* q, float const* k, float const* v, float* out) {
      backend.prompt(i, num_tokens, q, k, v, out);
    };
    run_layer(weights_.layers[static_cast<std::size_t>(i)], num_tokens, hidden.data(), attend);
    if (progress) { progress(i + 1, config_.num_layers); }
  }
  std::int64_t const width = config_.hidden_size;
  std::vector<float> chosen;
  for (int const position : positions) {
    auto const row = hidden.begin() + position * width;
    chosen.insert(chosen.end(), row, row + width);
  }
  return logits(chosen.data(), static_cast<int>(positions.size()));
}

std::vector<float> model::decode(token_id id, int position, attention_backend& backend)
{
  check_id(id);
  if (position < 0) { throw std::invalid_argument("a position is 0 or more"); }
  auto hidden = embed({id});
  set_angles(position, 1);
  {
    timed const clock{times_.attention};
    backend.begin_token();
  }
  for (int i = 0; i < config_.num_layers; ++i) {
    auto const attend = [&](float const* q, float const* k, float const* v, float* out) {
      backend.decode(i, q, k, v, out);
    };
    run_layer(weights_.layers[static_cast<std::size_t>(i)], 1, hidden.data(), attend);
  }
  return logits(hidden.data(), 1);
}

}  // namespace llama3
