// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Moves of tokens between the slots of a row.
//! Read before this: host/prompt.hpp.  Read next: host/step.hpp.
#include <diffkv/host/context.hpp>

#include <vector>

namespace diffkv::host {

//! Moves a high token into a low slot: decoded to f32, encoded again in the low format, all in the
//! conditioned domain; score and position travel with it.
inline void demote_token(context const& ctx, row_view const& row, slot_index from, slot_index to)
{
  std::vector<float> x(static_cast<std::size_t>(ctx.cache.shape.head_dim));
  page_view const source = row.page_of(tier::high, from);
  page_view const target = row.page_of(tier::low, to);
  int const s            = row.token_in_page(tier::high, from);
  int const t            = row.token_in_page(tier::low, to);
  ctx.high.read_key(source.bytes, s, x.data());
  ctx.low.write_key(target.bytes, t, x.data());
  ctx.high.read_value(source.bytes, s, x.data());
  ctx.low.write_value(target.bytes, t, x.data());
  target.set_score(t, source.score(s));
  target.set_position(t, source.position(s));
}

//! Copies a token into another slot of the same tier, code by code: encoding again could drift.
inline void copy_token(context const& ctx, row_view const& row, tier in, slot_index from,
                       slot_index to) noexcept
{
  page_geometry const& g = ctx.cache.tiers.of(in);
  page_view const source = row.page_of(in, from);
  page_view const target = row.page_of(in, to);
  int const s            = row.token_in_page(in, from);
  int const t            = row.token_in_page(in, to);
  for (int d = 0; d < g.head_dim; ++d) {
    int const key_bits   = g.format.key.bits;
    int const value_bits = g.format.value.bits;
    target.set_code(g.key_code(t, d), key_bits, source.code(g.key_code(s, d), key_bits));
    target.set_code(g.value_code(t, d), value_bits, source.code(g.value_code(s, d), value_bits));
  }
  if (g.format.key.is_quantised()) {
    for (int k = 0; k < g.format.key.groups; ++k) {
      target.set_key_affine(t, k, source.key_affine(s, k));
    }
  }
  if (g.format.value.is_quantised()) {
    for (int k = 0; k < g.format.value.groups; ++k) {
      target.set_value_affine(t, k, source.value_affine(s, k));
    }
  }
  target.set_score(t, source.score(s));
  target.set_position(t, source.position(s));
}

}  // namespace diffkv::host
