// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Owners of what the GPU's runtime hands out: arrays, a stream, a graph, an event.
//! Read next: llama3/cuda/device_weights.hpp.
#include <diffkv/core/device_memory.hpp>

#include <cstdint>
#include <utility>  // exchange
#include <vector>

namespace llama3 {

template <class T>
using device_array = diffkv::buffer<T, diffkv::cuda_async_resource>;
template <class T>
using pinned_array = diffkv::buffer<T, diffkv::cuda_pinned_resource>;

//! `size` elements in device memory, not written to yet; ordered in `stream`.
template <class T>
[[nodiscard]] device_array<T> make_array(std::int64_t size, cudaStream_t stream)
{
  return device_array<T>{static_cast<std::size_t>(size), diffkv::cuda_async_resource{stream}};
}

//! The same full of zeros: for what is read, though not used, where nobody has written, and for what cuBLAS
//! writes, which tools that look for memory without a first value do not see.
template <class T>
[[nodiscard]] device_array<T> make_cleared_array(std::int64_t size, cudaStream_t stream)
{
  auto array = make_array<T>(size, stream);
  DIFFKV_CUDA_TRY(cudaMemsetAsync(array.data(), 0, array.size() * sizeof(T), stream));
  return array;
}

//! A stream of the current device that does not wait for the default stream.
class gpu_stream {
 public:
  gpu_stream() { DIFFKV_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  gpu_stream(gpu_stream const&)            = delete;
  gpu_stream& operator=(gpu_stream const&) = delete;
  ~gpu_stream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void wait() const { DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

//! Work that was captured, ready to be launched again and again.
class step_graph {
 public:
  //! @param work  called once: what it launches in `stream` is the graph
  template <class Work>
  step_graph(cudaStream_t stream, Work&& work)
  {
    cudaGraph_t captured = nullptr;
    DIFFKV_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    try {
      work();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &captured));
      if (captured != nullptr) { static_cast<void>(cudaGraphDestroy(captured)); }
      throw;
    }
    DIFFKV_CUDA_TRY(cudaStreamEndCapture(stream, &captured));
    cudaError_t const made = cudaGraphInstantiate(&graph_, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    DIFFKV_CUDA_TRY(made);
  }
  step_graph(step_graph&& other) noexcept : graph_{std::exchange(other.graph_, nullptr)} {}
  step_graph& operator=(step_graph&&) = delete;
  ~step_graph()
  {
    if (graph_ != nullptr) { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  }

  void launch(cudaStream_t stream) const { DIFFKV_CUDA_TRY(cudaGraphLaunch(graph_, stream)); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

//! A point in a stream that the host can wait for.
class gpu_event {
 public:
  gpu_event() { DIFFKV_CUDA_TRY(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  gpu_event(gpu_event&& other) noexcept : event_{std::exchange(other.event_, nullptr)} {}
  gpu_event(gpu_event const&)            = delete;
  gpu_event& operator=(gpu_event const&) = delete;
  ~gpu_event()
  {
    if (event_ != nullptr) { static_cast<void>(cudaEventDestroy(event_)); }
  }

  void record(cudaStream_t stream) { DIFFKV_CUDA_TRY(cudaEventRecord(event_, stream)); }
  void wait() const { DIFFKV_CUDA_TRY(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

//! Copies `values` to `to`, in device memory. Waits for `stream`: a copy from pageable memory may still be
//! reading it when the call returns.
template <class T>
void copy_to_device(std::vector<T> const& values, T* to, cudaStream_t stream)
{
  if (values.empty()) { return; }
  DIFFKV_CUDA_TRY(
    cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
}

//! `values` in device memory. Waits for `stream`.
template <class T>
[[nodiscard]] device_array<T> to_device(std::vector<T> const& values, cudaStream_t stream)
{
  auto there = make_array<T>(static_cast<std::int64_t>(values.size()), stream);
  copy_to_device(values, there.data(), stream);
  return there;
}

//! Waits for `stream`.
template <class T>
[[nodiscard]] std::vector<T> to_host(T const* from, std::size_t count, cudaStream_t stream)
{
  std::vector<T> here(count);
  if (count > 0) {
    DIFFKV_CUDA_TRY(
      cudaMemcpyAsync(here.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  }
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
  return here;
}

}  // namespace llama3
