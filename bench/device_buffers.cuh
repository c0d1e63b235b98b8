// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Device memory for benches, and the stream they run in.
#include <diffkv/core/device_memory.hpp>

#include <cstddef>
#include <vector>

namespace bench {

//! One for all benches of a program; work that strays to the default stream is not ordered with it.
inline cudaStream_t bench_stream()
{
  static cudaStream_t const stream = [] {
    cudaStream_t s = nullptr;
    DIFFKV_CUDA_TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }();
  return stream;
}

template <class T>
using device_buffer = diffkv::buffer<T, diffkv::cuda_async_resource>;

template <class T>
device_buffer<T> on_device(std::size_t size)
{
  return device_buffer<T>(size, {bench_stream()});
}
template <class T>
device_buffer<T> on_device(std::vector<T> const& from)
{
  auto to = on_device<T>(from.size());
  DIFFKV_CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(T),
                                  cudaMemcpyHostToDevice, bench_stream()));
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
  return to;
}
template <class T>
std::vector<T> to_host(device_buffer<T> const& from)
{
  std::vector<T> to(from.size());
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(bench_stream()));
  DIFFKV_CUDA_TRY(
    cudaMemcpy(to.data(), from.data(), to.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return to;
}

}  // namespace bench
