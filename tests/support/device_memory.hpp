// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Memory of tests that keep everything in one stream's order: pinned pairs, and a counting resource.
#include <memory>
#include <vector>

#include "support/device.hpp"

namespace diffkv::test {

//! Memory that host and device both reach.
template <class T>
class pinned_array {
 public:
  explicit pinned_array(std::size_t size) : size_{size}
  {
    void* p = nullptr;
    check(cudaMallocHost(&p, size * sizeof(T) + 1), "cudaMallocHost");
    data_ = static_cast<T*>(p);
    for (std::size_t i = 0; i < size; ++i) { data_[i] = T{}; }
  }
  pinned_array(pinned_array const&)            = delete;
  pinned_array& operator=(pinned_array const&) = delete;
  ~pinned_array() { cudaFreeHost(data_); }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* begin() const noexcept { return data_; }
  [[nodiscard]] T* end() const noexcept { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

//! A device array and its source in pinned memory: copies do not make the host wait.
template <class T>
class staged_array {
 public:
  explicit staged_array(std::size_t size) : host_{size}, device_{size} {}

  [[nodiscard]] pinned_array<T> const& host() const noexcept { return host_; }
  [[nodiscard]] T* device() const noexcept { return device_.data(); }
  void upload(cudaStream_t stream) const
  {
    check(cudaMemcpyAsync(device_.data(), host_.data(), host_.size() * sizeof(T),
                          cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  }
  void download(cudaStream_t stream) const
  {
    check(cudaMemcpyAsync(host_.data(), device_.data(), host_.size() * sizeof(T),
                          cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
  }

 private:
  pinned_array<T> host_;
  device_array<T> device_;
};

//! What a counting resource was asked for; shared by its copies.
struct device_ledger {
  std::size_t calls = 0;
  std::size_t live  = 0;  //!< allocations not yet given back
  std::size_t bytes = 0;
  bool mismatch     = false;
};

//! Memory resource of a test's own. What nobody wrote reads as NaN.
struct counting_device_resource {
  static constexpr bool is_host_accessible = false;
  std::shared_ptr<device_ledger> book      = std::make_shared<device_ledger>();

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment)
  {
    void* p = nullptr;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    check(cudaMemset(p, 0xFF, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
    ++book->calls;
    ++book->live;
    book->bytes += bytes;
    book->mismatch = book->mismatch || reinterpret_cast<std::size_t>(p) % alignment != 0;
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t) noexcept
  {
    book->mismatch = book->mismatch || book->live == 0 || book->bytes < bytes;
    --book->live;
    book->bytes -= bytes;
    cudaFree(p);
  }
};

}  // namespace diffkv::test
