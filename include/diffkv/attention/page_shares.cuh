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

//! How the cost of the pages of a layer is shared by the warps of a launch: share_begin and share_of in 32
//! bits, wherever these hold the products.
struct page_shares {
  sharing_grid sharing;
  std::uint32_t total;  //!< cost of the layer's pages
  std::uint32_t each;   //!< of a share
  std::uint32_t rest;   //!< what is left

  //! @pre most_warps shares at most, and at least one
  [[nodiscard]] static __device__ page_shares of(sharing_grid const& who,
                                                 std::uint32_t cost) noexcept
  {
    std::uint32_t const each = cost / who.num_shares();
    return {who, cost, each, cost - each * who.num_shares()};
  }
  [[nodiscard]] __device__ std::uint32_t begin_of(std::uint32_t share) const noexcept
  {
    return share * each + share * rest / sharing.num_shares();
  }
  //! Of warp `w` of a CTA.
  [[nodiscard]] __device__ std::uint32_t begin_of_warp(std::uint32_t cta,
                                                       std::uint32_t w) const noexcept
  {
    return begin_of(sharing.share_at(cta, w));
  }
  [[nodiscard]] __device__ std::uint32_t begin_of_cta(std::uint32_t c) const noexcept
  {
    return begin_of(c * sharing.warps);
  }
  //! CTA that has the page whose last unit of cost is `at`. In 64 bits only where 32 do not hold the
  //! product: slow, and seldom needed.
  [[nodiscard]] __device__ std::uint32_t cta_of(std::uint32_t at) const noexcept
  {
    std::uint32_t const n = sharing.num_shares();
    return each < 0xFFFF'FFFFu / n / n ? ((at + 1) * n - 1) / (total * sharing.warps)
                                       : share_of(total, at, n) / sharing.warps;
  }
  //! Whether each CTA has one of the pages of a row that goes through it, or more.
  [[nodiscard]] __device__ bool exceed(row_cost const& cost) const noexcept
  {
    return begin_of_cta(1) >= max_of(cost.each.high, cost.each.low);  // no share is less
  }
};

}  // namespace diffkv::detail
