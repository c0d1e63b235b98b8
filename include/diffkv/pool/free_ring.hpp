// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which pages are free: a ring of page ids between two counters that only grow.
//! Read before this: pool/page_pool.hpp.  Read next: pool/claim_request.hpp.
#include <diffkv/core/memory.hpp>  // buffer
#include <diffkv/core/types.hpp>   // page_id

#include <cstdint>

namespace diffkv {

//! Handle of a ring. Ids at counters head .. tail - 1 (modulo capacity) are free; counters are 64-bit
//! and never wrap, so "all free" and "none free" never look alike.
//! Claims read and move `head`, releases write at and move `tail`; an object belongs to one stream.
struct free_ring_ref {
  page_id* ids           = nullptr;  //!< [capacity]
  std::uint64_t* head    = nullptr;  //!< pages taken so far
  std::uint64_t* tail    = nullptr;  //!< pages given back so far, the initial ones included
  std::uint32_t capacity = 0;
  //! Checked builds: bit p is set while page p is held; else null.
  std::uint32_t* held = nullptr;

  [[nodiscard]] DIFFKV_HOST_DEVICE std::uint64_t num_free() const noexcept { return *tail - *head; }
  //! The cell of counter `counter`.
  [[nodiscard]] DIFFKV_HOST_DEVICE page_id& cell(std::uint64_t counter) const noexcept
  {
    return ids[counter % capacity];
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE bool is_checked() const noexcept { return held != nullptr; }
};
static_assert(std::is_trivially_copyable_v<free_ring_ref>);

//! @throws invalid_argument for a ring without cells or counters
inline void validate(free_ring_ref const& ring)
{
  DIFFKV_EXPECTS(
    ring.ids != nullptr && ring.head != nullptr && ring.tail != nullptr && ring.capacity > 0,
    "ring: must have cells and counters");
}

//! What a release found wrong; all zero unless the caller has a bug. Only checked rings look.
struct release_report {
  std::uint64_t released = 0;  //!< pages that went back to the ring
  std::uint64_t foreign  = 0;  //!< ids that are no page of this pool: skipped
  std::uint64_t repeated = 0;  //!< pages that were free already: skipped
};

//! Says that an owner's memory is filled later.
struct unfilled_tag {};
inline constexpr unfilled_tag unfilled{};

//! Owns a ring, all pages free at first. In memory that the host cannot reach, `make_free_ring`
//! (pool/init_ring.cuh) makes one.
template <class MemoryResource = host_resource>
class free_ring {
 public:
  //! @param checked  keep a record of held pages: double releases and foreign ids are reported
  //! @throws invalid_argument if capacity is 0 or above max_pages
  explicit free_ring(std::uint32_t capacity, bool checked = DIFFKV_CHECKED != 0,
                     MemoryResource resource = {})
    : free_ring(unfilled, capacity, checked, resource)
  {
    static_assert(MemoryResource::is_host_accessible,
                  "free_ring fills its cells on the host: MemoryResource must be host accessible, "
                  "or the ring made by make_free_ring (pool/init_ring.cuh)");
    for (std::uint32_t i = 0; i < capacity; ++i) { ids_[i] = page_id{i}; }
    counters_[1] = capacity;
  }
  //! Takes the memory and leaves cells, counters and record to be filled before first use.
  free_ring(unfilled_tag, std::uint32_t capacity, bool checked, MemoryResource resource)
    : ids_(checked_capacity(capacity), resource),
      counters_(2, resource),
      held_(checked ? (std::size_t{capacity} + 31) / 32 : 0, resource)
  {}
  [[nodiscard]] free_ring_ref ref() noexcept
  {
    return {ids_.data(), counters_.data(), counters_.data() + 1,
            static_cast<std::uint32_t>(ids_.size()), held_.data()};
  }

 private:
  static std::uint32_t checked_capacity(std::uint32_t capacity)
  {
    DIFFKV_EXPECTS(capacity > 0 && capacity < 0xFFFF'FFFFu,
                   "capacity: a ring needs 1 to 4294967294 pages, got " + std::to_string(capacity));
    return capacity;
  }
  buffer<page_id, MemoryResource> ids_;
  buffer<std::uint64_t, MemoryResource> counters_;
  buffer<std::uint32_t, MemoryResource> held_;
};

}  // namespace diffkv
