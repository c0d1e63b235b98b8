// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rounding to f16, in which the device keeps weights and the inputs of matrix products.
//! Read next: llama3/cuda/kernels.hpp.
#include <cuda_fp16.h>         // __half
#include <cuda_runtime_api.h>  // __host__, __device__

namespace llama3 {
//! The nearest f16; what lies beyond +-65504 becomes +-65504, and NaN stays NaN.
[[nodiscard]] __host__ __device__ inline __half saturated_half(float x) noexcept
{
  constexpr float largest = 65504.0f;
  return __float2half_rn(x > largest ? largest : x < -largest ? -largest : x);
}
}  // namespace llama3
