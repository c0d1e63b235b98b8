// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The work plan of a step: what every warp of the decode attention of every layer reads.
//! Read before this: host/decode_attention.hpp.  Read next: host/prefill_attention.hpp.
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/host/scores.hpp>  // turn_in
#include <diffkv/table/row_place.hpp>

#include <algorithm>  // fill_n
#include <vector>

namespace diffkv::host {

namespace detail {

//! A page of a row as a launch meets it.
struct planned_page {
  std::uint32_t index = 0;  //!< of the row in the launch
  std::uint32_t page  = 0;  //!< within the row
  std::uint32_t end   = 0;  //!< cost of the pages up to this one
};

[[nodiscard]] inline planned_sequence plan_sequence(cache_ref const& cache, std::uint32_t slot,
                                                    catch_up_turn const& turn)
{
  layer_state const& state = cache.layer(slot, turn.layer);
  planned_sequence sequence{slot, state.num_tokens, state.queries, 0, 0, 0};
  if (state.num_tokens == 0) { return sequence; }
  due_queries const due = turn.queries_due(state);
  sequence.first_query  = due.first;
  sequence.last_query   = due.last;
  return sequence;
}

[[nodiscard]] inline planned_row plan_row(cache_ref const& cache, row_place const& place,
                                          catch_up_turn const& turn)
{
  row_state const& state      = cache.state.rows[place.row];
  layer_state const& sequence = cache.layer(place.slot, place.layer);
  bool const stored           = state.append_slot != no_slot;
  bool const catches_up =
    stored && sequence.num_tokens > 0 && turn.queries_due(sequence).catches_up;
  return {static_cast<std::uint32_t>(place.row), state.tokens.high, state.tokens.low,
          stored ? stored_at(sequence.num_tokens, turn.score_every) : std::uint16_t{0},
          static_cast<std::uint16_t>(catches_up ? 1 : 0)};
}

[[nodiscard]] inline row_cost cost_of(cache_ref const& cache, planned_row const& row,
                                      bool catches_up)
{
  tier_pages const& tiers = cache.tiers;
  return {
    tiers.pages_for(tier::high, row.high), tiers.pages_for(tier::low, row.low),
    page_cost::of(tiers.tokens_per_page(tier::high), tiers.tokens_per_page(tier::low), catches_up)};
}

//! Where the warp begins that takes pages[first .. last - 1].
//! @param begin  of its share; it lies in the first of them
[[nodiscard]] inline warp_range plan_range(cache_ref const& cache, planned_row const* rows,
                                           std::vector<planned_page> const& pages,
                                           std::uint32_t first, std::uint32_t last,
                                           std::uint32_t begin)
{
  if (first == last) { return {}; }
  planned_page const page  = pages[first];
  slot_index const appends = cache.state.rows[rows[page.index].row].append_slot;
  std::uint16_t const after =
    appends == no_slot
      ? warp_range::no_append
      : warp_range::pages_to(appends / cache.tiers.tokens_per_page(tier::high), page.page);
  std::uint32_t const in_front = first == 0 ? 0 : pages[first - 1].end;
  return {rows[page.index], page.index, page.page,
          last - first,     after,      static_cast<std::uint16_t>(begin - in_front)};
}

}  // namespace detail

//! Plans the decode attention of some layers. A row is read `passes` times; its launch rows follow
//! each other, (sequence * num_heads + head) * passes + pass, each with its high pages, then its low
//! ones. All of these pages of a layer, one after the other, are cut into shares of equal cost
//! (page_cost), one for each warp that has one (decode_grid::sharing).
//! Sequences behind the batch's size get no rows; what the workspace holds of them is left alone.
//! @param batch   its first sequence decides when all catch up (catch_up_schedule)
//! @param layers  within those of the workspace; its other layers keep their plans
//! @param work    arrays in host memory
//! @throws invalid_argument before anything is written
//! @cost   O(rows + pages)
inline void plan_decode(cache_ref const& cache, batch_ref const& batch, layer_range layers,
                        decode_workspace_ref const& work)
{
  diffkv::detail::expect_plannable(cache, batch, layers, work);
  std::uint32_t const num_warps = work.grid.num_warps();  // with and without a share
  std::fill_n(work.arrivals, work.grid.ctas, 0u);
  for (std::uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    std::size_t const l               = work.index_of(layer);
    planned_row* const rows           = work.rows + l * work.num_rows;
    planned_sequence* const sequences = work.sequences + l * work.capacity;
    catch_up_turn const turn          = detail::turn_in(cache, batch.slots, batch.size(), layer);
    std::vector<detail::planned_page> pages;
    planned_layer total;
    std::uint32_t index = 0;
    bool some_do = false, some_do_not = false;  // catch up
    bool alike            = true;               // rows cost the same, all passes together
    std::uint32_t of_last = 0;                  // cost of the row before
    for (std::uint32_t r = 0; r < batch.size() * cache.shape.num_heads; ++r) {
      row_place const place     = row_place::of(cache, batch, {layer, 1}, r);
      sequences[place.sequence] = detail::plan_sequence(cache, place.slot, turn);
      planned_row const row     = detail::plan_row(cache, place, turn);
      std::uint32_t const begin = total.cost;
      for (std::uint32_t pass = 0; pass < work.grid.passes; ++pass, ++index) {
        bool const catches_up = row.catches_up != 0 && pass == 0;
        row_cost const cost   = detail::cost_of(cache, row, catches_up);
        rows[index]           = row;
        total.empty_rows += cost.pages() == 0 ? 1 : 0;
        some_do     = some_do || (catches_up && cost.pages() > 0);
        some_do_not = some_do_not || (!catches_up && cost.pages() > 0);
        for (std::uint32_t page = 0; page < cost.pages(); ++page) {
          pages.push_back({index, page, total.cost + cost.begin_of(page + 1)});
        }
        total.cost += cost.total();
      }
      alike   = alike && (r == 0 || total.cost - begin == of_last);
      of_last = total.cost - begin;
    }
    total.num_rows = index;
    total.catch_up = rows_of_kinds(some_do, some_do_not);
    total.sharing  = work.grid.sharing(
       total.cost, alike ? work.grid.ctas_for(index / work.grid.passes) : work.grid.ctas);
    work.totals[l]      = total;
    auto const begin_of = [&](std::uint32_t w) {
      std::uint32_t const share = total.sharing.share_at(w / work.grid.warps, w % work.grid.warps);
      return share_begin(total.cost, share, total.sharing.num_shares());
    };
    std::vector<std::uint32_t> begins;  // page that a warp begins with
    for (std::uint32_t w = 0, page = 0; w <= num_warps; ++w) {
      while (page < pages.size() && pages[page].end <= begin_of(w)) { ++page; }
      begins.push_back(page);
    }
    for (std::uint32_t w = 0; w < num_warps; ++w) {
      work.ranges[l * num_warps + w] =
        detail::plan_range(cache, rows, pages, begins[w], begins[w + 1], begin_of(w));
    }
  }
}

}  // namespace diffkv::host
