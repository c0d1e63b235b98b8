// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! All handles of one cache together: what every operation of the write and the read path is given.
//! Read before this: table/batch_ref.hpp.  Read next: table/row_place.hpp.
#include <diffkv/page/tier_pages.hpp>
#include <diffkv/policy/thresholds.hpp>
#include <diffkv/pool/free_ring.hpp>
#include <diffkv/pool/page_pool.hpp>
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/table/page_table.hpp>
#include <diffkv/table/row_state.hpp>

namespace diffkv {

//! A few words per member; goes into kernels by value. Owned by `kv_cache`, or by an engine.
struct cache_ref {
  cache_shape shape{};
  tier_pages tiers{};
  page_pool_ref pool{};
  free_ring_ref ring{};
  page_table_ref table{};
  row_state_ref state{};
  query_ring_ref queries{};
  thresholds_ref limits{};
  conditioning conditioned = conditioning::none;
  float const* key_offsets =
    nullptr;  //!< [num_layers, num_heads, head_dim] f32; null unless centred

  [[nodiscard]] DIFFKV_HOST_DEVICE float const* key_offset(std::uint32_t layer,
                                                           std::uint32_t head) const noexcept
  {
    if (key_offsets == nullptr) { return nullptr; }
    auto const dim = static_cast<std::size_t>(shape.head_dim);
    return key_offsets + (std::size_t{layer} * shape.num_heads + head) * dim;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE layer_state& layer(std::uint32_t slot,
                                                      std::uint32_t layer) const noexcept
  {
    return state.layers[shape.layer_of(slot, layer)];
  }
};
static_assert(std::is_trivially_copyable_v<cache_ref>);

}  // namespace diffkv
