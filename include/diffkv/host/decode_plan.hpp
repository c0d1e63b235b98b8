// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The work plan of a step: what every warp of the decode attention of every layer reads.
//! Read before this: host/decode_attention.hpp.  Read next: host/prefill_attention.hpp.
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/table/row_place.hpp>

#include <algorithm>  // fill_n
#include <vector>

namespace diffkv::host {

namespace detail {

//! A page of a row as a launch meets it.
struct planned_page {
  std::uint32_t index = 0;  //!< of the row in the launch
  std::uint32_t page  = 0;  //!< within the row
};

[[nodiscard]] inline planned_sequence plan_sequence(cache_ref const& cache, std::uint32_t slot,
                                                    std::uint32_t layer)
{
  layer_state const& state = cache.layer(slot, layer);
  planned_sequence sequence{slot, state.num_tokens, state.queries, 0, 0, 0};
  if (state.num_tokens == 0) { return sequence; }
  due_queries const due =
    queries_due(state.num_tokens - 1, layer, cache.shape.score_every, state.queries);
  sequence.first_query = due.first;
  sequence.last_query  = due.last;
  return sequence;
}

[[nodiscard]] inline planned_row plan_row(cache_ref const& cache, row_place const& place)
{
  row_state const& state        = cache.state.rows[place.row];
  std::int32_t const num_tokens = cache.layer(place.slot, place.layer).num_tokens;
  bool const stored             = state.append_slot != no_slot;
  bool const catches_up =
    stored && num_tokens > 0 &&
    queries_due(num_tokens - 1, place.layer, cache.shape.score_every, {}).catches_up;
  return {static_cast<std::uint32_t>(place.row), state.tokens.high, state.tokens.low,
          stored ? stored_at(num_tokens, cache.shape.score_every) : std::uint16_t{0},
          static_cast<std::uint16_t>(catches_up ? 1 : 0)};
}

//! Where the warp begins that takes pages[first .. last - 1].
[[nodiscard]] inline warp_range plan_range(cache_ref const& cache, planned_row const* rows,
                                           std::vector<planned_page> const& pages,
                                           std::uint32_t first, std::uint32_t last)
{
  if (first == last) { return {}; }
  planned_page const begin = pages[first];
  slot_index const appends = cache.state.rows[rows[begin.index].row].append_slot;
  return {rows[begin.index], begin.index, begin.page, last - first,
          appends == no_slot ? warp_range::no_append_page
                             : appends / cache.tiers.tokens_per_page(tier::high)};
}

}  // namespace detail

//! Plans the decode attention of some layers. A row is read `passes` times; its launch rows follow
//! each other, (sequence * num_heads + head) * passes + pass, each with its high pages, then its low
//! ones. All of these pages of a layer, one after the other, are cut into equal shares, one per warp.
//! Sequences behind the batch's size get no rows; what the workspace holds of them is left alone.
//! @param layers  within those of the workspace; its other layers keep their plans
//! @param work    arrays in host memory
//! @throws invalid_argument before anything is written
//! @cost   O(rows + pages)
inline void plan_decode(cache_ref const& cache, batch_ref const& batch, layer_range layers,
                        decode_workspace_ref const& work)
{
  diffkv::detail::expect_plannable(cache, batch, layers, work);
  std::uint32_t const num_warps = work.grid.num_warps();
  std::fill_n(work.arrivals, work.grid.ctas, 0u);
  for (std::uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    std::size_t const l               = work.index_of(layer);
    planned_row* const rows           = work.rows + l * work.num_rows;
    planned_sequence* const sequences = work.sequences + l * work.capacity;
    std::vector<detail::planned_page> pages;
    planned_layer total;
    std::uint32_t index = 0;
    for (std::uint32_t r = 0; r < batch.size() * cache.shape.num_heads; ++r) {
      row_place const place     = row_place::of(cache, batch, {layer, 1}, r);
      sequences[place.sequence] = detail::plan_sequence(cache, place.slot, layer);
      planned_row const row     = detail::plan_row(cache, place);
      std::uint32_t const num_pages =
        cache.tiers.pages_for(tier::high, row.high) + cache.tiers.pages_for(tier::low, row.low);
      for (std::uint32_t pass = 0; pass < work.grid.passes; ++pass, ++index) {
        rows[index] = row;
        total.empty_rows += num_pages == 0 ? 1 : 0;
        for (std::uint32_t page = 0; page < num_pages; ++page) { pages.push_back({index, page}); }
      }
    }
    total.num_pages = static_cast<std::uint32_t>(pages.size());
    total.num_rows  = index;
    work.totals[l]  = total;
    for (std::uint32_t w = 0; w < num_warps; ++w) {
      work.ranges[l * num_warps + w] =
        detail::plan_range(cache, rows, pages, share_begin(total.num_pages, w, num_warps),
                           share_begin(total.num_pages, w + 1, num_warps));
    }
  }
}

}  // namespace diffkv::host
