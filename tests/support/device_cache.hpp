// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache in device memory with the extents of one in host memory, and copies between the two: a
//! device operation and its host twin start from the same state, and what they leave is compared.
#include <diffkv/table/cache_ref.hpp>

#include <cstring>   // memcmp
#include <iterator>  // size
#include <string>
#include <vector>

#include "support/device.hpp"

namespace diffkv::test {

namespace detail {

//! Calls f(pointer of a, pointer of b, bytes) for each array that a cache_ref points at and that
//! operations may change.
template <class F>
void for_each_array(cache_ref const& a, cache_ref const& b, F&& f)
{
  auto const one = [&](auto* x, auto* y, std::size_t count) {
    if (count > 0 && x != nullptr && y != nullptr) { f(x, y, count * sizeof *x); }
  };
  cache_shape const& shape = a.shape;
  std::size_t const rows   = shape.num_rows();
  std::size_t const layers = std::size_t{shape.num_slots} * shape.num_layers;
  std::size_t const ring   = layers * shape.ring_queries() * shape.num_q_heads();
  one(a.pool.base, b.pool.base, std::size_t{a.pool.num_pages} * a.pool.page_bytes);
  one(a.ring.ids, b.ring.ids, a.ring.capacity);
  one(a.ring.head, b.ring.head, 1);
  one(a.ring.tail, b.ring.tail, 1);
  one(a.ring.held, b.ring.held, (a.ring.capacity + 31) / 32);
  one(a.table.entries, b.table.entries, rows * a.table.row_entries);
  one(a.state.rows, b.state.rows, rows);
  one(a.state.window, b.state.window, rows * static_cast<std::size_t>(a.state.window_tokens));
  one(a.state.candidates, b.state.candidates,
      rows * num_stored_tiers * a.state.candidates_per_tier);
  one(a.state.layers, b.state.layers, layers);
  one(a.queries.queries, b.queries.queries, ring * static_cast<std::size_t>(shape.head_dim));
  one(a.queries.lse, b.queries.lse, ring);
  one(a.queries.offset_logits, b.queries.offset_logits, ring);
}

}  // namespace detail

//! What `b` has that `a` has not; empty if all arrays are the same.
[[nodiscard]] inline std::string difference_of(cache_ref const& a, cache_ref const& b)
{
  char const* const names[] = {"pool",    "ring ids", "ring head",    "ring tail",  "held",
                               "table",   "rows",     "window",       "candidates", "layers",
                               "queries", "lse",      "offset logits"};
  void const* const parts[] = {a.pool.base,
                               a.ring.ids,
                               a.ring.head,
                               a.ring.tail,
                               a.ring.held,
                               a.table.entries,
                               a.state.rows,
                               a.state.window,
                               a.state.candidates,
                               a.state.layers,
                               a.queries.queries,
                               a.queries.lse,
                               a.queries.offset_logits};
  std::string different;
  detail::for_each_array(a, b, [&](void const* x, void const* y, std::size_t bytes) {
    if (std::memcmp(x, y, bytes) == 0) { return; }
    std::size_t first = 0;
    while (static_cast<char const*>(x)[first] == static_cast<char const*>(y)[first]) { ++first; }
    for (std::size_t i = 0; i < std::size(parts); ++i) {
      if (parts[i] == x) {
        different += std::string{names[i]} + " from byte " + std::to_string(first) + "; ";
      }
    }
  });
  return different;
}

//! Owns the device side. The state is that of `host` when it was made.
class device_cache {
 public:
  //! @param num_limits  elements behind host.limits.data
  device_cache(cache_ref const& host, std::size_t num_limits)
    : limits_{host.limits.data, num_limits},
      key_offsets_{host.key_offsets, host.key_offsets == nullptr
                                       ? 0
                                       : std::size_t{host.shape.num_layers} * host.shape.num_heads *
                                           static_cast<std::size_t>(host.shape.head_dim)},
      ref_{host}
  {
    ref_.limits.data = limits_.data();
    ref_.key_offsets = host.key_offsets == nullptr ? nullptr : key_offsets_.data();
    ref_.pool.base   = nullptr;
    allocate(host, ref_.pool.base, host.pool.base);
    allocate(host, ref_.ring.ids, host.ring.ids);
    allocate(host, ref_.ring.head, host.ring.head);
    allocate(host, ref_.ring.tail, host.ring.tail);
    allocate(host, ref_.ring.held, host.ring.held);
    allocate(host, ref_.table.entries, host.table.entries);
    allocate(host, ref_.state.rows, host.state.rows);
    allocate(host, ref_.state.window, host.state.window);
    allocate(host, ref_.state.candidates, host.state.candidates);
    allocate(host, ref_.state.layers, host.state.layers);
    allocate(host, ref_.queries.queries, host.queries.queries);
    allocate(host, ref_.queries.lse, host.queries.lse);
    allocate(host, ref_.queries.offset_logits, host.queries.offset_logits);
    upload(host);
  }
  device_cache(device_cache const&)            = delete;
  device_cache& operator=(device_cache const&) = delete;
  ~device_cache()
  {
    for (void* p : owned_) { cudaFree(p); }
  }

  [[nodiscard]] cache_ref const& ref() const noexcept { return ref_; }
  //! Device := host. Waits.
  void upload(cache_ref const& host) { copy(ref_, host, cudaMemcpyHostToDevice); }
  //! Host := device. Waits; `host` has the same extents.
  void download(cache_ref const& host) const { copy(host, ref_, cudaMemcpyDeviceToHost); }

 private:
  //! Gives `pointer` of ref_ memory for as many bytes as its twin `at` in `host` has.
  template <class T>
  void allocate(cache_ref const& host, T*& pointer, T* at)
  {
    pointer           = nullptr;
    std::size_t bytes = 0;
    detail::for_each_array(host, host, [&](void* x, void*, std::size_t n) {
      if (x == static_cast<void*>(at)) { bytes = n; }
    });
    if (bytes == 0) { return; }
    void* p = nullptr;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    owned_.push_back(p);
    pointer = static_cast<T*>(p);
  }
  static void copy(cache_ref const& to, cache_ref const& from, cudaMemcpyKind kind)
  {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    detail::for_each_array(to, from, [&](void* x, void* y, std::size_t bytes) {
      check(cudaMemcpy(x, y, bytes, kind), "cudaMemcpy");
    });
    check(cudaDeviceSynchronize(), "cudaMemcpy");
  }

  device_array<thresholds> limits_;
  device_array<float> key_offsets_;
  cache_ref ref_;
  std::vector<void*> owned_;
};

}  // namespace diffkv::test
