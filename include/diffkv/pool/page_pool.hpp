// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The bytes of all pages.
//! Read before this: page/byte_map.hpp.  Read next: pool/free_ring.hpp.
#include <diffkv/core/memory.hpp>         // buffer
#include <diffkv/core/types.hpp>          // page_id
#include <diffkv/page/page_geometry.hpp>  // page_alignment

#include <cstddef>  // byte

namespace diffkv {

//! Handle of a pool: where each page lies. Offsets are 64-bit, so pools may pass 4 GiB.
struct page_pool_ref {
  std::byte* base          = nullptr;
  std::uint32_t num_pages  = 0;
  std::uint32_t page_bytes = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE std::byte* page(page_id id) const noexcept
  {
    return base + std::size_t{page_bytes} * static_cast<std::uint32_t>(id);
  }
};
static_assert(std::is_trivially_copyable_v<page_pool_ref>);

//! Largest pool: ids are 32-bit and the last one means "no page".
inline constexpr std::uint32_t max_pages = 0xFFFF'FFFEu;

//! Owns the bytes of `num_pages` pages.
template <class MemoryResource = host_resource>
class page_pool {
 public:
  //! @throws invalid_argument if num_pages or page_bytes is out of range; what the resource throws
  page_pool(std::uint32_t num_pages, std::uint32_t page_bytes, MemoryResource resource = {})
    : num_pages_{checked(num_pages, page_bytes)},
      page_bytes_{page_bytes},
      bytes_(std::size_t{num_pages} * page_bytes, resource)
  {}
  [[nodiscard]] page_pool_ref ref() noexcept { return {bytes_.data(), num_pages_, page_bytes_}; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  static std::uint32_t checked(std::uint32_t num_pages, std::uint32_t page_bytes)
  {
    DIFFKV_EXPECTS(num_pages <= max_pages, "num_pages: at most " + std::to_string(max_pages));
    DIFFKV_EXPECTS(page_bytes > 0 && page_bytes % page_alignment == 0,
                   "page_bytes: " + std::to_string(page_bytes) + " is no multiple of 128");
    return num_pages;
  }
  std::uint32_t num_pages_;
  std::uint32_t page_bytes_;
  buffer<std::byte, MemoryResource> bytes_;
};

}  // namespace diffkv
