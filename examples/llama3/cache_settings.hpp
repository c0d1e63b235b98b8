// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the cache of one run compresses, and the options of the library that say so.
//! Read before this: llama3/model_config.hpp, diffkv/cache/cache_options.hpp.
//! Read next: llama3/paged_backend.hpp.
#include "llama3/model_config.hpp"

#include <diffkv/cache/cache_options.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <optional>
#include <vector>

namespace llama3 {

struct cache_settings {
  diffkv::format_spec high               = diffkv::k8v4::spec;
  std::optional<diffkv::format_spec> low = diffkv::k4v2::spec;
  diffkv::policy_kind policy             = diffkv::policy_kind::relative;
  diffkv::thresholds limits              = {2.0f, 0.0f};
  int budget                             = 256;  //!< of the static policy, tokens per row
  int window                             = 64;
  int score_every                        = 4;
  diffkv::catch_up_schedule schedule     = diffkv::catch_up_schedule::by_batch;
  diffkv::conditioning conditioning = diffkv::conditioning::centred | diffkv::conditioning::rotated;
  std::optional<float> clip{};  //!< of 2-bit and 1-bit codes; none: the library's default
};

//! 16-bit pages, nothing conditioned, nothing pruned: what a compressed cache is compared with.
[[nodiscard]] cache_settings uncompressed_settings();

//! A cache of one slot with pages for all of `max_tokens`.
//! @param key_offsets  [num_layers, num_heads, head_dim] where the settings are centred, else empty
//! @throws diffkv::invalid_argument naming the setting that is not legal; std::runtime_error if the
//!         sequence needs more pages than a pool can have
[[nodiscard]] diffkv::cache_options cache_options_for(model_config const& config,
                                                      cache_settings const& settings,
                                                      int max_tokens,
                                                      std::vector<float> key_offsets);

//! @param harmonic  where the policy runs, on the host or the device; must outlive its use
[[nodiscard]] diffkv::any_policy policy_for(cache_settings const& settings,
                                            diffkv::harmonic_ref harmonic);

//! Whether a cache of these settings can be, before there is one.
//! @throws as cache_options_for does
void check_settings(model_config const& config, cache_settings const& settings, int max_tokens);

}  // namespace llama3
