// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which sequences a launch is for: in device memory, so that a captured graph serves other batches.
//! Read before this: table/row_state.hpp.  Read next: table/cache_ref.hpp.
#include <diffkv/core/types.hpp>

#include <cstdint>

namespace diffkv {

//! Handle of a batch. Grids are sized by `capacity`; a replay uses as many as `count` says then.
struct batch_ref {
  std::uint32_t const* slots = nullptr;  //!< [capacity] different slots, the first *count are valid
  std::uint32_t const* count = nullptr;  //!< device memory; null: all of `capacity`
  std::uint32_t capacity     = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE std::uint32_t size() const noexcept
  {
    return count == nullptr ? capacity : *count < capacity ? *count : capacity;
  }
};

}  // namespace diffkv
