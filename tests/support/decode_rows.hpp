// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows filled at random, and decode attention over them beside the f64 reference.
#include <diffkv/host/decode_attention.hpp>
#include <diffkv/policy/paper.hpp>

#include <vector>

#include "reference/attention_f64.hpp"
#include "support/difference.hpp"

namespace diffkv::test {

//! Fills row (slot, layer, head) with random vectors, oldest in the low tier, and makes the sequence
//! as long. Vectors are conditioned as `append` would.
inline void fill_row(host::context const& ctx, std::uint32_t slot, std::uint32_t layer,
                     std::uint32_t head, tier_counts tokens, random& r, float size = 1.0f)
{
  cache_ref const& cache = ctx.cache;
  std::size_t const row  = cache.shape.row(slot, layer, head);
  auto const dim         = static_cast<std::size_t>(cache.shape.head_dim);
  reserve_row(ctx, row, tokens);
  for (tier t : {tier::low, tier::high}) {
    for (slot_index s = 0; s < tokens.of(t); ++s) {
      auto key         = r.floats(dim, -size, size);
      auto value       = r.floats(dim, -size, size);
      auto const first = t == tier::low ? 0u : tokens.low;
      condition_key(key.data(), cache.key_offset(layer, head), cache.shape.head_dim,
                    cache.conditioned);
      condition_rotation(value.data(), cache.shape.head_dim, cache.conditioned);
      write_token(ctx, row, t, s, key.data(), value.data(), 0.0f,
                  static_cast<std::int32_t>(first + s));
    }
  }
  cache.layer(slot, layer).num_tokens = static_cast<std::int32_t>(tokens.sum());
}

struct decoded {
  std::vector<float> out;  //!< [count, num_q_heads, head_dim]
  std::vector<float> lse;  //!< [count, num_q_heads]
};

//! Decode attention without the score path. Outputs start as 123, so that what is not written shows.
[[nodiscard]] inline decoded decode_rows(host::context const& ctx,
                                         std::vector<std::uint32_t> const& slots,
                                         std::uint32_t layer, attention_options const& options,
                                         std::vector<float> const& query)
{
  cache_shape const& shape = ctx.cache.shape;
  auto const count         = static_cast<std::uint32_t>(slots.size());
  decoded d{std::vector<float>(query.size(), 123.0f),
            std::vector<float>(std::size_t{count} * shape.num_q_heads(), 123.0f)};
  host::decode_attention(ctx, slots.data(), count, layer, paper_policy{}, options,
                         packed(query.data(), shape.num_q_heads(), shape.head_dim),
                         packed(d.out.data(), shape.num_q_heads(), shape.head_dim), d.lse.data(),
                         false);
  return d;
}

struct decode_errors {
  double out = 0.0;
  double lse = 0.0;
};

//! Largest differences between `d` and the f64 reference over all sequences and q_heads.
[[nodiscard]] inline decode_errors errors_of(decoded const& d, host::context const& ctx,
                                             std::vector<std::uint32_t> const& slots,
                                             std::uint32_t layer, attention_options const& options,
                                             std::vector<float> const& query)
{
  cache_shape const& shape = ctx.cache.shape;
  auto const dim           = static_cast<std::size_t>(shape.head_dim);
  decode_errors errors{};
  for (std::size_t s = 0; s < slots.size(); ++s) {
    for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
      auto const tokens = tokens_of(ctx, slots[s], layer, head);
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        std::size_t const at = s * shape.num_q_heads() + head * shape.group_size + g;
        auto const expected  = attend_f64(tokens, query.data() + at * dim, shape.head_dim,
                                          ctx.cache.layer(slots[s], layer).num_tokens - 1, options);
        std::vector<float> const out(d.out.begin() + static_cast<std::ptrdiff_t>(at * dim),
                                     d.out.begin() + static_cast<std::ptrdiff_t>((at + 1) * dim));
        errors.out = std::fmax(errors.out, difference(out, expected.out));
        errors.lse = std::fmax(errors.lse, difference(d.lse[at], expected.lse));
      }
    }
  }
  return errors;
}

//! 1 / sqrt(head_dim).
[[nodiscard]] inline attention_options default_options(int head_dim) noexcept
{
  attention_options options{};
  options.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return options;
}

}  // namespace diffkv::test
