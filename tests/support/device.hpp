// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Device memory and a stream of a test's own.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace diffkv::test {

inline void check(cudaError_t status, char const* what)
{
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string{what} + ": " + cudaGetErrorString(status));
  }
}

[[nodiscard]] inline int current_device()
{
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

//! Makes a device current, and the one before it again in the end.
class on_device {
 public:
  explicit on_device(int device) : before_{current_device()}
  {
    check(cudaSetDevice(device), "cudaSetDevice");
  }
  on_device(on_device const&)            = delete;
  on_device& operator=(on_device const&) = delete;
  ~on_device() { cudaSetDevice(before_); }

 private:
  int before_;
};

[[nodiscard]] inline bool has_two_devices()
{
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count >= 2;
}
inline constexpr char const* needs_two_devices = "two devices are needed, this machine has one";

//! Bytes that the default pool of a device has handed out, when all that was given back is.
[[nodiscard]] inline std::uint64_t pool_bytes(int device)
{
  on_device const here{device};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  cudaMemPool_t pool  = nullptr;
  std::uint64_t bytes = 0;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes), "used bytes");
  return bytes;
}

//! What comes next in `later` waits for what is in `earlier` now.
inline void order(cudaStream_t earlier, cudaStream_t later)
{
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventRecord(event, earlier), "cudaEventRecord");
  check(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
  check(cudaEventDestroy(event), "cudaEventDestroy");  // lives until it has passed
}

//! Non-blocking: work that strays to the default stream is not ordered with it.
class device_stream {
 public:
  device_stream()
  {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  device_stream(device_stream const&)            = delete;
  device_stream& operator=(device_stream const&) = delete;
  ~device_stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void wait() const
  {
    check(cudaGetLastError(), "launch");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  cudaStream_t stream_ = nullptr;
};

//! `size` elements in device memory; starts as a copy of host data, or filled with 0xFF.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t size) : size_{size}
  {
    check(cudaMalloc(&data_, size * sizeof(T) + 1), "cudaMalloc");
    check(cudaMemset(data_, 0xFF, size * sizeof(T) + 1), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
  }
  device_array(T const* from, std::size_t size) : device_array(size)
  {
    check(cudaMemcpy(data_, from, size * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  explicit device_array(std::vector<T> const& from) : device_array(from.data(), from.size()) {}
  device_array(device_array const&)            = delete;
  device_array& operator=(device_array const&) = delete;
  ~device_array() { cudaFree(data_); }

  [[nodiscard]] T* data() const noexcept { return static_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::vector<T> to_host() const
  {
    std::vector<T> out(size_);
    check(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return out;
  }

 private:
  void* data_       = nullptr;
  std::size_t size_ = 0;
};

}  // namespace diffkv::test
