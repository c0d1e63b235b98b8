// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a device_twin is made of, and what it counts.
#include <diffkv/cache/cache_options.hpp>
#include <diffkv/policy/any_policy.hpp>
#include <diffkv/table/static_config.hpp>

#include "support/random.hpp"

namespace diffkv::test {

struct twin_setup {
  cache_options options{};
  std::int32_t prompt_tokens = 0;      //!< longest prompt
  std::uint32_t prompts      = 4;      //!< of one admission
  bool captured              = false;  //!< operations are replays of graphs captured once
  std::uint64_t spin_ns      = 0;  //!< in front of each operation a kernel keeps the stream busy
};

struct twin_extents {
  std::uint32_t slots, layers, heads, group;
  std::int32_t max_tokens, window, score_every;
  std::uint32_t num_pages;
};

//! Row by row other thresholds, at which random requests use all tiers.
template <class Config>
[[nodiscard]] twin_setup setup_of(twin_extents const& e, policy_kind kind)
{
  constexpr int head_dim = Config::layouts::head_dim;
  twin_setup setup;
  cache_options& o = setup.options;
  o.shape = {e.slots, e.layers, e.heads, e.group, head_dim, e.max_tokens, e.window, e.score_every};
  o.num_pages    = e.num_pages;
  o.checked_ring = true;
  random r{e.slots * 7ull + e.layers};
  for (std::uint32_t row = 0; row < o.shape.rows_per_slot(); ++row) {
    float const low = r.pick(std::vector<float>{0.0f, 0.3f, 0.7f, 0.9f});
    float const up  = r.pick(std::vector<float>{0.0f, 0.2f, 0.8f});
    o.row_limits.push_back(kind == policy_kind::artifact ? thresholds{2 * low + up, 2 * low}
                                                         : thresholds{low + up, low});
  }
  if (has(Config::conditioned, conditioning::centred)) {
    o.key_offsets = r.floats(std::size_t{o.shape.rows_per_slot()} * head_dim, -1.0f, 1.0f);
  }
  setup.prompt_tokens = e.max_tokens * 2 / 3;
  setup.prompts       = e.slots < 4 ? e.slots : 4;
  return setup;
}

//! Operations of sequences, by what became of them.
struct twin_counts {
  int admitted = 0, refused_prompts = 0, impossible_prompts = 0, stored = 0, stepped = 0,
      refused_steps = 0, released = 0, launches = 0;

  [[nodiscard]] int sum() const
  {
    return admitted + refused_prompts + impossible_prompts + stored + stepped + refused_steps +
           released;
  }
  void add(twin_counts const& o)
  {
    admitted += o.admitted;
    refused_prompts += o.refused_prompts;
    impossible_prompts += o.impossible_prompts;
    stored += o.stored;
    stepped += o.stepped;
    refused_steps += o.refused_steps;
    released += o.released;
    launches += o.launches;
  }
};

}  // namespace diffkv::test
