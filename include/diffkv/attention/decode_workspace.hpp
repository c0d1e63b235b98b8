// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What decode attention is compiled for, the work plan of a step, and the scratch of a launch.
//! Read before this: attention/decode_grid.hpp.  Read next: attention/page_shares.cuh.
#include <diffkv/attention/decode_grid.hpp>
#include <diffkv/attention/score_update.hpp>
#include <diffkv/core/error.hpp>  // DIFFKV_EXPECTS
#include <diffkv/detail/arithmetic.hpp>
#include <diffkv/table/row_place.hpp>  // layer_range

#include <cstddef>
#include <cstdint>
#include <string>

namespace diffkv {

//! What one attention kernel is compiled for, beside a static_config.
//! @tparam GroupSize   q_heads per head
//! @tparam ScoreEvery  k of the cache whose scores it updates; 0: none
//! @tparam SoftCap        attention_options must ask for it
//! @tparam SlidingWindow  attention_options may ask for it
//! @tparam ExactLag    lagged queries as exact as attention's own (lag_rounding::none), of a cache made with
//!                     cache_options::exact_lagged_queries
template <int GroupSize, int ScoreEvery = 0, bool SoftCap = false, bool SlidingWindow = false,
          bool ExactLag = false>
struct decode_variant {
  static_assert(GroupSize >= 1, "GroupSize must be at least 1");
  static_assert(ScoreEvery == 0 || ScoreEvery == 1 || ScoreEvery == 2 || ScoreEvery == 4,
                "ScoreEvery must be 0, 1, 2 or 4");
  static constexpr int group_size      = GroupSize;
  static constexpr int score_every     = ScoreEvery;
  static constexpr bool soft_cap       = SoftCap;
  static constexpr bool sliding_window = SlidingWindow;
  static constexpr bool exact_lag      = ExactLag;
};

//! A row as attention needs it. Rows of a launch are numbered
//! (sequence of the batch * num_heads + head) * passes + pass.
struct alignas(16) planned_row {
  std::uint32_t row  = 0;  //!< of the cache
  std::uint32_t high = 0;  //!< tokens
  std::uint32_t low  = 0;
  //! 0 where the step gave it no slot for the new token: nothing is recorded. Else 1 + the place of its
  //! query in the lag ring (query_ring_ref).
  std::uint16_t stored     = 0;
  std::uint16_t catches_up = 0;  //!< scores and candidates are made anew
};

//! planned_row::stored of a row that has a slot for token number `num_tokens`.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint16_t stored_at(
  std::int32_t num_tokens, std::int32_t score_every) noexcept
{
  bool const begun = num_tokens > 0 && score_every > 0;
  return static_cast<std::uint16_t>(1 + (begun ? (num_tokens - 1) % (score_every + 1) : 0));
}
static_assert(stored_at(60, 2) == 1 + 59 % 3 && stored_at(60, 0) == 1);

//! Where a warp begins.
struct alignas(32) warp_range {
  planned_row of{};
  std::uint32_t index      = 0;  //!< of that row in the launch
  std::uint32_t first_page = 0;  //!< within the row: high pages, then low ones
  std::uint32_t num_pages  = 0;  //!< of the warp, over as many rows as it takes
  //! Pages from the first one on to where the step's token goes, which the kernel in front may be writing.
  std::uint16_t appends_after = no_append;
  std::uint16_t early         = 0;  //!< by how much the first page begins in front of share_begin

  static constexpr std::uint16_t no_append = 0xFFFFu;  //!< of the row, or that far away
  //! Of a row whose first page here is `first`.
  [[nodiscard]] static DIFFKV_HOST_DEVICE constexpr std::uint16_t pages_to(
    std::uint32_t append_page, std::uint32_t first) noexcept
  {
    std::uint32_t const after = append_page - first;  // far away if it lies before
    return after < no_append ? static_cast<std::uint16_t>(after) : no_append;
  }
  //! Whether one of some pages, from the first one on, is that page.  @pre pages <= no_append
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool appends_within(std::uint32_t pages) const noexcept
  {
    return appends_after < pages;
  }
};

//! A (sequence, layer) as it was when the plan was made: attention writes `last_query` anew while other
//! rows still need the old one.
struct alignas(16) planned_sequence {
  std::uint32_t slot      = 0;
  std::int32_t num_tokens = 0;
  query_span queries{};          //!< before the launch
  std::int32_t first_query = 0;  //!< due queries, by position: first .. last - 1
  std::int32_t last_query  = 0;
  std::int32_t pad         = 0;
};

//! Which rows of a launch that have pages catch up with their scores; of one that does, only the first pass.
enum class rows_catch_up : std::uint32_t { none, some, all };

[[nodiscard]] DIFFKV_HOST_DEVICE constexpr rows_catch_up rows_of_kinds(bool some_do,
                                                                       bool some_do_not) noexcept
{
  return !some_do ? rows_catch_up::none : some_do_not ? rows_catch_up::some : rows_catch_up::all;
}

//! Totals of one layer.
struct alignas(32) planned_layer {
  std::uint32_t cost       = 0;  //!< of all pages
  std::uint32_t empty_rows = 0;  //!< rows of the launch without tokens
  std::uint32_t num_rows   = 0;  //!< of the launch: sequences * num_heads * passes
  rows_catch_up catch_up   = rows_catch_up::none;
  sharing_grid sharing{};
  std::uint32_t pad[2]{};
};

//! Handle of the plan of a step and of the scratch of its launches; in device memory. One launch at a
//! time may use it. Made by `make_decode_workspace`.
struct decode_workspace_ref {
  warp_range* ranges          = nullptr;  //!< [layers, num_warps]
  planned_row* rows           = nullptr;  //!< [layers, capacity * num_heads * passes]
  planned_sequence* sequences = nullptr;  //!< [layers, capacity]
  planned_layer* totals       = nullptr;  //!< [layers]
  std::uint32_t* arrivals = nullptr;  //!< [ctas] parts that wait to be merged; 0 between launches
  float* partials         = nullptr;  //!< [2 * ctas, partial_floats]
  std::uint32_t partial_floats = 0;
  std::uint32_t capacity       = 0;  //!< sequences
  std::uint32_t num_rows       = 0;  //!< of a launch, at most
  layer_range layers{};
  decode_grid grid{};

  //! Index of a layer of the cache among those of the workspace.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::size_t index_of(
    std::uint32_t layer) const noexcept
  {
    return layer - layers.first;
  }
};
static_assert(sizeof(planned_row) == 16 && sizeof(warp_range) == 32 &&
              sizeof(planned_sequence) == 32 && sizeof(planned_layer) == 32);

//! Of a decode workspace, in bytes.
inline constexpr std::size_t workspace_alignment = 256;
//! Of a grid: the product of two numbers up to this fits 32 bits.
inline constexpr std::uint32_t most_warps = 0xFFFFu;

namespace detail {

//! Hands out parts of memory that lie one after the other; of null it only counts.
class memory_parts {
 public:
  explicit memory_parts(void* begin) noexcept : begin_{static_cast<std::byte*>(begin)} {}

  template <class T>
  [[nodiscard]] T* take(std::size_t count) noexcept
  {
    std::size_t const at = bytes_;
    bytes_ += round_up(count * sizeof(T), workspace_alignment);
    return begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + at);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* begin_;
  std::size_t bytes_ = 0;
};

//! @throws invalid_argument naming the argument and its legal values
inline void validate_workspace(cache_shape const& shape, std::uint32_t capacity, layer_range layers,
                               decode_grid grid)
{
  constexpr std::uint64_t most = 0xFFFF'FFFFu;
  validate(layers, shape);
  DIFFKV_EXPECTS(grid.ctas > 0 && grid.warps > 0 && grid.passes > 0,
                 "grid: ctas, warps and passes must be at least 1");
  DIFFKV_EXPECTS(std::uint64_t{grid.ctas} * grid.warps <= most_warps,
                 "grid: " + std::to_string(grid.ctas) + " CTAs of " + std::to_string(grid.warps) +
                   " warps are more than " + std::to_string(most_warps) + " warps");
  DIFFKV_EXPECTS(std::uint64_t{capacity} * shape.num_heads <= most / grid.passes,
                 "capacity: " + std::to_string(capacity) + " sequences of " +
                   std::to_string(shape.num_heads) + " heads, read " + std::to_string(grid.passes) +
                   " times, are rows whose number does not fit 32 bits");
}

//! @pre validate_workspace
[[nodiscard]] inline decode_workspace_ref lay_out_workspace(memory_parts& parts,
                                                            cache_shape const& shape,
                                                            std::uint32_t capacity,
                                                            layer_range layers, decode_grid grid,
                                                            std::uint32_t partial_floats) noexcept
{
  std::size_t const count = layers.count;
  decode_workspace_ref work;
  work.num_rows       = capacity * shape.num_heads * grid.passes;
  work.ranges         = parts.take<warp_range>(count * grid.num_warps());
  work.rows           = parts.take<planned_row>(count * work.num_rows);
  work.sequences      = parts.take<planned_sequence>(count * capacity);
  work.totals         = parts.take<planned_layer>(count);
  work.arrivals       = parts.take<std::uint32_t>(grid.ctas);
  work.partials       = parts.take<float>(std::size_t{2} * grid.ctas * partial_floats);
  work.partial_floats = partial_floats;
  work.capacity       = capacity;
  work.layers         = layers;
  work.grid           = grid;
  return work;
}

//! What can be known on the host of a plan about to be made; shared with the host twin.
//! @throws invalid_argument
inline void expect_plannable(cache_ref const& cache, batch_ref const& batch, layer_range layers,
                             decode_workspace_ref const& work)
{
  constexpr std::uint64_t most       = 0xFFFF'FFFFu;
  constexpr std::uint64_t most_pages = most / page_cost::most;
  validate(layers, cache.shape);
  DIFFKV_EXPECTS(cache.shape.num_rows() <= most + 1, "cache: the numbers of its " +
                                                       std::to_string(cache.shape.num_rows()) +
                                                       " rows do not fit 32 bits");
  DIFFKV_EXPECTS(std::uint64_t{cache.pool.num_pages} * work.grid.passes <= most_pages,
                 "cache: " + std::to_string(cache.pool.num_pages) + " pages read " +
                   std::to_string(work.grid.passes) + " times are more than " +
                   std::to_string(most_pages));
  DIFFKV_EXPECTS(batch.capacity <= work.capacity, "batch: up to " + std::to_string(batch.capacity) +
                                                    " sequences are more than the workspace's " +
                                                    std::to_string(work.capacity));
  DIFFKV_EXPECTS(batch.slots != nullptr || batch.capacity == 0, "batch: slots must not be null");
  DIFFKV_EXPECTS(
    layers.first >= work.layers.first && layers.first - work.layers.first <= work.layers.count &&
      layers.count <= work.layers.count - (layers.first - work.layers.first),
    "layers: " + std::to_string(layers.count) + " from " + std::to_string(layers.first) +
      " on are not within the workspace's " + std::to_string(work.layers.count) + " from " +
      std::to_string(work.layers.first) + " on");
  DIFFKV_EXPECTS(work.totals != nullptr && work.grid.num_warps() > 0 &&
                   work.num_rows == work.capacity * cache.shape.num_heads * work.grid.passes,
                 "workspace: it was not made for this cache");
}

}  // namespace detail

//! Memory of a decode workspace.
//! @param capacity        sequences of a batch, at most
//! @param layers          whose plans it holds at the same time
//! @param partial_floats  what a CTA leaves of a row that others take part in
//! @throws invalid_argument for layers the cache has not, a grid without warps, or too many rows
[[nodiscard]] inline std::size_t decode_workspace_bytes(cache_shape const& shape,
                                                        std::uint32_t capacity, layer_range layers,
                                                        decode_grid grid,
                                                        std::uint32_t partial_floats)
{
  detail::validate_workspace(shape, capacity, layers, grid);
  detail::memory_parts parts{nullptr};
  static_cast<void>(
    detail::lay_out_workspace(parts, shape, capacity, layers, grid, partial_floats));
  return parts.bytes();
}

//! Lays out `memory`, which nothing is written to: `plan_decode` comes before the first use.
//! @param memory  device memory (host memory for the host twin) aligned to workspace_alignment, of at
//!                least decode_workspace_bytes() of the same arguments
//! @throws invalid_argument for memory too small or not aligned, and as decode_workspace_bytes
[[nodiscard]] inline decode_workspace_ref make_decode_workspace(
  void* memory, std::size_t bytes, cache_shape const& shape, std::uint32_t capacity,
  layer_range layers, decode_grid grid, std::uint32_t partial_floats)
{
  std::size_t const needed = decode_workspace_bytes(shape, capacity, layers, grid, partial_floats);
  DIFFKV_EXPECTS(
    memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % workspace_alignment == 0 &&
      bytes >= needed,
    "memory: " + std::to_string(needed) + " bytes aligned to " +
      std::to_string(workspace_alignment) + " are needed, got " + std::to_string(bytes));
  detail::memory_parts parts{memory};
  return detail::lay_out_workspace(parts, shape, capacity, layers, grid, partial_floats);
}

}  // namespace diffkv
