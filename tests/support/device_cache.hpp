// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache in device memory with the extents of one in host memory, and copies between the two: a
//! device operation and its host twin start from the same state, and what they leave is compared.
#include <diffkv/table/cache_ref.hpp>

#include <cstring>  // memcmp
#include <string>
#include <type_traits>  // remove_reference_t
#include <vector>

#include "support/device.hpp"

namespace diffkv::test {

namespace detail {

//! Calls f(name, pointer, bytes) for each array that a cache_ref points at and that operations may
//! change; the pointer by reference.
template <class F>
void for_each_field(cache_ref& c, F&& f)
{
  auto const one = [&](char const* name, auto*& data, std::size_t count) {
    f(name, data, data == nullptr ? 0 : count * sizeof *data);
  };
  cache_shape const& shape = c.shape;
  std::size_t const rows   = shape.num_rows();
  std::size_t const layers = std::size_t{shape.num_slots} * shape.num_layers;
  std::size_t const ring   = shape.num_ring_queries();
  one("pool", c.pool.base, std::size_t{c.pool.num_pages} * c.pool.page_bytes);
  one("ring ids", c.ring.ids, c.ring.capacity);
  one("ring head", c.ring.head, 1);
  one("ring tail", c.ring.tail, 1);
  one("held", c.ring.held, (c.ring.capacity + 31) / 32);
  one("table", c.table.entries, rows * c.table.row_entries);
  one("rows", c.state.rows, rows);
  one("window", c.state.window, rows * static_cast<std::size_t>(c.state.window_tokens));
  one("candidates", c.state.candidates, rows * num_stored_tiers * c.state.candidates_per_tier);
  one("layers", c.state.layers, layers);
  one("queries", c.queries.queries, ring * static_cast<std::size_t>(shape.head_dim));
  one("query codes", c.queries.codes, ring * static_cast<std::size_t>(shape.head_dim));
  one("largest of queries", c.queries.largest, ring);
  one("lse", c.queries.lse, ring);
  one("offset logits", c.queries.offset_logits, ring);
}

struct named_bytes {
  char const* name;
  void* data;
  std::size_t bytes;
};
[[nodiscard]] inline std::vector<named_bytes> fields_of(cache_ref c)
{
  std::vector<named_bytes> all;
  for_each_field(c, [&](char const* name, auto* data, std::size_t bytes) {
    all.push_back({name, data, bytes});
  });
  return all;
}

//! Calls f(pointer of a, pointer of b, bytes) for each of those arrays that both have.
template <class F>
void for_each_array(cache_ref const& a, cache_ref const& b, F&& f)
{
  auto const x = fields_of(a);
  auto const y = fields_of(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].bytes > 0 && y[i].bytes > 0) { f(x[i].data, y[i].data, x[i].bytes); }
  }
}

}  // namespace detail

//! What `b` has that `a` has not; empty if all arrays are the same.
[[nodiscard]] inline std::string difference_of(cache_ref const& a, cache_ref const& b)
{
  std::string different;
  auto const names = detail::fields_of(a);
  detail::for_each_array(a, b, [&](void const* x, void const* y, std::size_t bytes) {
    if (std::memcmp(x, y, bytes) == 0) { return; }
    std::size_t first = 0;
    while (static_cast<char const*>(x)[first] == static_cast<char const*>(y)[first]) { ++first; }
    for (auto const& field : names) {
      if (field.data == x) {
        different += std::string{field.name} + " from byte " + std::to_string(first) + "; ";
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
    detail::for_each_field(ref_, [&](char const*, auto*& data, std::size_t bytes) {
      void* p = nullptr;
      if (bytes > 0) {
        check(cudaMalloc(&p, bytes), "cudaMalloc");
        owned_.push_back(p);
      }
      data = static_cast<std::remove_reference_t<decltype(data)>>(p);
    });
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
