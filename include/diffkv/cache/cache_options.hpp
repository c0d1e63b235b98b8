// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a cache is made of: extents, formats, conditioning, thresholds, pages.
//! Read before this: host/calibrate.hpp.  Read next: cache/cache_storage.hpp.
#include <diffkv/page/page_size.hpp>
#include <diffkv/policy/thresholds.hpp>
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/table/cache_ref.hpp>
#include <diffkv/table/static_config.hpp>

#include <vector>

namespace diffkv {

//! Options known at run time. `checked` replaces what is left at its default by its meaning.
struct cache_options {
  cache_shape shape{};
  format_spec high         = k8v4::spec;
  format_spec low          = k4v2::spec;
  bool has_low             = true;
  std::uint32_t page_bytes = 0;  //!< 0: the best size for these formats (page/page_size.hpp)
  std::uint32_t num_pages  = 0;
  conditioning conditioned = conditioning::none;
  bool default_clips       = true;  //!< clip per codec from default_clip; false: as in the formats
  thresholds limits{};              //!< for every row, unless row_limits is given
  std::vector<thresholds> row_limits{};  //!< [num_layers, num_heads], shared by all slots, or empty
  //! The lag ring keeps queries in f32, as attention_options::exact_lagged_queries wants them; else as
  //! 8-bit codes, a quarter of the bytes, where the keys of all tiers are codes.
  bool exact_lagged_queries = false;
  bool limits_per_slot      = false;  //!< requests may differ: kv_cache::set_limits
  std::vector<float> key_offsets{};   //!< [num_layers, num_heads, head_dim] if centred, else empty
  bool checked_ring = DIFFKV_CHECKED != 0;
};

//! Options with what a static configuration fixes: formats, head_dim, page size, conditioning.
template <class Config>
[[nodiscard]] cache_options options_for(cache_options options)
{
  if constexpr (is_static_config_v<Config>) {
    using layouts          = typename Config::layouts;
    options.shape.head_dim = layouts::head_dim;
    options.high           = layouts::high_format::spec;
    options.low            = layouts::low_format::spec;
    options.has_low        = layouts::has_low;
    options.page_bytes     = layouts::page_bytes;
    options.conditioned    = Config::conditioned;
  }
  return options;
}

namespace detail {

inline code_spec with_default_clip(code_spec spec, conditioning set) noexcept
{
  spec.clip = default_clip(spec.bits, set);
  return spec;
}

//! Options with every default resolved.
//! @throws invalid_argument naming the first option that is not legal, and its legal values
inline cache_options checked(cache_options o)
{
  diffkv::validate(o.shape);
  diffkv::validate(o.limits);
  for (thresholds const& t : o.row_limits) { diffkv::validate(t); }
  std::size_t const rows = o.shape.rows_per_slot();
  DIFFKV_EXPECTS(o.row_limits.empty() || o.row_limits.size() == rows,
                 "row_limits: " + std::to_string(o.row_limits.size()) + " thresholds for " +
                   std::to_string(rows) + " heads of all layers");
  if (o.default_clips) {
    for (code_spec* spec : {&o.high.key, &o.high.value, &o.low.key, &o.low.value}) {
      *spec = with_default_clip(*spec, o.conditioned);
    }
  }
  if (!o.has_low) { o.low = o.high; }
  // Before the search below, which needs legal formats.
  diffkv::validate(o.high, o.shape.head_dim);
  diffkv::validate(o.low, o.shape.head_dim);
  bool const centred        = has(o.conditioned, conditioning::centred);
  std::size_t const offsets = centred ? rows * static_cast<std::size_t>(o.shape.head_dim) : 0;
  DIFFKV_EXPECTS(o.key_offsets.size() == offsets,
                 "key_offsets: " + std::to_string(o.key_offsets.size()) + " numbers, need " +
                   std::to_string(offsets) + " (num_layers * num_heads * head_dim if centred)");
  for (float c : o.key_offsets) { DIFFKV_EXPECTS(is_finite(c), "key_offsets: must be finite"); }
  if (o.page_bytes == 0) {
    o.page_bytes = o.has_low ? best_page_bytes(o.shape.head_dim, o.high, o.low)
                             : best_page_bytes(o.shape.head_dim, o.high);
  }
  for (format_spec const& format : {o.high, o.low}) {
    static_cast<void>(checked_page_geometry(format, o.shape.head_dim, o.page_bytes));
  }
  DIFFKV_EXPECTS(o.num_pages > 0 && o.num_pages <= max_pages,
                 "num_pages: " + std::to_string(o.num_pages) + " is not within 1 .. " +
                   std::to_string(max_pages));
  return o;
}

}  // namespace detail

//! Geometries of the tiers that these options ask for.
//! @throws invalid_argument as make of a cache does
[[nodiscard]] inline tier_pages tiers_of(cache_options const& options)
{
  cache_options const o    = detail::checked(options);
  page_geometry const high = checked_page_geometry(o.high, o.shape.head_dim, o.page_bytes);
  if (!o.has_low) { return make_tier_pages(high); }
  return make_tier_pages(high, checked_page_geometry(o.low, o.shape.head_dim, o.page_bytes));
}

//! Pages with which no sequence is ever refused: every slot at max_tokens. Usually far too many.
[[nodiscard]] inline std::uint64_t pages_for_all(cache_options options)
{
  options.num_pages      = 1;
  tier_pages const tiers = tiers_of(options);
  return std::uint64_t{tiers.most_pages(static_cast<std::uint32_t>(options.shape.max_tokens))} *
         options.shape.num_rows();
}

}  // namespace diffkv
