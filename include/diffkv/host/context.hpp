// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the host twins are given: the handles of a cache, the codecs of its tiers, who runs the rows.
//! Read before this: host/page_codec.hpp.  Read next: host/claim.hpp.
#include <diffkv/host/page_codec.hpp>
#include <diffkv/table/row_view.hpp>

namespace diffkv::host {

//! Runs body(0) .. body(count - 1) one after the other. An executor of the caller's own may run them
//! on several threads, in any order; it returns when all are done. Rows do not share data.
struct sequential {
  template <class Body>
  void operator()(std::size_t count, Body&& body) const
  {
    for (std::size_t i = 0; i < count; ++i) { body(i); }
  }
};

//! A cache in host memory: the same handles as on the device, and tables for reading pages.
struct context {
  cache_ref cache{};
  page_codec high;
  page_codec low;

  explicit context(cache_ref const& handles)
    : cache{handles}, high{handles.tiers.high}, low{handles.tiers.low}
  {}
  [[nodiscard]] page_codec const& codec(tier t) const noexcept
  {
    return t == tier::high ? high : low;
  }
  [[nodiscard]] row_view row(std::size_t index) const noexcept { return {&cache, index}; }
};

namespace detail {
inline void expect_slot(cache_shape const& shape, std::uint32_t slot)
{
  DIFFKV_EXPECTS(slot < shape.num_slots, "slot: " + std::to_string(slot) + " is not below " +
                                           std::to_string(shape.num_slots));
}
//! @param slot_at  slot_at(i) is the i-th slot of a batch; those before `index` are known to be different
template <class SlotAt>
void expect_not_named_before(SlotAt const& slot_at, std::uint32_t index)
{
  for (std::uint32_t other = 0; other < index; ++other) {
    DIFFKV_EXPECTS(slot_at(other) != slot_at(index),
                   "slot: " + std::to_string(slot_at(index)) + " is named twice");
  }
}
inline void expect_layer(cache_shape const& shape, std::uint32_t layer)
{
  DIFFKV_EXPECTS(layer < shape.num_layers, "layer: " + std::to_string(layer) + " is not below " +
                                             std::to_string(shape.num_layers));
}
}  // namespace detail

}  // namespace diffkv::host
