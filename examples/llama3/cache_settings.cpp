// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/cache_settings.hpp"

#include <cstddef>    // size_t
#include <stdexcept>  // runtime_error
#include <string>
#include <utility>  // move

namespace llama3 {

diffkv::cache_options cache_options_for(model_config const& config, cache_settings const& settings,
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
  options.shape.schedule    = settings.schedule;
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

diffkv::any_policy policy_for(cache_settings const& settings, diffkv::harmonic_ref harmonic)
{
  diffkv::any_policy policy;
  policy.kind                 = settings.policy;
  policy.relative.harmonic    = harmonic;
  policy.static_budget.budget = settings.budget;
  return policy;
}

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
  static_cast<void>(
    cache_options_for(config, settings, max_tokens,
                      std::vector<float>(centred ? size : 0)));  // it checks them all
}

}  // namespace llama3
