// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One warp of decode attention: reads its share of the pages of a layer, tile by tile, and keeps the
//! sums of the row at hand in registers.
//! Read before this: attention/lagged_row.cuh.  Read next: attention/decode.cuh.
#include <diffkv/attention/attend_blocks.cuh>
#include <diffkv/attention/lagged_row.cuh>
#include <diffkv/attention/row_merge.cuh>
#include <diffkv/core/launch.cuh>  // wait_for_previous

#include <type_traits>  // true_type

namespace diffkv::detail {

//! One warp of a launch.
template <class Traits, class T, class Out>
struct decode_warp {
  using params                = decode_params<Traits, T, Out>;
  using target_type           = row_target<Traits, T, Out>;
  using query_share           = typename row_queries<Traits>::high_type::share;
  static constexpr int sets   = Traits::sets;
  static constexpr int slots  = Traits::slots;
  static constexpr int places = Traits::candidate_places;

  params const& p;
  decode_place<Traits> place;
  fragment_lane at;

  row_queries<Traits> queries;
  row_accumulator<Traits> sums;

  //! Has the queries of a row come closer.  @return see touch_share
  [[nodiscard]] __device__ std::uint32_t touch_queries(target_type const& target) const noexcept
  {
    std::uint32_t something = 0;
#pragma unroll
    for (int s = 0; s < sets; ++s) {
      int const h = 4 * s + at.lane / 8;
      if (target.has(h)) { something ^= touch_share<query_share>(target.query(h), at.lane % 8); }
    }
    return something;
  }
  //! The same for the offset of its keys.
  [[nodiscard]] __device__ std::uint32_t touch_offset(target_type const& target) const noexcept
  {
    if constexpr (Traits::centred) {
      return touch_share<query_share>(target.key_offset(), at.lane % 8);
    } else {
      return 0;
    }
  }

  //! Conditions the queries of a row, keeps them as columns, and, in the row's first part, in the ring.
  template <class Queries>
  __device__ void load_queries(Queries& columns, target_type const& target, std::uint32_t kept,
                               bool wants_offset) noexcept
  {
    using share          = typename Queries::share;
    auto const& options  = p.options;
    constexpr float unit = Traits::variant::soft_cap ? 1.0f : log2_of_e;
    constexpr int groups = share::order.groups;
#pragma unroll
    for (int s = 0; s < sets; ++s) {
      int const h       = 4 * s + at.lane / 8;
      int const owner   = at.lane % 8;
      bool const exists = target.has(h);
      // The offset first: it is not converted, so nothing waits between the two.
      float c[Traits::centred ? share::elements : 1];
      if constexpr (Traits::centred) {
        if (wants_offset) { load_share<share>(target.key_offset(), p.whole_offsets, owner, c); }
      }
      float x[share::elements];
      load_share<share>(exists ? target.query(h) : nullptr, p.whole_queries, owner, x);
      if constexpr (Traits::centred) {
        if (wants_offset) {
          float product = 0.0f;
#pragma unroll
          for (int e = 0; e < share::elements; ++e) { product = fmaf(x[e], c[e], product); }
          product = sum_over_lanes<8>(product) * options.scale;
          if (owner == 0) { place.offsets()[h] = product; }
          if constexpr (Traits::variant::soft_cap) {
            queries.offset[s] = __shfl_sync(0xFFFF'FFFFu, product, 8 * at.t);
          }
        }
      } else {
        queries.offset[s] = 0.0f;
      }
      if constexpr (Traits::rotated) {
        rotate_share<Traits::head_dim, groups, 8, 1>(x, place.stage(), at.lane);
      }
      if constexpr (Traits::has_scores) {
        if (kept != not_kept) {
          if constexpr (Traits::codes_in_ring) {
            lag().template keep_codes<share>(x, s, target, kept);
          } else {
            lag().template keep<share>(x, s, target, kept);
          }
        }
      }
      columns.set(s, x, options.scale * unit, reinterpret_cast<std::uint32_t*>(place.stage()), at);
    }
  }

  template <class Scores>
  __device__ void begin_row(row_note const& note, Scores& scores) noexcept
  {
    target_type const target{p, note.index};
    load_queries(queries.high, target, note.ordinal == 0 ? note.kept : not_kept, true);
    if constexpr (!row_queries<Traits>::shared) {
      load_queries(queries.low, target, not_kept, false);
    }
    planned_sequence const& plan = p.sequences[target.sequence];
    if constexpr (Traits::variant::sliding_window) {
      queries.first_position =
        p.options.sliding_window > 0 ? plan.num_tokens - p.options.sliding_window : -1;
    }
    if constexpr (Scores::enabled) {
      scores.set_catches_up(is_scored(note.index, note.flags));
      if (scores.catches_up()) { lag().load(scores, target, plan, note.high_pages); }
    }
    sums.clear();
  }

  //! @tparam Whole   see attend_blocks
  //! @param page     first page of the tile
  //! @param ordinal  of that page in the row
  template <class Tile, bool Whole, class Scores>
  __device__ void attend(tile_note note, std::uint32_t tile, page_id page, std::uint32_t ordinal,
                         Scores& scores) noexcept
  {
    weight_exchange const exchange{at};
    if constexpr (Scores::enabled) {
      if (scores.catches_up()) { lag().open(scores, note, page, ordinal); }
    }
    attend_tile<Tile, Whole>(tile, note.tokens(), p.options.soft_cap, queries, sums, scores,
                             exchange, at);
    if constexpr (Scores::enabled) {
      if (scores.catches_up()) { scores.close_page(); }
    }
    __syncwarp();  // the slot may be filled again
  }

  //! The row's last tile in this warp was read.
  //! @param pages_read  of the row in this warp
  //! @param begin       of the row, as row_part::begin
  //! @param is_last     the warp's range ends here
  template <class Scores>
  __device__ void end_row(row_note const& note, std::uint32_t pages_read, std::uint32_t begin,
                          bool is_last, bool in_low, Scores const& scores) noexcept
  {
    close(sums, in_low, place.stage(), at);
    float offset[sets]{};
    if constexpr (Traits::centred) {
#pragma unroll
      for (int s = 0; s < sets; ++s) { offset[s] = place.offsets()[4 * s + at.t]; }
    }
    bool const has_candidate = at.lane < num_stored_tiers * places;
    if (pages_read == note.pages) {
      target_type const target{p, note.index};
      store_whole_row(target, sums, offset, note.kept, place.stage(), at);
      if constexpr (Scores::enabled) {
        if (scores.catches_up()) {
          store_scores(target, has_candidate ? place.record()[at.lane] : candidate{}, at.lane);
        }
      }
      __syncwarp();
      return;
    }
    partial_row<Traits> const part =
      is_last ? place.last_part(place.warp) : place.first_part(place.warp);
    store_partial(part, sums, offset, at);
    if constexpr (Scores::enabled) {
      if (scores.catches_up() && has_candidate) {
        part.candidates()[at.lane] = place.record()[at.lane];
      }
    }
    if (at.lane == 0) {
      row_part& left = place.cta->parts[2 * place.warp + (is_last ? 1 : 0)];
      left.index     = note.index;
      left.flags     = (is_scored(note.index, note.flags) ? row_flag::catches_up : 0u) |
                   (note.ordinal == 0 ? part_flag::begins : 0u) |
                   (note.ordinal + pages_read == note.pages ? part_flag::ends : 0u);
      left.begin      = begin;
      left.pages      = note.pages;
      left.high_pages = note.high_pages;
      left.kept       = note.kept;
    }
    __syncwarp();
  }

  //! Rows without tokens, a few to each warp.
  //! @param num_rows  of the launch
  __device__ void store_empty_rows(std::uint32_t num_rows) const noexcept
  {
    for (std::uint32_t index = blockIdx.x * place.warps + place.warp; index < num_rows;
         index += p.num_warps) {
      planned_row const& row = p.rows[index];
      if (row.high + row.low > 0) { continue; }
      store_empty_row(target_type{p, index}, at.lane);
    }
  }

  //! All tiles of the warp's range.
  //! @param totals  of the launch
  __device__ void read_pages(warp_range const& range, planned_layer const& totals) noexcept
  {
    page_stream<slots> stream;
    stream.init(place.barriers(), at.lane);
    page_walk<Traits, T, Out> walk{p, range, at.lane};
    __syncwarp();
    int const ahead = walk.tiles_ahead(range);
    target_type const first{p, range.index};
    std::uint32_t something = touch_offset(first);
    if constexpr (Traits::has_scores) {
      std::uint32_t const flags = range.of.catches_up != 0 ? row_flag::catches_up : 0u;
      if (is_scored(range.index, flags)) { lag().prefetch(first); }
    }
    if (ahead == 0) {
      wait_for_previous();
      something ^= touch_queries(first);
    }
    std::uint32_t const ring = kept_shared_address(place.memory_of(place.warp));
    auto const slot_address  = [ring](int slot) {
      return ring + static_cast<std::uint32_t>(slot) * Traits::slot_bytes;
    };
    auto const slot_after = [](int slot) { return slot + 1 == slots ? 0 : slot + 1; };
    row_note* const notes = place.notes();
    tile_note queue[slots]{};  // of the tile at hand, and of those on their way
    page_id ids[slots]{};
    row_note row{};
    std::uint32_t page      = 0;  // of the warp's
    std::uint32_t row_begin = 0;  // first page of the row at hand
    std::uint32_t row_at    = 0;  // as row_part::begin
    bool in_low             = false;
    int slot                = 0;  // of the tile at hand
    int into                = 0;  // of the next request
    int pending             = 0;  // tiles asked for
    // At first one tile, or those that need not wait: asking for more can take long, and the
    // queries can be prepared meanwhile. They are asked for before a tile behind which they would
    // come late.
    bool is_first    = true;
    int most_pending = max_of(ahead, 1);

    auto const read_rows = [&](auto scores) {
      stream.leaves_in_turn = writes_leave_first<decltype(scores)>(totals.cost);
#pragma unroll 1
      for (;;) {
#pragma unroll 1
        for (; pending < most_pending && walk.has_more(); ++pending) {
          page_id id{};
          tile_note const made = walk.request(stream, into, slot_address(into), notes + into, id);
#pragma unroll
          for (int i = 0; i < slots; ++i) {
            queue[i] = i == pending ? made : queue[i];
            ids[i]   = i == pending ? id : ids[i];
          }
          into = slot_after(into);
        }
        if (pending == 0) { return; }
        if (is_first) {
          if (ahead > 0) { wait_for_previous(); }
          keep(something);
        }
        if (queue[0].is(tile_note::begins)) {
          __syncwarp();
          row = notes[slot];
          queue[0].word &= ~tile_note::begins;
          row_begin = page;
          if (page == 0) { row_at = 0u - range.early - cost_of(row).begin_of(row.ordinal); }
          in_low = false;
          begin_row(row, scores);
        }
        if (is_first) {
          walk.look_further();
          is_first     = false;
          most_pending = slots;
          continue;
        }
        tile_note const note = queue[0];
        bool const low       = Traits::has_low && note.is(tile_note::low);
        if constexpr (Traits::reorders) {
          if (low && !in_low) { begin_low(sums, place.stage(), at); }
          in_low = low;
        }
        // Plain tiles, as long as those asked for are plain, too: the slot is filled again at once.
        bool const alike = walk.alike > 0 && walk.is_low == low && all_plain(queue, low);
        for (int i = pending; i < slots; ++i) { stream.end(); }
        auto const read = [&](auto tile_type, auto all_whole) {
          using tile = decltype(tile_type);
#pragma unroll 1
          for (;;) {
            stream.wait(slot);
            attend<tile, decltype(all_whole)::value>(note, slot_address(slot), ids[0],
                                                     row.ordinal + page - row_begin, scores);
            page += note.pages();
            if (!decltype(all_whole)::value && !alike) { break; }
            page_id const id = walk.template request_alike<tile>(stream, slot, slot_address(slot));
#pragma unroll
            for (int i = 0; i + 1 < slots; ++i) { ids[i] = ids[i + 1]; }
            ids[slots - 1] = id;
            slot           = slot_after(slot);
            if (walk.alike == 0) { break; }
          }
        };
        auto const read_tier = [&](auto tile) {
          if constexpr (Traits::has_long_loops) {
            if (alike && walk.alike >= Traits::tuning::long_run) {
              return read(tile, std::true_type{});
            }
          }
          read(tile, std::false_type{});
        };
        if (Traits::has_low && low) {
          read_tier(typename Traits::low_tile{});
        } else {
          read_tier(typename Traits::high_tile{});
        }
        if (alike) {
          into = slot;
          continue;
        }
        if (note.is(tile_note::ends)) {
          end_row(row, page - row_begin, row_at, page == range.num_pages, in_low, scores);
          row_at += cost_of(row).total();
        }
#pragma unroll
        for (int i = 0; i + 1 < slots; ++i) {
          queue[i] = queue[i + 1];
          ids[i]   = ids[i + 1];
        }
        slot = slot_after(slot);
        --pending;
      }
    };
    // Code for launches whose rows do not catch up, or all do, as those of a batch that
    // catches up together: shorter. Else all rows share one code: of two, a multiprocessor keeps
    // neither at hand.
    if constexpr (Traits::has_scores) {
      if (totals.catch_up == rows_catch_up::some) { return read_rows(score_path<Traits, false>{}); }
      if constexpr (Traits::passes == 1) {  // of more, only the first catches up
        if (totals.catch_up == rows_catch_up::all) { return read_rows(score_path<Traits, true>{}); }
      }
    }
    read_rows(no_scores{});
  }

 private:
  //! Whether scores that a launch writes should be written back to memory while it still reads
  //! (page_stream::leaves_in_turn): where those behind it write none, or it is large.
  //! @param cost  of the launch
  template <class Scores>
  [[nodiscard]] static __device__ bool writes_leave_first(std::uint32_t cost) noexcept
  {
    if constexpr (Scores::enabled) {
      constexpr std::uint32_t large = Traits::tuning::large_launch_bytes /
                                      static_cast<std::uint32_t>(Traits::layouts::page_bytes) *
                                      page_cost::plain;
      return (Scores::all_catch_up && Traits::score_every > 1) || cost >= large;
    } else {
      return false;
    }
  }
  [[nodiscard]] __device__ lagged_row<Traits, T, Out> lag() const noexcept
  {
    return {p, place, at};
  }

  //! Whether a row catches up; with the first of its passes.
  [[nodiscard]] static __device__ bool is_scored(std::uint32_t index, std::uint32_t flags) noexcept
  {
    return (flags & row_flag::catches_up) != 0 && index % Traits::passes == 0;
  }
  [[nodiscard]] static __device__ row_cost cost_of(row_note const& note) noexcept
  {
    return Traits::cost_of(note.high_pages, note.pages - note.high_pages,
                           is_scored(note.index, note.flags));
  }
  [[nodiscard]] static __device__ bool all_plain(tile_note const (&queue)[slots], bool low) noexcept
  {
    std::uint32_t const plain = low ? tile_note::plain<typename Traits::low_tile>(true).word
                                    : tile_note::plain<typename Traits::high_tile>(false).word;
    bool all                  = true;
#pragma unroll
    for (int i = 0; i < slots; ++i) { all = all && queue[i].word == plain; }
    return all;
  }
};

}  // namespace diffkv::detail
