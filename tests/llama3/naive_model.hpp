// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The same models once more in f64 and plain loops, written for reading, sharing nothing with the
//! example but the config and the tensors.
#include "tiny_model.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace llama3::test {

using vector_f64 = std::vector<double>;

inline vector_f64 times(std::vector<float> const& w, vector_f64 const& x)
{
  vector_f64 y(w.size() / x.size(), 0.0);
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) { y[r] += double{w[r * x.size() + c]} * x[c]; }
  }
  return y;
}

inline vector_f64 normalised(vector_f64 const& x, std::vector<float> const& weight, double epsilon)
{
  double squares = 0.0;
  for (double const value : x) { squares += value * value; }
  vector_f64 y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = weight[i] * x[i] / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  }
  return y;
}

//! Weight and, where the model has one, bias.
inline vector_f64 projected(tiny_model const& model, std::string const& name, vector_f64 const& x)
{
  auto y          = times(model.at(name + ".weight"), x);
  auto const bias = model.tensors.find(name + ".bias");
  if (bias != model.tensors.end()) {
    for (std::size_t r = 0; r < y.size(); ++r) { y[r] += bias->second.values[r]; }
  }
  return y;
}

//! Half-split rotation of one head beginning at `at`; no scaling.
inline void rotate(vector_f64& x, std::size_t at, std::size_t head_dim, double theta,
                   double position)
{
  for (std::size_t i = 0; i < head_dim / 2; ++i) {
    double const angle =
      position / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double const a           = x[at + i];
    double const b           = x[at + i + head_dim / 2];
    x[at + i]                = a * std::cos(angle) - b * std::sin(angle);
    x[at + i + head_dim / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

//! @return logits after every token, [ids.size()][vocab_size]
inline std::vector<vector_f64> naive_logits(tiny_model const& model, std::vector<int> const& ids)
{
  auto const& c       = model.config;
  auto const head_dim = static_cast<std::size_t>(c.head_dim);
  auto const q_heads  = static_cast<std::size_t>(c.num_q_heads);
  auto const heads    = static_cast<std::size_t>(c.num_heads);
  auto const hidden   = static_cast<std::size_t>(c.hidden_size);
  auto const num_ids  = ids.size();
  auto const add      = [](vector_f64& to, vector_f64 const& x) {
    for (std::size_t i = 0; i < to.size(); ++i) { to[i] += x[i]; }
  };
  std::vector<vector_f64> x(num_ids);
  for (std::size_t t = 0; t < num_ids; ++t) {
    auto const& table = model.at("model.embed_tokens.weight");
    auto const row    = table.begin() + static_cast<std::ptrdiff_t>(hidden) * ids[t];
    x[t].assign(row, row + static_cast<std::ptrdiff_t>(hidden));
  }
  for (int i = 0; i < c.num_layers; ++i) {
    std::string const layer = "model.layers." + std::to_string(i) + ".";
    std::vector<vector_f64> q(num_ids), k(num_ids), v(num_ids);
    for (std::size_t t = 0; t < num_ids; ++t) {
      auto const in = normalised(x[t], model.at(layer + "input_layernorm.weight"), c.rms_norm_eps);
      q[t]          = projected(model, layer + "self_attn.q_proj", in);
      k[t]          = projected(model, layer + "self_attn.k_proj", in);
      v[t]          = projected(model, layer + "self_attn.v_proj", in);
      for (std::size_t h = 0; h < q_heads; ++h) {
        rotate(q[t], h * head_dim, head_dim, c.rope.theta, static_cast<double>(t));
      }
      for (std::size_t h = 0; h < heads; ++h) {
        rotate(k[t], h * head_dim, head_dim, c.rope.theta, static_cast<double>(t));
      }
    }
    for (std::size_t t = 0; t < num_ids; ++t) {
      vector_f64 attended(q_heads * head_dim, 0.0);
      for (std::size_t h = 0; h < q_heads; ++h) {
        std::size_t const kv = h * heads / q_heads;
        vector_f64 weight(t + 1);
        double sum = 0.0;
        for (std::size_t s = 0; s <= t; ++s) {
          double dot = 0.0;
          for (std::size_t d = 0; d < head_dim; ++d) {
            dot += q[t][h * head_dim + d] * k[s][kv * head_dim + d];
          }
          weight[s] = std::exp(dot / std::sqrt(static_cast<double>(head_dim)));
          sum += weight[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t d = 0; d < head_dim; ++d) {
            attended[h * head_dim + d] += weight[s] / sum * v[s][kv * head_dim + d];
          }
        }
      }
      add(x[t], projected(model, layer + "self_attn.o_proj", attended));
      auto const in =
        normalised(x[t], model.at(layer + "post_attention_layernorm.weight"), c.rms_norm_eps);
      auto gate     = projected(model, layer + "mlp.gate_proj", in);
      auto const up = projected(model, layer + "mlp.up_proj", in);
      for (std::size_t r = 0; r < gate.size(); ++r) {
        gate[r] = gate[r] / (1.0 + std::exp(-gate[r])) * up[r];
      }
      add(x[t], projected(model, layer + "mlp.down_proj", gate));
    }
  }
  std::vector<vector_f64> logits;
  for (auto const& row : x) {
    auto const& head = model.at(c.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    logits.push_back(times(head, normalised(row, model.at("model.norm.weight"), c.rms_norm_eps)));
  }
  return logits;
}

}  // namespace llama3::test
