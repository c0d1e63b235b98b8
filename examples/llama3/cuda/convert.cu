// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/convert.hpp"

#include "llama3/cuda/half.hpp"
#include "llama3/cuda/sampling.hpp"  // scrambled

#include <diffkv/core/cuda_error.hpp>

namespace llama3 {
namespace {

constexpr unsigned threads = 256;

[[nodiscard]] unsigned grid_for(std::int64_t count)
{
  constexpr std::int64_t most = 1 << 16;  // every thread takes several elements of a large array
  std::int64_t const ctas     = (count + threads - 1) / threads;
  return static_cast<unsigned>(ctas < most ? ctas : most);
}

//! Calls body(i) for every i below `count`.
template <class Body>
__global__ void for_each_kernel(std::int64_t count, Body body)
{
  std::int64_t const stride = std::int64_t{gridDim.x} * threads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * threads + threadIdx.x; i < count; i += stride) {
    body(i);
  }
}

template <class Body>
void for_each(std::int64_t count, Body const& body, cudaStream_t stream)
{
  if (count <= 0) { return; }
  for_each_kernel<<<grid_for(count), threads, 0, stream>>>(count, body);
  DIFFKV_CUDA_TRY(cudaGetLastError());
}

struct to_half_body {
  float const* in;
  __half* out;
  __device__ void operator()(std::int64_t i) const { out[i] = saturated_half(in[i]); }
};

struct normal_body {
  std::uint64_t seed;
  float deviation;
  __half* out;
  __device__ void operator()(std::int64_t i) const
  {
    std::uint64_t const bits =
      scrambled(scrambled(seed) + static_cast<std::uint64_t>(i) * 0x9E37'79B9'7F4A'7C15u);
    float const u    = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    float const turn = static_cast<float>(bits & 0xFF'FFFFu) * 0x1p-23f;
    // Box and Muller.
    out[i] = __float2half(deviation * sqrtf(-2.0f * logf(u)) * cospif(turn));
  }
};

struct fill_body {
  float value;
  float* out;
  __device__ void operator()(std::int64_t i) const { out[i] = value; }
};

}  // namespace

void to_half(float const* in, std::int64_t count, __half* out, cudaStream_t stream)
{
  for_each(count, to_half_body{in, out}, stream);
}

void fill_normal(std::uint64_t seed, float deviation, std::int64_t count, __half* out,
                 cudaStream_t stream)
{
  for_each(count, normal_body{seed, deviation, out}, stream);
}

bool has_code_for_this_gpu() noexcept
{
  cudaFuncAttributes attributes{};
  bool const has_code =
    cudaFuncGetAttributes(&attributes, for_each_kernel<fill_body>) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return has_code;
}

void fill(float value, std::int64_t count, float* out, cudaStream_t stream)
{
  for_each(count, fill_body{value, out}, stream);
}

}  // namespace llama3
