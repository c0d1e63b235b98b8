// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the warps of a launch share the pages of a layer, without divisions.
//! Read before this: attention/decode_workspace.hpp.  Read next: attention/plan_rows.cuh.
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/detail/arithmetic.hpp>

#include <cstdint>

namespace diffkv::detail {

//! Division by a number that the host knows: floor(n / d) = (n * magic) >> 63, as n * d < 2^63.
struct divider {
  std::uint32_t divisor = 1;
  std::uint64_t magic   = 0;

  //! @pre 0 < d < 2^31
  [[nodiscard]] static divider by(std::uint32_t d) noexcept
  {
    return {d, (std::uint64_t{1} << 63) / d + 1};
  }
  [[nodiscard]] __device__ std::uint32_t quotient(std::uint32_t n) const noexcept
  {
    return static_cast<std::uint32_t>(__umul64hi(magic, std::uint64_t{n} << 1));
  }
};

//! A grid, and the divisions that sharing pages takes.
struct shared_grid : decode_grid {
  divider of_cta;     //!< by its warps
  divider of_launch;  //!< by its warps
  divider of_few;     //!< by those of a launch of which only few_warps a CTA have a share

  [[nodiscard]] static shared_grid of(decode_grid const& grid) noexcept
  {
    return {grid, divider::by(grid.warps), divider::by(grid.num_warps()),
            divider::by(grid.ctas * min_of(grid.warps, few_warps))};
  }
};

//! How the cost of the pages of a layer is shared by the warps of a launch: share_begin and share_of
//! without divisions.
struct page_shares {
  divider shares;         //!< so many there are
  std::uint32_t sharing;  //!< warps of a CTA that have one
  std::uint32_t total;    //!< cost of the layer's pages
  std::uint32_t each;     //!< total / shares
  std::uint32_t rest;     //!< what is left

  __device__ page_shares(shared_grid const& grid, std::uint32_t cost) noexcept
    : sharing{grid.sharing_warps(cost)}, total{cost}
  {
    shares = sharing < grid.warps ? grid.of_few : grid.of_launch;
    each   = shares.quotient(cost);
    rest   = cost - each * shares.divisor;
  }
  //! @pre at most most_warps shares
  [[nodiscard]] __device__ std::uint32_t begin_of(std::uint32_t share) const noexcept
  {
    return share * each + shares.quotient(share * rest);
  }
  //! Of warp `w` of a CTA.
  [[nodiscard]] __device__ std::uint32_t begin_of_warp(std::uint32_t cta,
                                                       std::uint32_t w) const noexcept
  {
    return begin_of(cta * sharing + min_of(w, sharing));
  }
  [[nodiscard]] __device__ std::uint32_t begin_of_cta(std::uint32_t c) const noexcept
  {
    return begin_of(c * sharing);
  }
  //! CTA that has the page whose last unit of cost is `at`. In 64 bits only where 32 do not hold the
  //! product: slow, and seldom needed.
  [[nodiscard]] __device__ std::uint32_t cta_of(std::uint32_t at) const noexcept
  {
    std::uint32_t const n = shares.divisor;
    return each < 0xFFFF'FFFFu / n / n ? ((at + 1) * n - 1) / (total * sharing)
                                       : share_of(total, at, n) / sharing;
  }
  //! Whether each CTA has one of the pages of a row that goes through it, or more.
  [[nodiscard]] __device__ bool exceed(row_cost const& cost) const noexcept
  {
    return begin_of_cta(1) >= max_of(cost.each.high, cost.each.low);  // no share is less
  }
};

}  // namespace diffkv::detail
