// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Chooses the page size for a set of formats, at compile time.
//! Read before this: page/page_geometry.hpp.  Read next: page/page_layout.hpp.
#include <diffkv/page/page_geometry.hpp>

#include <cstddef>  // size_t

namespace diffkv {

namespace detail {

inline constexpr int least_tokens_per_page      = 32;
inline constexpr int typical_row_tokens         = 4096;
inline constexpr std::uint32_t usual_page_limit = 8192;

[[nodiscard]] constexpr bool holds_enough(format_spec const* formats, std::size_t count,
                                          int head_dim, std::uint32_t page_bytes) noexcept
{
  for (std::size_t i = 0; i < count; ++i) {
    if (tokens_per_page(formats[i], head_dim, page_bytes) < least_tokens_per_page) { return false; }
  }
  return true;
}

//! Share of a page that no token can use, averaged over the formats, plus half a page per tier
//! against the bytes of a typical row that is split evenly over the tiers.
[[nodiscard]] constexpr double page_waste(format_spec const* formats, std::size_t count,
                                          int head_dim, std::uint32_t page_bytes) noexcept
{
  auto const tiers = static_cast<double>(count);
  double unused    = 0.0;
  double row_bytes = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    double const token = bytes_per_block(formats[i], head_dim) / double{block_tokens};
    unused += 1.0 - tokens_per_page(formats[i], head_dim, page_bytes) * token / page_bytes;
    row_bytes += typical_row_tokens / tiers * token;
  }
  return unused / tiers + tiers * 0.5 * page_bytes / row_bytes;
}

[[nodiscard]] constexpr std::uint32_t search_page_bytes(format_spec const* formats,
                                                        std::size_t count, int head_dim) noexcept
{
  std::uint32_t smallest = page_alignment;
  while (!holds_enough(formats, count, head_dim, smallest)) { smallest += page_alignment; }
  std::uint32_t const limit = max_of(usual_page_limit, smallest + smallest / 8);
  std::uint32_t best        = smallest;
  double least              = page_waste(formats, count, head_dim, smallest);
  for (std::uint32_t bytes = smallest; bytes <= limit; bytes += page_alignment) {
    if (!holds_enough(formats, count, head_dim, bytes)) { continue; }
    double const waste = page_waste(formats, count, head_dim, bytes);
    if (waste < least) {
      least = waste;
      best  = bytes;
    }
  }
  return best;
}

}  // namespace detail

//! Page size for these formats, in bytes: a multiple of 128 at which each format holds 32 tokens or
//! more and least is wasted (docs/page_format.md has the rule).
//! @pre each format is legal at head_dim
[[nodiscard]] constexpr std::uint32_t best_page_bytes(int head_dim, format_spec high) noexcept
{
  return detail::search_page_bytes(&high, 1, head_dim);
}
[[nodiscard]] constexpr std::uint32_t best_page_bytes(int head_dim, format_spec high,
                                                      format_spec low) noexcept
{
  format_spec const formats[] = {high, low};
  return detail::search_page_bytes(formats, 2, head_dim);
}

static_assert(best_page_bytes(128, k8v4::spec, k4v2::spec) == 7168);
static_assert(best_page_bytes(128, k8v8::spec) == 8704);
static_assert(best_page_bytes(128, k16v16::spec) == 16640);
static_assert(best_page_bytes(64, k8v4::spec, k4v2::spec) == 7168);

}  // namespace diffkv
