// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A window over one row: its tokens by tier and slot, wherever their pages lie.
//! Read before this: table/row_place.hpp.  Read next: table/static_config.hpp.
#include <diffkv/page/page_view.hpp>
#include <diffkv/table/cache_ref.hpp>

namespace diffkv {

//! Tokens of one tier that lie in one page, one after the other.
struct page_run {
  page_view page{};
  int token           = 0;  //!< the first, counted within the page
  std::uint32_t count = 0;
};

//! Does not own; `cache` must outlive it.
struct row_view {
  cache_ref const* cache = nullptr;
  std::size_t row        = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE row_state& state() const noexcept
  {
    return cache->state.rows[row];
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE page_view page(tier t, std::uint32_t ordinal) const noexcept
  {
    return {cache->pool.page(cache->table.entry(row, t, ordinal)), &cache->tiers.of(t)};
  }
  //! The page that holds `slot`.
  [[nodiscard]] DIFFKV_HOST_DEVICE page_view page_of(tier t, slot_index slot) const noexcept
  {
    return page(t, slot / cache->tiers.tokens_per_page(t));
  }
  //! Where `slot` lies in its page.
  [[nodiscard]] DIFFKV_HOST_DEVICE int token_in_page(tier t, slot_index slot) const noexcept
  {
    return static_cast<int>(slot % cache->tiers.tokens_per_page(t));
  }
  //! At most `most` tokens from `slot` on, as far as its page goes.
  [[nodiscard]] DIFFKV_HOST_DEVICE page_run run(tier t, slot_index slot,
                                                std::uint32_t most) const noexcept
  {
    std::uint32_t const first   = slot % cache->tiers.tokens_per_page(t);
    std::uint32_t const in_page = cache->tiers.tokens_per_page(t) - first;
    return {page_of(t, slot), static_cast<int>(first), most < in_page ? most : in_page};
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE float score(tier t, slot_index slot) const noexcept
  {
    return page_of(t, slot).score(token_in_page(t, slot));
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE std::int32_t position(tier t, slot_index slot) const noexcept
  {
    return page_of(t, slot).position(token_in_page(t, slot));
  }
};

}  // namespace diffkv
