// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/device_model.hpp"

#include "llama3/rope.hpp"

#include <algorithm>  // min
#include <stdexcept>  // invalid_argument
#include <string>
#include <utility>  // move

namespace llama3 {
namespace {

//! Tokens that go through the matrices of a layer together: enough to keep the GPU busy, few enough to
//! bound the memory of a long prompt.
constexpr int slice_tokens = 4096;

//! Every (cosine, sine), with the same bits as the CPU's.
std::vector<float2> angles_of(rope_parameters const& parameters, int max_positions)
{
  rope const rotation{parameters};
  std::size_t const half = rotation.frequencies().size();
  std::vector<float> cosines(half), sines(half);
  std::vector<float2> angles;
  angles.reserve(half * static_cast<std::size_t>(max_positions));
  for (int position = 0; position < max_positions; ++position) {
    rotation.angles(position, cosines.data(), sines.data());
    for (std::size_t i = 0; i < half; ++i) { angles.push_back({cosines[i], sines[i]}); }
  }
  return angles;
}

}  // namespace

device_model::device_model(model_config config, device_weights weights, int max_positions,
                           int max_tokens, cudaStream_t stream)
  : config_{std::move(config)},
    weights_{std::move(weights)},
    max_tokens_{max_tokens},
    slice_{std::min(max_tokens, slice_tokens)},
    stream_{stream},
    blas_{stream},
    heads_{config_.num_q_heads, config_.num_heads, config_.head_dim},
    angles_{to_device(angles_of(config_.rope, max_positions), stream)}
{
  auto const floats = [&](std::int64_t rows, std::int64_t columns) {
    return make_array<float>(rows * columns, stream);
  };
  auto const halves = [&](std::int64_t rows, std::int64_t columns) {
    return make_array<__half>(rows * columns, stream);
  };
  auto const cleared_halves = [&](std::int64_t rows, std::int64_t columns) {
    return make_cleared_array<__half>(rows * columns, stream);
  };
  std::int64_t const q_size  = std::int64_t{config_.num_q_heads} * config_.head_dim;
  std::int64_t const kv_size = std::int64_t{config_.num_heads} * config_.head_dim;
  hidden_                    = floats(max_tokens, config_.hidden_size);
  q_                         = halves(max_tokens, q_size);
  k_                         = halves(max_tokens, kv_size);
  v_                         = halves(max_tokens, kv_size);
  // Rows behind the end of a batch go through the matrices, too.
  attended_ = cleared_halves(max_tokens, q_size);
  normed_   = halves(slice_, config_.hidden_size);
  qkv_      = make_cleared_array<float>(std::int64_t{slice_} * heads_.qkv_rows(), stream);
  gate_up_  = cleared_halves(slice_, 2 * std::int64_t{config_.intermediate_size});
  gated_    = halves(slice_, config_.intermediate_size);
  chosen_   = floats(slice_, config_.hidden_size);
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
}

void device_model::run(device_tokens const& tokens, attend_function const& attend,
                       progress_callback const& progress)
{
  embed(weights_.embedding.data.data(), tokens.ids, tokens.count, config_.hidden_size,
        hidden_.data(), stream_);
  for (int i = 0; i < config_.num_layers; ++i) {
    run_layer(weights_.layers[static_cast<std::size_t>(i)], tokens, attend, i);
    if (progress) { progress(i + 1, config_.num_layers); }
  }
}

void device_model::run_layer(device_layer const& layer, device_tokens const& tokens,
                             attend_function const& attend, int index)
{
  int const hidden_size      = config_.hidden_size;
  auto const epsilon         = static_cast<float>(config_.rms_norm_eps);
  std::int64_t const q_size  = std::int64_t{config_.num_q_heads} * config_.head_dim;
  std::int64_t const kv_size = std::int64_t{config_.num_heads} * config_.head_dim;
  auto const hidden_at       = [&](int token) {
    return hidden_.data() + std::int64_t{token} * hidden_size;
  };
  // The product of `x` goes to the hidden vectors of `count` tokens from `first` on.
  auto const add_to_hidden = [&](device_projection const& by, __half const* x, int first,
                                 int count) {
    blas_.multiply_add(by.weight, x, count, hidden_at(first));
    if (by.bias_or_null() != nullptr) {
      add_bias(hidden_at(first), by.bias_or_null(), count, hidden_size, stream_);
    }
  };

  for (int first = 0; first < tokens.count; first += slice_) {
    int const count = std::min(slice_, tokens.count - first);
    rms_norm(hidden_at(first), layer.input_norm.data(), count, hidden_size, epsilon, normed_.data(),
             stream_);
    blas_.multiply(layer.query_key_value.weight, normed_.data(), count, qkv_.data());
    split_and_rotate(qkv_.data(), layer.query_key_value.bias_or_null(), tokens.positions + first,
                     angles_.data(), heads_, count, q_.data() + first * q_size,
                     k_.data() + first * kv_size, v_.data() + first * kv_size, stream_);
  }
  attend(index, q_.data(), k_.data(), v_.data(), attended_.data());
  for (int first = 0; first < tokens.count; first += slice_) {
    int const count = std::min(slice_, tokens.count - first);
    add_to_hidden(layer.attention_output, attended_.data() + first * q_size, first, count);
    rms_norm(hidden_at(first), layer.post_attention_norm.data(), count, hidden_size, epsilon,
             normed_.data(), stream_);
    blas_.multiply(layer.gate_up.weight, normed_.data(), count, gate_up_.data());
    swiglu(gate_up_.data(), layer.gate_up.bias_or_null(), count, config_.intermediate_size,
           gated_.data(), stream_);
    add_to_hidden(layer.down, gated_.data(), first, count);
  }
}

void device_model::check_ids(std::vector<token_id> const& ids) const
{
  if (ids.empty()) { throw std::invalid_argument("a prompt needs at least one token"); }
  for (token_id const id : ids) {
    if (id < 0 || id >= config_.vocab_size) {
      throw std::invalid_argument("token id " + std::to_string(id) +
                                  " is outside the vocabulary of " +
                                  std::to_string(config_.vocab_size));
    }
  }
}

void device_model::logits(std::int32_t const* rows, int count, float* logits)
{
  float const* from = hidden_.data();
  if (rows != nullptr) {
    gather_rows(from, rows, count, config_.hidden_size, chosen_.data(), stream_);
    from = chosen_.data();
  }
  rms_norm(from, weights_.norm.data(), count, config_.hidden_size,
           static_cast<float>(config_.rms_norm_eps), normed_.data(), stream_);
  blas_.multiply(weights_.output(), normed_.data(), count, logits);
}

}  // namespace llama3
