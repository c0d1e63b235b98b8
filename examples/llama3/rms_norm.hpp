// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Root-mean-square normalisation of a hidden vector.
//! Read next: llama3/model.hpp.

#include <cmath>    // sqrt
#include <cstddef>  // size_t

namespace llama3 {

//! out = x / sqrt(mean(x^2) + epsilon) * weight; the sum in double, epsilon as the config has it.
//! @param[in]  x, weight  [size]
//! @param[out] out        [size]; may be `x`
inline void rms_norm(float const* x, float const* weight, std::size_t size, double epsilon,
                     float* out) noexcept
{
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) { sum += static_cast<double>(x[i]) * x[i]; }
  auto const factor =
    static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(size) + epsilon));
  for (std::size_t i = 0; i < size; ++i) { out[i] = x[i] * factor * weight[i]; }
}

}  // namespace llama3
