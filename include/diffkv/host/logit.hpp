// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! From a product q'.k' to a logit: scale, and the soft-cap over the offset that centring took away.
//! Read before this: host/dot.hpp.  Read next: host/lagged_query.hpp.
#include <diffkv/attention/attention_options.hpp>  // attention_options

#include <cmath>  // tanh

namespace diffkv::host {

//! @param product  scale * q'.k'
//! @param offset   scale * q.c: the same for every token of a query. Without a soft-cap softmax does
//!                 not see it and it is left out, which is why lse is corrected at the end.
[[nodiscard]] inline float logit_of(float product, float offset,
                                    attention_options const& options) noexcept
{
  if (options.soft_cap <= 0.0f) { return product; }
  return options.soft_cap * std::tanh((product + offset) / options.soft_cap);
}

//! Whether a query at `query_position` attends to a token; causality is the caller's.
[[nodiscard]] inline bool in_sliding_window(std::int32_t position, std::int32_t query_position,
                                            attention_options const& options) noexcept
{
  return options.sliding_window <= 0 || position > query_position - options.sliding_window;
}

}  // namespace diffkv::host
