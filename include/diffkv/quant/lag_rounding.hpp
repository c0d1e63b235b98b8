// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How queries are kept until their scores are caught up with.
//! Read before this: quant/conditioning.hpp.  Read next: page/fragment_order.hpp.
#include <diffkv/detail/arithmetic.hpp>
#include <diffkv/quant/code_spec.hpp>

#include <cstdint>

namespace diffkv {

//! How lagged queries are rounded before their logits are recomputed.
enum class lag_rounding : std::uint8_t { none, int8 };

//! The default per format: 8-bit queries where the keys are codes, so that integer products serve both.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr lag_rounding default_lag_rounding(code_spec key) noexcept
{
  return key.is_quantised() ? lag_rounding::int8 : lag_rounding::none;
}

//! How the lag ring of a cache rounds: to codes if all who read them want these. A cache of one tier names
//! its key format twice.
//! @param exact  they are wanted as they are (attention_options::exact_lagged_queries)
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr lag_rounding ring_rounding(code_spec high_key,
                                                                      code_spec low_key,
                                                                      bool exact) noexcept
{
  bool const all_codes = default_lag_rounding(high_key) == lag_rounding::int8 &&
                         default_lag_rounding(low_key) == lag_rounding::int8;
  return all_codes && !exact ? lag_rounding::int8 : lag_rounding::none;
}

//! Factor and code of one element of an 8-bit query: q ~ factor * code, |code| <= 127.
//! `largest` is max |q'| over the q_head, NaN if one is NaN; 0 gives code 0, and so does what is not finite
//! (its factor is not finite either, so that no token gets a probability from it).
[[nodiscard]] DIFFKV_HOST_DEVICE inline float int8_query_code(float q, float largest) noexcept
{
  if (largest == 0.0f || !detail::is_finite(largest)) { return 0.0f; }
  float const fits = largest > 0x1p120f ? 0x1p-8f : 1.0f;  // 127 times as much
  return detail::round_half_even(detail::div_rn(detail::mul_rn(q * fits, 127.0f), largest * fits));
}
[[nodiscard]] DIFFKV_HOST_DEVICE inline float int8_query_factor(float scale, float largest) noexcept
{
  return detail::div_rn(detail::mul_rn(scale, largest), 127.0f);
}

}  // namespace diffkv
