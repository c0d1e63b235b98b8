// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A query in the lag ring: how it is kept, and how the score path sees it later.
//! Read before this: host/logit.hpp.  Read next: host/scores.hpp.
#include <diffkv/attention/attention_options.hpp>
#include <diffkv/quant/lag_rounding.hpp>
#include <diffkv/table/row_state.hpp>

#include <cmath>
#include <vector>

namespace diffkv::host {

//! NaN if an element is NaN.
[[nodiscard]] inline float largest_magnitude(float const* q, std::int32_t head_dim) noexcept
{
  float largest = 0.0f;
  for (std::int32_t d = 0; d < head_dim; ++d) {
    float const x = std::fabs(q[d]);
    if (!(x <= largest)) { largest = x; }
    if (diffkv::detail::is_nan(x)) { break; }
  }
  return largest;
}

//! Puts a conditioned query into the ring.
//! @param i  query_ring_ref::index
inline void keep_query(query_ring_ref const& ring, std::size_t i, float const* q) noexcept
{
  bool const rounds   = ring.rounding == lag_rounding::int8;
  float const largest = rounds ? largest_magnitude(q, ring.head_dim) : 0.0f;
  if (rounds) { ring.largest[i] = largest; }
  for (std::int32_t d = 0; d < ring.head_dim; ++d) {
    if (rounds) {
      ring.codes_of(i)[d] = static_cast<std::int8_t>(int8_query_code(q[d], largest));
    } else {
      ring.query(i)[d] = q[d];
    }
  }
}

//! A query of the ring, as the logits of one tier see it.
struct lagged_query {
  std::vector<float> codes;  //!< [head_dim] q', or its 8-bit codes
  float factor = 0.0f;       //!< logit = factor * codes.k'
  float offset = 0.0f;       //!< scale * q.c
  float lse    = 0.0f;       //!< of the unrounded query, not corrected
};

//! @param i         query_ring_ref::index
//! @param rounding  of the tier; a ring of codes serves tiers that want these
[[nodiscard]] inline lagged_query make_lagged_query(query_ring_ref const& ring, std::size_t i,
                                                    lag_rounding rounding,
                                                    attention_options const& options)
{
  auto const dim = static_cast<std::size_t>(ring.head_dim);
  lagged_query lagged{std::vector<float>(dim), options.scale, ring.offset_logits[i], ring.lse[i]};
  if (ring.rounding == lag_rounding::int8) {
    for (std::size_t d = 0; d < dim; ++d) { lagged.codes[d] = ring.codes_of(i)[d]; }
    lagged.factor = int8_query_factor(options.scale, ring.largest[i]);
    return lagged;
  }
  float const* const q = ring.query(i);
  lagged.codes.assign(q, q + dim);
  if (rounding == lag_rounding::none) { return lagged; }
  float const largest = largest_magnitude(q, ring.head_dim);
  for (float& x : lagged.codes) { x = int8_query_code(x, largest); }
  lagged.factor = int8_query_factor(options.scale, largest);
  return lagged;
}

}  // namespace diffkv::host
