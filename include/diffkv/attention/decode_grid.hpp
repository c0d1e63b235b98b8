// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the pages of a layer are shared by the warps of a launch: what they cost, and who has a share.
//! Read before this: attention/attention_options.hpp.  Read next: attention/decode_workspace.hpp.
#include <diffkv/detail/arithmetic.hpp>

#include <cstdint>

namespace diffkv {

//! What a page costs a warp, by tier; the unit has no name. Pages of a tier of more tokens
//! take longer to compute, and so do those of a row that catches up with its scores, which may lie beside rows
//! that do not. Measured on an H200
//! (docs/decisions/0010).
struct page_cost {
  static constexpr std::uint32_t plain = 16;         //!< of a high page
  static constexpr std::uint32_t most  = 3 * plain;  //!< of any page

  std::uint32_t high = plain;
  std::uint32_t low  = plain;

  //! @param high_tokens, low_tokens  of a page
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr page_cost of(std::uint32_t high_tokens,
                                                                 std::uint32_t low_tokens,
                                                                 bool catches_up) noexcept
  {
    // Half of it for the bytes, which are as many, half of it for the tokens.
    std::uint32_t const low =
      detail::min_of(plain / 8 * (4 + 4 * low_tokens / high_tokens), 2 * plain);
    return catches_up ? page_cost{scored(plain), scored(low)} : page_cost{plain, low};
  }
  //! Of a tier_layouts.
  template <class Layouts>
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr page_cost of_layouts(bool catches_up) noexcept
  {
    return of(static_cast<std::uint32_t>(Layouts::high::tokens_per_page),
              static_cast<std::uint32_t>(Layouts::low::tokens_per_page), catches_up);
  }
  //! What costs `cost` otherwise, in a row that catches up; exactly, also of many pages.
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint32_t scored(
    std::uint32_t cost) noexcept
  {
    return cost / 2 * 3;
  }
};
static_assert(page_cost::of(32, 64, true).low == 36 &&
              page_cost::of(1, 1000, true).low == page_cost::most);

//! Who has a share of the pages of a launch: the first CTAs, and of each of them the first warps.
struct sharing_grid {
  std::uint32_t ctas  = 0;
  std::uint32_t warps = 0;  //!< of a CTA

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t num_shares() const noexcept
  {
    return ctas * warps;
  }
  //! Share of warp `w` of CTA `c`; of a warp without one, the next one's.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t share_at(std::uint32_t c,
                                                                    std::uint32_t w) const noexcept
  {
    return c < ctas ? c * warps + detail::min_of(w, warps) : num_shares();
  }
};
static_assert(sharing_grid{2, 8}.share_at(0, 9) == 8 && sharing_grid{2, 8}.share_at(1, 0) == 8 &&
              sharing_grid{2, 8}.share_at(2, 1) == 16);

//! How a launch is cut: warps take equal shares of the pages of a layer, by what they cost.
//! - Where there are few pages, only some warps of a CTA have one: each page more is then a large part of a
//!   share, and each share more has to be merged.
//! - Where all rows cost the same, a few CTAs may have none, so that no row goes beyond CTAs that it fills:
//!   what several CTAs have read is merged last.
//! (docs/performance.md)
struct decode_grid {
  std::uint32_t ctas   = 0;
  std::uint32_t warps  = 0;  //!< of a CTA
  std::uint32_t passes = 1;  //!< times a row is read, each for some of its q_heads

  static constexpr std::uint32_t few_warps = 8;  //!< of a CTA
  //! Of a warp: four pages. Less, in the mean, is few.
  static constexpr std::uint32_t few_cost = 4 * page_cost::plain;
  //! One CTA of so many may be left without a share.
  static constexpr std::uint32_t ctas_of_an_idle_one = 16;
  //! Of a warp: 144 pages, if they are plain high ones. From there on memory alone counts, and all CTAs read.
  static constexpr std::uint32_t much_cost = 144 * page_cost::plain;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t num_warps() const noexcept
  {
    return ctas * warps;
  }
  //! CTAs that share rows of equal cost.
  //! @param rows  of the layer, those of one pass
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t ctas_for(
    std::uint32_t rows) const noexcept
  {
    if (rows == 0) { return ctas; }
    std::uint32_t fit = 0;  // so many that each has as many rows, or each row as many of them
    if (rows <= ctas) {
      fit = ctas - ctas % rows;
    } else {
      std::uint32_t const of_cta = detail::ceil_div(rows, ctas);
      fit                        = rows % of_cta == 0 ? rows / of_cta : ctas;
    }
    return ctas - fit <= ctas / ctas_of_an_idle_one ? fit : ctas;
  }
  //! @param cost     of the pages of the layer
  //! @param aligned  ctas_for() if all rows of the layer cost the same, all passes of one together; else
  //!                 `ctas`
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr sharing_grid sharing(
    std::uint32_t cost, std::uint32_t aligned) const noexcept
  {
    bool const is_little = cost / few_cost < num_warps();
    bool const is_much   = cost / much_cost >= num_warps();
    return {is_much ? ctas : aligned, is_little ? detail::min_of(warps, few_warps) : warps};
  }
};
static_assert(decode_grid{132, 12}.ctas_for(8) == 128 && decode_grid{132, 12}.ctas_for(64) == 128 &&
              decode_grid{132, 12}.ctas_for(1024) == 128 &&
              decode_grid{132, 12}.ctas_for(1025) == 132 &&
              decode_grid{132, 12}.ctas_for(40) == 132);

//! The pages of a row, as one pass reads them: high ones, then low ones.
struct row_cost {
  std::uint32_t high_pages = 0;
  std::uint32_t low_pages  = 0;
  page_cost each{};

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t pages() const noexcept
  {
    return high_pages + low_pages;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t total() const noexcept
  {
    return high_pages * each.high + low_pages * each.low;
  }
  //! Of the pages in front of page `page`.  @pre page <= pages()
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t begin_of(
    std::uint32_t page) const noexcept
  {
    return page <= high_pages ? page * each.high
                              : high_pages * each.high + (page - high_pages) * each.low;
  }
  //! The page that `cost` lies in: so many end in front of it, or with it.  @pre cost < total()
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t page_at(
    std::uint32_t cost) const noexcept
  {
    std::uint32_t const of_high = high_pages * each.high;
    return cost < of_high ? cost / each.high : high_pages + (cost - of_high) / each.low;
  }
};
static_assert(row_cost{2, 3, {8, 12}}.page_at(28) == 3 &&
              row_cost{2, 3, {8, 12}}.begin_of(3) == 28);

//! Where share `part` of `parts` of the cost of all pages, one after the other, begins: with the page that
//! this lies in.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t share_begin(std::uint32_t cost,
                                                                     std::uint32_t part,
                                                                     std::uint32_t parts) noexcept
{
  return static_cast<std::uint32_t>(std::uint64_t{cost} * part / parts);
}
//! The last share that begins at `at` or before: it has the page whose last unit of cost that is.
//! @pre at < cost
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t share_of(std::uint32_t cost,
                                                                  std::uint32_t at,
                                                                  std::uint32_t parts) noexcept
{
  return static_cast<std::uint32_t>(((std::uint64_t{at} + 1) * parts - 1) / cost);
}
static_assert(share_begin(10, share_of(10, 4, 3), 3) <= 4 &&
              share_begin(10, share_of(10, 4, 3) + 1, 3) > 4);

}  // namespace diffkv
