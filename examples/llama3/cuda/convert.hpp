// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Fills arrays in device memory: f16 from f32, random f16, one f32.
//! Read next: llama3/cuda/device_weights.hpp.
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace llama3 {

//! out[i] = in[i], rounded to the nearest f16; beyond its range the largest finite one.
//! @stream  ordered in `stream`, does not wait
void to_half(float const* in, std::int64_t count, __half* out, cudaStream_t stream);

//! out[i] from a normal distribution around 0; of `seed` and i alone.
//! @stream  ordered in `stream`, does not wait
void fill_normal(std::uint64_t seed, float deviation, std::int64_t count, __half* out,
                 cudaStream_t stream);

//! out[i] = value
//! @stream  ordered in `stream`, does not wait
void fill(float value, std::int64_t count, float* out, cudaStream_t stream);

//! Whether this program was built for the GPU that is current.
[[nodiscard]] bool has_code_for_this_gpu() noexcept;

}  // namespace llama3
