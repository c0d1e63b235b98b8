// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows of a launch over a batch and some layers, and where they lie in the cache.
//! Read before this: table/cache_ref.hpp.  Read next: table/row_view.hpp.
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/cache_ref.hpp>

namespace diffkv {

//! Some layers that follow each other.
struct layer_range {
  std::uint32_t first = 0;
  std::uint32_t count = 1;
};

//! @throws invalid_argument unless the cache has these layers
inline void validate(layer_range layers, cache_shape const& shape)
{
  DIFFKV_EXPECTS(
    layers.first <= shape.num_layers && layers.count <= shape.num_layers - layers.first,
    "layers: " + std::to_string(layers.count) + " from " + std::to_string(layers.first) +
      " on are not within the cache's " + std::to_string(shape.num_layers));
}

//! Row r of a launch = (sequence of the batch * layers + layer of the range) * num_heads + head.
struct row_place {
  std::uint32_t sequence       = 0;  //!< index into the batch
  std::uint32_t slot           = 0;
  std::uint32_t layer_in_range = 0;
  std::uint32_t layer          = 0;
  std::uint32_t head           = 0;
  std::size_t row              = 0;  //!< of the cache

  //! @pre  the batch has that sequence
  [[nodiscard]] static DIFFKV_HOST_DEVICE row_place of(cache_ref const& cache,
                                                       batch_ref const& batch, layer_range layers,
                                                       std::uint32_t r) noexcept
  {
    row_place p{};
    std::uint32_t const item = r / cache.shape.num_heads;
    p.head                   = r % cache.shape.num_heads;
    p.layer_in_range         = item % layers.count;
    p.layer                  = layers.first + p.layer_in_range;
    p.sequence               = item / layers.count;
    p.slot                   = batch.slots[p.sequence];
    p.row                    = cache.shape.row(p.slot, p.layer, p.head);
    return p;
  }
};

}  // namespace diffkv
