// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Device memory and a stream of a test's own.
#include <cuda_runtime_api.h>

#include <cstddef>
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
