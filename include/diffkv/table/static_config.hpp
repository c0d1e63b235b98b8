// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What device code must know at compile time about a cache.
//! Read before this: table/row_view.hpp.  Read next: compaction/step_plan.hpp.
#include <diffkv/page/tier_layouts.hpp>
#include <diffkv/policy/contract.hpp>
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/table/cache_ref.hpp>

namespace diffkv {

//! @tparam Policy  fulfils policy/contract.hpp
//! @tparam High, Low, HeadDim, PageBytes  see page/tier_layouts.hpp
template <class Policy, class High, class Low, int HeadDim,
          conditioning Conditioning = conditioning::none, std::uint32_t PageBytes = 0>
struct static_config {
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  using policy_type = Policy;
  using layouts     = tier_layouts<High, Low, HeadDim, PageBytes>;

  static constexpr conditioning conditioned = Conditioning;
};

//! Leaves formats and conditioning to run time: host operations only.
template <class Policy>
struct dynamic_config {
  static_assert(is_policy_v<Policy>, "Policy must fulfil policy/contract.hpp");
  using policy_type = Policy;
};

template <class Config, class = void>
struct is_static_config : std::false_type {};
template <class Config>
struct is_static_config<Config, std::void_t<typename Config::layouts>> : std::true_type {};
template <class Config>
inline constexpr bool is_static_config_v = is_static_config<Config>::value;

namespace detail {
[[nodiscard]] constexpr bool same_geometry(page_geometry const& a, page_geometry const& b) noexcept
{
  return a.format == b.format && a.head_dim == b.head_dim && a.page_bytes == b.page_bytes &&
         a.tokens_per_page == b.tokens_per_page;
}
}  // namespace detail

//! A device operation refuses handles of another configuration before it launches anything.
//! @throws invalid_argument naming what differs
template <class Config>
void expect_config(cache_ref const& cache)
{
  using layouts = typename Config::layouts;
  DIFFKV_EXPECTS(cache.shape.head_dim == layouts::head_dim,
                 "cache: head_dim " + std::to_string(cache.shape.head_dim) +
                   " differs from the configuration's " + std::to_string(layouts::head_dim));
  DIFFKV_EXPECTS(
    cache.tiers.has_low == layouts::has_low &&
      detail::same_geometry(cache.tiers.high, layouts::high::geometry) &&
      (!layouts::has_low || detail::same_geometry(cache.tiers.low, layouts::low::geometry)),
    "cache: formats " + name(cache.tiers.high.format) + " and " + name(cache.tiers.low.format) +
      " in pages of " + std::to_string(cache.tiers.high.page_bytes) +
      " bytes differ from the configuration's");
  DIFFKV_EXPECTS(cache.conditioned == Config::conditioned,
                 "cache: its conditioning differs from the configuration's");
}

}  // namespace diffkv
