// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Root-mean-square normalisation: one CTA per token.
#include "llama3/cuda/half.hpp"
#include "llama3/cuda/kernels.hpp"
#include "llama3/cuda/launch.cuh"

#include <cub/block/block_reduce.cuh>

namespace llama3 {
namespace {
constexpr int norm_threads = 512;

template <int Size>
__global__ void __launch_bounds__(norm_threads)
  rms_norm_kernel(float const* hidden, float const* weight, int width, float epsilon, __half* out)
{
  using block_sum = cub::BlockReduce<float, norm_threads>;
  __shared__ typename block_sum::TempStorage storage;
  __shared__ float shared_factor;
  wait_for_previous();
  float const* const from = hidden + std::int64_t{blockIdx.x} * width;
  __half* const to        = out + std::int64_t{blockIdx.x} * width;
  int const first         = static_cast<int>(threadIdx.x) * Size;
  constexpr int stride    = norm_threads * Size;

  float squares = 0.0f;
  for (int column = first; column < width; column += stride) {
    auto const x = load_pack<Size>(from + column);
#pragma unroll
    for (int i = 0; i < Size; ++i) { squares += x.at[i] * x.at[i]; }
  }
  float const sum = block_sum{storage}.Sum(squares);
  if (threadIdx.x == 0) { shared_factor = rsqrtf(sum / static_cast<float>(width) + epsilon); }
  __syncthreads();

  float const factor = shared_factor;
  for (int column = first; column < width; column += stride) {  // from the first-level cache
    auto const x = load_pack<Size>(from + column);
    auto const w = load_pack<Size>(weight + column);
    pack<__half, Size> y;
#pragma unroll
    for (int i = 0; i < Size; ++i) { y.at[i] = saturated_half(x.at[i] * factor * w.at[i]); }
    store_pack<Size>(y, to + column);
  }
}
}  // namespace

void rms_norm(float const* hidden, float const* weight, int num_tokens, int width, float epsilon,
              __half* out, cudaStream_t stream)
{
  bool const wide = fits_packs<4>(width, hidden, weight, out);
  launch(wide ? rms_norm_kernel<4> : rms_norm_kernel<1>, num_tokens, norm_threads, stream, hidden,
         weight, width, epsilon, out);
}
}  // namespace llama3
