// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Device memory for benches, and the stream they run in.
#include <diffkv/core/device_memory.hpp>
#include <diffkv/table/cache_ref.hpp>

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

//! A lag ring as cache_options would make it.
//! @param memory(n, element)  device memory for n elements like the second argument
template <class Memory>
diffkv::query_ring_ref make_query_ring(diffkv::cache_ref const& cache, bool exact_lagged_queries,
                                       Memory&& memory)
{
  diffkv::cache_shape const& s = cache.shape;
  diffkv::query_ring_ref ring{};
  std::size_t const queries  = s.num_ring_queries();
  std::size_t const elements = queries * static_cast<std::size_t>(s.head_dim);
  ring.rounding = diffkv::ring_rounding(cache.tiers.high.format.key, cache.tiers.low.format.key,
                                        exact_lagged_queries);
  if (ring.rounding == diffkv::lag_rounding::int8) {
    ring.codes   = memory(elements, std::int8_t{});
    ring.largest = memory(queries, 0.0f);
  } else {
    ring.queries = memory(elements, 0.0f);
  }
  ring.lse           = memory(queries, 0.0f);
  ring.offset_logits = memory(queries, 0.0f);
  ring.places        = s.ring_queries();
  ring.num_q_heads   = s.num_q_heads();
  ring.head_dim      = s.head_dim;
  return ring;
}

}  // namespace bench
