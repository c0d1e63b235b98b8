// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums over a vector with a fixed order that compilers can turn into wide instructions.
//! Read before this: host/step.hpp.  Read next: host/logit.hpp.

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

//! y += w * x.
inline void add_scaled(float* y, float w, float const* x, int n) noexcept
{
  for (int d = 0; d < n; ++d) { y[d] += w * x[d]; }
}

}  // namespace diffkv::host
