// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The geometries of a cache's tiers: one page size, one or two formats.
//! Read before this: page/page_layout.hpp.  Read next: page/tier_layouts.hpp.
#include <diffkv/core/types.hpp>          // tier
#include <diffkv/page/page_geometry.hpp>  // page_geometry

namespace diffkv {

//! How tokens of each tier lie in pages. Any page of the pool can hold either.
struct tier_pages {
  page_geometry high{};
  page_geometry low{};  //!< equal to `high` and unused where has_low is false
  bool has_low = false;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr page_geometry const& of(tier t) const noexcept
  {
    return t == tier::high ? high : low;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t tokens_per_page(tier t) const noexcept
  {
    return static_cast<std::uint32_t>(of(t).tokens_per_page);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t pages_for(
    tier t, std::uint32_t tokens) const noexcept
  {
    return detail::ceil_div(tokens, tokens_per_page(t));
  }
  //! Pages that `tokens` tokens need at most, however they split over the tiers: the conservative
  //! claim of a prompt, and the entries of a page-table row for the longest sequence.
  //! ceil(tokens / least tokens per page) + (tiers - 1); one less can be short.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t most_pages(
    std::uint32_t tokens) const noexcept
  {
    if (tokens == 0) { return 0; }
    std::uint32_t const least =
      has_low ? detail::min_of(tokens_per_page(tier::high), tokens_per_page(tier::low))
              : tokens_per_page(tier::high);
    return detail::ceil_div(tokens, least) + (has_low ? 1u : 0u);
  }
};

[[nodiscard]] constexpr tier_pages make_tier_pages(page_geometry const& high) noexcept
{
  return {high, high, false};
}
[[nodiscard]] constexpr tier_pages make_tier_pages(page_geometry const& high,
                                                   page_geometry const& low) noexcept
{
  return {high, low, true};
}

}  // namespace diffkv
