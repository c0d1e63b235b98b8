// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums over a vector with a fixed order that compilers can turn into wide instructions.
//! Read before this: host/step.hpp.  Read next: host/logit.hpp.
#include <cstddef>  // ptrdiff_t

namespace diffkv::host {

//! sum of a[d] * b[d], f32, in 16 interleaved partial sums; the same order on every run.
//! @error  at most (n / 16 + 5) roundings deep
[[nodiscard]] inline float dot(float const* a, float const* b, int n) noexcept
{
  constexpr int lanes  = 16;
  float partial[lanes] = {};
  int d                = 0;
  for (; d + lanes <= n; d += lanes) {
    for (int i = 0; i < lanes; ++i) { partial[i] += a[d + i] * b[d + i]; }
  }
  for (int i = 0; i < lanes && d < n; ++d, ++i) { partial[i] += a[d] * b[d]; }
  // Spelled out, the sum of the sums stays in registers.
  float eight[8];
  float four[4];
  for (int i = 0; i < 8; ++i) { eight[i] = partial[i] + partial[i + 8]; }
  for (int i = 0; i < 4; ++i) { four[i] = eight[i] + eight[i + 4]; }
  return (four[0] + four[2]) + (four[1] + four[3]);
}

//! No weight of a softmax is negative: this one leaves its vector out, whatever that holds.
inline constexpr float left_out = -1.0f;

namespace detail {
//! Elements [0, Lanes) of y += sum of weights[i] * x[i]; the sums stay in registers over all vectors.
template <int Lanes>
void add_weighted_lanes(float* y, float const* weights, float const* x, int count, int n) noexcept
{
  float sums[Lanes];
  for (int l = 0; l < Lanes; ++l) { sums[l] = y[l]; }
  for (int i = 0; i < count; ++i) {
    float const w = weights[i];
    if (w == left_out) { continue; }
    float const* const from = x + static_cast<std::ptrdiff_t>(i) * n;
    for (int l = 0; l < Lanes; ++l) { sums[l] += w * from[l]; }
  }
  for (int l = 0; l < Lanes; ++l) { y[l] = sums[l]; }
}
}  // namespace detail

//! y += weights[0] * x[0] + ... + weights[count - 1] * x[count - 1], in this order per element.
//! @param weights  [count], `left_out` for vectors that are not to be read
//! @param x        [count, n]
inline void add_weighted(float* y, float const* weights, float const* x, int count, int n) noexcept
{
  int d = 0;
  for (; d + 64 <= n; d += 64) { detail::add_weighted_lanes<64>(y + d, weights, x + d, count, n); }
  for (; d + 16 <= n; d += 16) { detail::add_weighted_lanes<16>(y + d, weights, x + d, count, n); }
  for (; d < n; ++d) { detail::add_weighted_lanes<1>(y + d, weights, x + d, count, n); }
}

}  // namespace diffkv::host
