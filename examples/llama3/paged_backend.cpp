// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/paged_backend.hpp"

#include <cmath>      // sqrt
#include <stdexcept>  // runtime_error

namespace llama3 {

paged_backend::paged_backend(model_config const& config, cache_settings const& settings,
                             int max_tokens, std::vector<float> key_offsets, thread_pool& threads)
  : harmonic_{max_tokens},
    cache_{cache_options_for(config, settings, max_tokens, std::move(key_offsets)),
           policy_for(settings, harmonic_.ref())},
    threads_{&threads}
{
  attention_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  // More parts than heads, so that two threads share three heads evenly; not the number of threads,
  // which would then change the last bits of the answer.
  attention_.splits = 4;
}

void paged_backend::prompt(int layer, int num_tokens, float const* q, float const* k,
                           float const* v, float* out)
{
  auto const& shape = cache_.shape();
  if (layer == 0) {
    cache_.release(&slot, 1);
    if (!cache_.admit(slot, num_tokens)) {
      throw std::runtime_error("not enough pages for a prompt of " + std::to_string(num_tokens) +
                               " tokens");
    }
    importances_.resize(std::size_t{shape.num_heads} * static_cast<std::size_t>(num_tokens));
  }
  auto const rows  = executor();
  auto const query = diffkv::packed(q, shape.num_q_heads(), shape.head_dim);
  auto const key   = diffkv::packed(k, shape.num_heads, shape.head_dim);
  auto const value = diffkv::packed(v, shape.num_heads, shape.head_dim);
  cache_.prefill_attention(slot, attention_, query, key, value,
                           diffkv::packed(out, shape.num_q_heads(), shape.head_dim), nullptr,
                           importances_.data(), rows);
  cache_.store_prompt(slot, static_cast<std::uint32_t>(layer), key, value, importances_.data(),
                      rows);
}

void paged_backend::begin_token()
{
  if (cache_.step(&slot, 1) != 0) {
    throw std::runtime_error("not enough pages for one more token");
  }
}

void paged_backend::decode(int layer, float const* q, float const* k, float const* v, float* out)
{
  auto const& shape      = cache_.shape();
  auto const layer_index = static_cast<std::uint32_t>(layer);
  auto const rows        = executor();
  auto const query       = diffkv::packed(q, shape.num_q_heads(), shape.head_dim);
  cache_.append(&slot, 1, layer_index, diffkv::packed(k, shape.num_heads, shape.head_dim),
                diffkv::packed(v, shape.num_heads, shape.head_dim), query);
  cache_.decode(&slot, 1, layer_index, attention_, query,
                diffkv::packed(out, shape.num_q_heads(), shape.head_dim), nullptr, rows);
}

}  // namespace llama3
