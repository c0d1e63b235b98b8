// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which pages belong to a row: high pages from the left end, low pages from the right end.
//! Read before this: table/cache_shape.hpp.  Read next: table/row_state.hpp.
#include <diffkv/core/types.hpp>  // page_id, tier

#include <cstddef>
#include <cstdint>

namespace diffkv {

//! Handle of a page table [num_rows, row_entries]. The two sides of a row never meet, because
//! row_entries is `tier_pages::most_pages(max_tokens)`.
struct page_table_ref {
  page_id* entries          = nullptr;
  std::uint32_t row_entries = 0;

  //! Entry of page `ordinal` (0, 1, ...) of a tier.
  [[nodiscard]] DIFFKV_HOST_DEVICE page_id& entry(std::size_t row, tier t,
                                                  std::uint32_t ordinal) const noexcept
  {
    std::size_t const column = t == tier::high ? ordinal : row_entries - 1u - ordinal;
    return entries[row * row_entries + column];
  }
};

}  // namespace diffkv
