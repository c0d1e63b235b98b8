// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The gated activation of the MLP.
//! Read next: llama3/model.hpp.

#include <cmath>    // exp
#include <cstddef>  // size_t

namespace llama3 {

//! out = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
//! @param[in]  gate, up  [size]
//! @param[out] out       [size]; may be `gate` or `up`
inline void swiglu(float const* gate, float const* up, std::size_t size, float* out) noexcept
{
  for (std::size_t i = 0; i < size; ++i) { out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i]; }
}

}  // namespace llama3
