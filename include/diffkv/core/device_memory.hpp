// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Memory of a GPU, and host memory that it reaches, as memory resources; which device a stream is of.
//! Read before this: core/memory.hpp, core/cuda_error.hpp.  Read next: policy/thresholds.hpp.
#include <diffkv/core/cuda_error.hpp>  // DIFFKV_CUDA_TRY
#include <diffkv/core/memory.hpp>      // the contract

#include <cstdint>  // uintptr_t

namespace diffkv {

//! Makes the device of a stream current for its own life: calls work whichever device is current. A
//! stream that is being captured does not say its device: who captures has made it current.
class device_guard {
 public:
  explicit device_guard(cudaStream_t stream)
  {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    DIFFKV_CUDA_TRY(cudaStreamIsCapturing(stream, &capture));
    if (capture != cudaStreamCaptureStatusNone) { return; }
    int wanted = 0;
    DIFFKV_CUDA_TRY(cudaGetDevice(&previous_));
    DIFFKV_CUDA_TRY(cudaStreamGetDevice(stream, &wanted));
    if (wanted == previous_) { return; }
    DIFFKV_CUDA_TRY(cudaSetDevice(wanted));
    changed_ = true;
  }
  device_guard(device_guard const&)            = delete;
  device_guard& operator=(device_guard const&) = delete;
  ~device_guard()
  {
    if (changed_) { static_cast<void>(cudaSetDevice(previous_)); }
  }

 private:
  int previous_ = 0;
  bool changed_ = false;
};

//! Stream-ordered memory from the default pool of the stream's device. Work that uses it must be
//! ordered behind `stream`; it is given back in the same order.
struct cuda_async_resource {
  static constexpr bool is_host_accessible = false;

  cudaStream_t stream = nullptr;

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t)  // aligned to 256 bytes by CUDA
  {
    device_guard const guard{stream};
    void* p = nullptr;
    DIFFKV_CUDA_TRY(cudaMallocAsync(&p, bytes, stream));
    return p;
  }
  void deallocate(void* p, std::size_t, std::size_t) noexcept
  {
    static_cast<void>(cudaFreeAsync(p, stream));
  }
};
static_assert(is_memory_resource_v<cuda_async_resource>);

//! Page-locked host memory: both processors reach it, and copies from it need not wait.
struct cuda_pinned_resource {
  static constexpr bool is_host_accessible = true;

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t)  // aligned to a page
  {
    void* p = nullptr;
    DIFFKV_CUDA_TRY(cudaMallocHost(&p, bytes));
    return p;
  }
  void deallocate(void* p, std::size_t, std::size_t) noexcept
  {
    static_cast<void>(cudaFreeHost(p));
  }
};
static_assert(is_memory_resource_v<cuda_pinned_resource>);

namespace detail {

//! @throws invalid_argument unless an operation's scratch is there, large enough and aligned
inline void expect_workspace(void const* workspace, std::size_t bytes, std::size_t needed)
{
  constexpr std::size_t alignment = 16;
  DIFFKV_EXPECTS(workspace != nullptr && bytes >= needed &&
                   reinterpret_cast<std::uintptr_t>(workspace) % alignment == 0,
                 "workspace: " + std::to_string(needed) + " bytes aligned to " +
                   std::to_string(alignment) + " are needed, got " + std::to_string(bytes));
}

//! The result of an operation that has nothing to do: zeros, in the order of the stream.
//! @param result  device memory, or null: nobody wants it
template <class T>
void clear_result(T* result, cudaStream_t stream)
{
  if (result == nullptr) { return; }
  device_guard const guard{stream};
  DIFFKV_CUDA_TRY(cudaMemsetAsync(result, 0, sizeof(T), stream));
}

}  // namespace detail

}  // namespace diffkv
