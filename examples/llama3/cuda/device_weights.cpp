// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/device_weights.hpp"

#include "llama3/cuda/convert.hpp"

#include <algorithm>  // max, min
#include <cmath>      // sqrt

namespace llama3 {
namespace {

//! Copies matrices through a piece of pinned memory.
class uploader {
 public:
  explicit uploader(cudaStream_t stream)
    : stream_{stream}, host_{chunk_elements}, device_{chunk_elements, {stream}}
  {}

  [[nodiscard]] device_matrix matrix(weight_matrix const& from)
  {
    device_matrix to{make_array<__half>(from.rows() * from.columns(), stream_), from.rows(),
                     from.columns()};
    if (from.empty()) { return to; }
    std::int64_t const rows_at_once =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk_elements) / from.columns());
    for (std::int64_t first = 0; first < from.rows(); first += rows_at_once) {
      std::int64_t const rows  = std::min(rows_at_once, from.rows() - first);
      std::int64_t const count = rows * from.columns();
      from.read_rows(first, rows, host_.data());
      DIFFKV_CUDA_TRY(cudaMemcpyAsync(device_.data(), host_.data(),
                                      static_cast<std::size_t>(count) * sizeof(float),
                                      cudaMemcpyHostToDevice, stream_));
      to_half(device_.data(), count, to.data.data() + first * from.columns(), stream_);
      DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_));  // the piece is written anew
    }
    return to;
  }

  [[nodiscard]] device_projection projection_of(projection const& from)
  {
    return {matrix(from.weight), to_device(from.bias, stream_)};
  }

  [[nodiscard]] device_array<float> vector(std::vector<float> const& from)
  {
    return to_device(from, stream_);
  }

 private:
  static constexpr std::size_t chunk_elements = std::size_t{4} << 20;  // more than any row has

  cudaStream_t stream_;
  pinned_array<float> host_;
  device_array<float> device_;
};

//! Makes matrices of random weights, each from a seed of its own.
class generator {
 public:
  generator(std::uint64_t seed, cudaStream_t stream) : seed_{seed}, stream_{stream} {}

  [[nodiscard]] device_matrix matrix(std::int64_t rows, std::int64_t columns)
  {
    device_matrix to{make_array<__half>(rows * columns, stream_), rows, columns};
    float const deviation = 1.0f / std::sqrt(static_cast<float>(columns));
    fill_normal(++seed_, deviation, rows * columns, to.data.data(), stream_);
    return to;
  }

  [[nodiscard]] device_projection projection_of(std::int64_t rows, std::int64_t columns,
                                                bool has_bias)
  {
    return {matrix(rows, columns), has_bias ? vector(rows, 0.0f) : device_array<float>{}};
  }

  [[nodiscard]] device_array<float> vector(std::int64_t size, float value)
  {
    auto to = make_array<float>(size, stream_);
    fill(value, size, to.data(), stream_);
    return to;
  }

 private:
  std::uint64_t seed_;
  cudaStream_t stream_;
};

}  // namespace

device_weights upload(model_weights const& weights, cudaStream_t stream)
{
  uploader up{stream};
  device_weights there;
  there.embedding = up.matrix(weights.embedding);
  for (layer_weights const& layer : weights.layers) {
    there.layers.push_back({up.vector(layer.input_norm), up.projection_of(layer.query_key_value),
                            up.projection_of(layer.attention_output),
                            up.vector(layer.post_attention_norm), up.projection_of(layer.gate_up),
                            up.projection_of(layer.down)});
  }
  there.norm = up.vector(weights.norm);
  there.head = up.matrix(weights.head);
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
  return there;
}

device_weights random_weights(model_config const& config, std::uint64_t seed, cudaStream_t stream)
{
  generator random{seed << 32, stream};
  std::int64_t const hidden       = config.hidden_size;
  std::int64_t const intermediate = config.intermediate_size;
  std::int64_t const q_size       = std::int64_t{config.num_q_heads} * config.head_dim;
  std::int64_t const kv_size      = std::int64_t{config.num_heads} * config.head_dim;
  device_weights there;
  there.embedding = random.matrix(config.vocab_size, hidden);
  for (int i = 0; i < config.num_layers; ++i) {
    there.layers.push_back({random.vector(hidden, 1.0f),
                            random.projection_of(q_size + 2 * kv_size, hidden, config.qkv_bias),
                            random.projection_of(hidden, q_size, config.output_bias),
                            random.vector(hidden, 1.0f),
                            random.projection_of(2 * intermediate, hidden, config.mlp_bias),
                            random.projection_of(hidden, intermediate, config.mlp_bias)});
  }
  there.norm = random.vector(hidden, 1.0f);
  if (!config.tie_embeddings) { there.head = random.matrix(config.vocab_size, hidden); }
  return there;
}

}  // namespace llama3
