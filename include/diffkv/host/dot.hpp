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
  for (int i = 0; d < n; ++d, ++i) { partial[i] += a[d] * b[d]; }
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) { partial[i] += partial[i + width]; }
  }
  return partial[0];
}

//! y += w * x.
inline void add_scaled(float* y, float w, float const* x, int n) noexcept
{
  for (int d = 0; d < n; ++d) { y[d] += w * x[d]; }
}

}  // namespace diffkv::host
