// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Softmax in one pass: a running maximum and sum, and the merge of partial results.
//! Read before this: compaction/step_plan.hpp.  Read next: attention/score_update.hpp.
#include <diffkv/detail/arithmetic.hpp>

#include <cmath>  // exp, log

namespace diffkv {

inline constexpr float minus_infinity = -detail::infinity;

namespace detail {
inline constexpr float log2_of_e = 1.44269504088896341f;
inline constexpr float ln_of_2   = 0.693147180559945309f;
}  // namespace detail

//! Sum of exp(logit - max) over the logits seen; the caller keeps its weighted sum of values on the
//! same reference. Nothing seen is a state, not a special case: max = -inf, sum = 0.
struct softmax_state {
  float max = minus_infinity;
  float sum = 0.0f;

  //! Moves the reference to at least `logit`; returns the factor for what was summed before.
  DIFFKV_HOST_DEVICE float raise(float logit) noexcept
  {
    if (logit <= max) { return 1.0f; }  // false for NaN: it goes on and shows
    float const factor = max == minus_infinity ? 0.0f : expf(max - logit);
    max                = logit;
    sum *= factor;
    return factor;
  }
  //! Weight of `logit` on the current reference; adds it to the sum.  @pre raise(logit) was called
  [[nodiscard]] DIFFKV_HOST_DEVICE float add(float logit) noexcept
  {
    float const weight = logit == minus_infinity ? 0.0f : expf(logit - max);
    sum += weight;
    return weight;
  }
  //! Natural logarithm of the sum of exponentials; -inf if nothing was seen.
  [[nodiscard]] DIFFKV_HOST_DEVICE float log_sum_exp() const noexcept
  {
    return sum == 0.0f ? minus_infinity : max + logf(sum);
  }
};

//! Weights of two partial results, by their log-sum-exp, and the log-sum-exp of both together.
struct merge_weights {
  float a   = 0.0f;
  float b   = 0.0f;
  float lse = minus_infinity;
};

//! Both empty stays empty; one empty leaves the other as it is, bit for bit.
[[nodiscard]] DIFFKV_HOST_DEVICE inline merge_weights weigh(float lse_a, float lse_b) noexcept
{
  if (lse_b == minus_infinity) { return {lse_a == minus_infinity ? 0.0f : 1.0f, 0.0f, lse_a}; }
  if (lse_a == minus_infinity) { return {0.0f, 1.0f, lse_b}; }
  float const max = lse_a > lse_b ? lse_a : lse_b;
  float const a   = expf(lse_a - max);
  float const b   = expf(lse_b - max);
  return {a / (a + b), b / (a + b), max + logf(a + b)};
}

//! out_a := attention over the tokens of both parts, in place; lse_a likewise. A NaN in either part
//! shows even where its weight rounds to 0, as it does in one pass over all tokens.
//! @param out_a, out_b  [head_dim] f32, each normalised by its own sum
DIFFKV_HOST_DEVICE inline void merge(float* out_a, float& lse_a, float const* out_b, float lse_b,
                                     int head_dim) noexcept
{
  merge_weights const w = weigh(lse_a, lse_b);
  bool const a_is_empty = lse_a == minus_infinity;
  bool const b_is_empty = lse_b == minus_infinity;
  lse_a                 = w.lse;
  if (b_is_empty) { return; }
  for (int d = 0; d < head_dim; ++d) {
    out_a[d] = a_is_empty ? out_b[d] : out_a[d] * w.a + out_b[d] * w.b;
  }
}

}  // namespace diffkv
