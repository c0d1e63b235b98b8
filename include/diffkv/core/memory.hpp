// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where bytes come from: the memory-resource contract, the host's resource, an owning array.
//! Read before this: core/vectors.hpp.  Read next: core/cuda_error.hpp.
//!
//! A memory resource is a copyable type with
//!     void* allocate(std::size_t bytes, std::size_t alignment);      // throws when it cannot
//!     void  deallocate(void* p, std::size_t bytes, std::size_t alignment) noexcept;
//!     static constexpr bool is_host_accessible;
//! Engines pass their own; diffkv calls it only while an owner is made or destroyed.
#include <diffkv/core/error.hpp>  // DIFFKV_EXPECTS

#include <cstddef>  // size_t
#include <limits>
#include <new>          // operator new
#include <type_traits>  // is_trivially_copyable_v
#include <utility>      // exchange

namespace diffkv {

//! The host's heap.
struct host_resource {
  static constexpr bool is_host_accessible = true;

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment)
  {
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void deallocate(void* p, std::size_t, std::size_t alignment) noexcept
  {
    ::operator delete (p, std::align_val_t{alignment});
  }
};

template <class T, class = void>
struct is_memory_resource : std::false_type {};
template <class T>
struct is_memory_resource<
  T, std::void_t<decltype(static_cast<void*>(
                   std::declval<T&>().allocate(std::size_t{}, std::size_t{}))),
                 decltype(std::declval<T&>().deallocate(nullptr, std::size_t{}, std::size_t{})),
                 decltype(static_cast<bool>(T::is_host_accessible))>> : std::true_type {};
template <class T>
inline constexpr bool is_memory_resource_v = is_memory_resource<T>::value;

//! Owns `size` elements of a trivial type; moves, does not copy. Host memory is value-initialised.
template <class T, class MemoryResource = host_resource>
class buffer {
  static_assert(
    is_memory_resource_v<MemoryResource>,
    "MemoryResource must have allocate(bytes, alignment), deallocate(p, bytes, alignment) "
    "and a constant is_host_accessible (core/memory.hpp)");
  static_assert(std::is_trivially_copyable_v<T>, "buffer holds trivially copyable elements only");

 public:
  static constexpr std::size_t alignment = 256;

  buffer() = default;
  explicit buffer(std::size_t size, MemoryResource resource = {}) : size_{size}, resource_{resource}
  {
    DIFFKV_EXPECTS(size <= std::numeric_limits<std::size_t>::max() / sizeof(T),
                   "size: " + std::to_string(size) + " elements do not fit the address space");
    if (size == 0) { return; }
    data_ = static_cast<T*>(resource_.allocate(size * sizeof(T), alignment));
    if constexpr (MemoryResource::is_host_accessible) {
      for (std::size_t i = 0; i < size; ++i) { ::new (static_cast<void*>(data_ + i)) T{}; }
    }
  }
  buffer(buffer&& other) noexcept
    : data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, 0)},
      resource_{other.resource_}
  {}
  buffer& operator=(buffer&& other) noexcept
  {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(resource_, other.resource_);
    return *this;
  }
  buffer(buffer const&)            = delete;
  buffer& operator=(buffer const&) = delete;
  ~buffer()
  {
    if (data_ != nullptr) { resource_.deallocate(data_, size_ * sizeof(T), alignment); }
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] T const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
  [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_          = nullptr;
  std::size_t size_ = 0;
  MemoryResource resource_{};
};

}  // namespace diffkv
