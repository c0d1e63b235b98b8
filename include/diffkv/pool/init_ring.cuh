// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A ring in device memory, all pages free at first.
//! Read before this: pool/release.cuh.  Read next: table/cache_ref.hpp.
//!
//! The cells are filled by a kernel, which a plain host compiler cannot launch: therefore the owner in
//! pool/free_ring.hpp only takes the memory, and what fills it stands here.
#include <diffkv/core/launch.cuh>
#include <diffkv/pool/free_ring.hpp>

#include <cstdint>

namespace diffkv {

namespace detail {
//! A thread each for a cell and, in a checked ring, a word of the record.
template <unsigned Threads>
DIFFKV_KERNEL void __launch_bounds__(Threads)
  init_free_ring_kernel(__grid_constant__ free_ring_ref const ring)
{
  wait_for_previous();
  std::uint64_t const i = std::uint64_t{blockIdx.x} * Threads + threadIdx.x;
  if (i == 0) {
    *ring.head = 0;
    *ring.tail = ring.capacity;
  }
  if (i >= ring.capacity) { return; }
  ring.ids[i] = page_id{static_cast<std::uint32_t>(i)};
  if (ring.is_checked() && i < (std::uint64_t{ring.capacity} + 31) / 32) { ring.held[i] = 0; }
}
}  // namespace detail

//! Makes all pages free, whatever the ring held before.
//! @param ring  device memory
//! @throws  invalid_argument for a ring without cells or counters, before any launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost    O(capacity)
inline void init_free_ring(free_ring_ref const& ring, cudaStream_t stream)
{
  validate(ring);
  constexpr unsigned threads = 256;
  auto const grid = static_cast<unsigned>((std::uint64_t{ring.capacity} + threads - 1) / threads);
  detail::launch(detail::init_free_ring_kernel<threads>, {grid, threads, 0, true}, stream, ring);
}

//! An owner in memory that the host cannot reach, as of cuda_async_resource.
//! @param checked  keep a record of held pages: double releases and foreign ids are reported
//! @param stream   fills the cells; work that uses the ring must be ordered behind it
//! @throws invalid_argument if capacity is 0 or above max_pages; cuda_error; what the resource throws
template <class MemoryResource>
[[nodiscard]] free_ring<MemoryResource> make_free_ring(std::uint32_t capacity, bool checked,
                                                       MemoryResource resource, cudaStream_t stream)
{
  free_ring<MemoryResource> ring{unfilled, capacity, checked, resource};
  init_free_ring(ring.ref(), stream);
  return ring;
}

}  // namespace diffkv
