// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/paged_backend.hpp"

#include <cmath>      // sqrt
#include <stdexcept>  // runtime_error

namespace llama3 {

namespace {

diffkv::cache_options options_for(model_config const& config, cache_settings const& settings,
                                  int max_tokens, std::vector<float> key_offsets)
{
  diffkv::cache_options options;
  options.shape.num_slots   = 1;
  options.shape.num_layers  = static_cast<std::uint32_t>(config.num_layers);
  options.shape.num_heads   = static_cast<std::uint32_t>(config.num_heads);
  options.shape.group_size  = static_cast<std::uint32_t>(config.group());
  options.shape.head_dim    = config.head_dim;
  options.shape.max_tokens  = max_tokens;
  options.shape.window      = settings.window;
  options.shape.score_every = settings.score_every;
  options.high              = settings.high;
  options.has_low           = settings.low.has_value();
  options.low               = settings.low.value_or(settings.high);
  options.conditioned       = settings.conditioning;
  options.limits            = settings.limits;
  options.key_offsets       = std::move(key_offsets);
  if (settings.clip) {
    options.default_clips = false;
    for (auto* spec :
         {&options.high.key, &options.high.value, &options.low.key, &options.low.value}) {
      spec->clip = spec->bits <= 2 ? *settings.clip : 1.0f;
    }
  }
  auto const pages = diffkv::pages_for_all(options);
  if (pages > diffkv::max_pages) {
    throw std::runtime_error("a context of " + std::to_string(max_tokens) +
                             " tokens needs more pages than a pool can have: ask for less with "
                             "--context");
  }
  options.num_pages = static_cast<std::uint32_t>(pages);
  return options;
}

diffkv::any_policy policy_for(cache_settings const& settings, diffkv::harmonic_table const& table)
{
  diffkv::any_policy policy;
  policy.kind                 = settings.policy;
  policy.relative.harmonic    = table.ref();
  policy.static_budget.budget = settings.budget;
  return policy;
}

}  // namespace

cache_settings uncompressed_settings()
{
  cache_settings settings;
  settings.high         = diffkv::k16v16::spec;
  settings.low          = std::nullopt;
  settings.policy       = diffkv::policy_kind::paper;
  settings.limits       = {0.0f, 0.0f};
  settings.score_every  = 0;
  settings.conditioning = diffkv::conditioning::none;
  return settings;
}

void check_settings(model_config const& config, cache_settings const& settings, int max_tokens)
{
  bool const centred     = has(settings.conditioning, diffkv::conditioning::centred);
  std::size_t const size = static_cast<std::size_t>(config.num_layers) *
                           static_cast<std::size_t>(config.num_heads) *
                           static_cast<std::size_t>(config.head_dim);
  static_cast<void>(options_for(config, settings, max_tokens,
                                std::vector<float>(centred ? size : 0)));  // it checks them all
}

paged_backend::paged_backend(model_config const& config, cache_settings const& settings,
                             int max_tokens, std::vector<float> key_offsets, thread_pool& threads)
  : harmonic_{max_tokens},
    cache_{options_for(config, settings, max_tokens, std::move(key_offsets)),
           policy_for(settings, harmonic_)},
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
