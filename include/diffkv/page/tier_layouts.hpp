// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The layouts of a cache's tiers as one type, for kernels.
//! Read before this: page/page_layout.hpp, page/tier_pages.hpp.  Read next: page/page_view.hpp.
#include <diffkv/page/page_layout.hpp>
#include <diffkv/page/tier_pages.hpp>

#include <type_traits>

namespace diffkv {

//! @tparam High, Low  formats; Low is `void` for a cache without low tier
//! @tparam PageBytes  0: the best size for these formats
template <class High, class Low, int HeadDim, std::uint32_t PageBytes = 0>
struct tier_layouts {
  static constexpr bool has_low = !std::is_void_v<Low>;
  using high_format             = High;
  using low_format              = std::conditional_t<has_low, Low, High>;

  static constexpr int head_dim = HeadDim;
  static constexpr std::uint32_t page_bytes =
    PageBytes != 0 ? PageBytes
    : has_low      ? best_page_bytes(HeadDim, high_format::spec, low_format::spec)
                   : best_page_bytes(HeadDim, high_format::spec);

  using high = page_layout<high_format, HeadDim, page_bytes>;
  using low  = page_layout<low_format, HeadDim, page_bytes>;  //!< equal to `high` without low tier

  template <tier Tier>
  using of = std::conditional_t<Tier == tier::high, high, low>;

  //! The same at run time; clips are 1 here, a cache's own are in its cache_ref.
  static constexpr tier_pages pages{high::geometry, low::geometry, has_low};
};

}  // namespace diffkv
