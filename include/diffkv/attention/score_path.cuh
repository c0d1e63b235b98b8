// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores and candidates of the tokens of a row, from the keys that attention has at hand.
//! Read before this: attention/lagged_queries.cuh.  Read next: attention/attend_blocks.cuh.
#include <diffkv/attention/attention_options.hpp>
#include <diffkv/attention/lagged_queries.cuh>
#include <diffkv/attention/softmax_state.hpp>  // minus_infinity
#include <diffkv/table/cache_ref.hpp>

namespace diffkv::detail {

//! A page as the score path needs it.
struct scored_page {
  std::byte* bytes     = nullptr;
  tier of              = tier::high;
  slot_index first     = 0;  //!< slot of the tile's first token
  std::uint32_t scores = 0;  //!< byte offset of the tile's scores in the page
};

//! What the scores of a row need beside its queries: left in shared memory, as registers are few.
struct alignas(16) scored_row {
  query_span after{};                    //!< which queries the scores hold then
  std::int32_t num_tokens          = 0;  //!< of the sequence
  std::int32_t first_query         = 0;  //!< position of query 0
  std::uint32_t high_pages         = 0;
  std::int32_t window              = 0;
  std::int32_t window_of_attention = 0;  //!< sliding window; 0: none
};
static_assert(sizeof(scored_row) == scored_row_bytes);

//! Of a query that the lag ring does not have.
inline constexpr std::size_t not_in_ring = ~std::size_t{0};

//! Of rows none of which catches up.
struct no_scores {
  static constexpr bool enabled = false;
};

//! Of rows some of which catch up.
//! @tparam All  all of them do
template <class Traits, bool All>
struct score_path {
  static constexpr bool enabled      = true;
  static constexpr bool all_catch_up = All;

  using columns = lag_columns<Traits::group_size, Traits::score_every, Traits::variant::exact_lag>;
  //! Whether the two columns of a lane, and of its neighbour, are four heads of one of two queries.
  static constexpr bool halves = columns::heads <= 4 && !columns::paired;
  template <class Tile>
  using queries_of = lagged_queries<Tile::head_dim, Tile::key.groups, Tile::key.is_quantised(),
                                    columns::octets, Traits::variant::exact_lag, columns::paired>;
  //! Formats whose keys are codes in the same order share their queries.
  static constexpr bool shared =
    std::is_same_v<queries_of<typename Traits::high_tile>, queries_of<typename Traits::low_tile>>;
  struct nothing {};
  using high_type = queries_of<typename Traits::high_tile>;
  using low_type  = std::conditional_t<shared, nothing, queries_of<typename Traits::low_tile>>;

  bool row_catches_up = All;  //!< the row at hand; else nothing here has a meaning
  high_type high;
  low_type low;
  //! Of columns 2 t and 2 t + 1: what is added to logits in base 2. Minus the log-sum-exp, -inf where there
  //! is no such query; with a soft-cap, which comes in between, scale * q.c.
  float start[columns::octets][2];
  float lse[columns::octets][2];  //!< base 2, with a soft-cap
  // Of the tile at hand.
  scored_page page{};
  candidate best{};                 //!< the record, or what this lane found that goes before it
  std::int32_t recorded = -1;       //!< position of the record
  candidate* record     = nullptr;  //!< of the page's tier and place, in the warp's part of the row
  scored_row const* row = nullptr;
  typename Traits::policy const* policy = nullptr;

  __device__ score_path() noexcept {}  // as row_accumulator

  __device__ void set_catches_up(bool catches_up) noexcept
  {
    if constexpr (!All) { row_catches_up = catches_up; }
  }
  [[nodiscard]] __device__ bool catches_up() const noexcept
  {
    if constexpr (All) {
      return true;
    } else {
      return row_catches_up;
    }
  }

  //! Reads the due queries of a row from the lag ring.
  //! @param index(query, head)  as query_ring_ref::index, or not_in_ring
  template <class Index>
  __device__ void load(query_ring_ref const& ring, Index const& index, float scale,
                       fragment_lane at) noexcept
  {
    constexpr float unit = Traits::variant::soft_cap ? 1.0f : log2_of_e;
    load_into(high, ring, index, scale, unit, at);
    if constexpr (!shared) { load_into(low, ring, index, scale, unit, at); }
  }

  //! Products of the keys of a block with the due queries, yet to be made.
  template <class Tile>
  [[nodiscard]] __device__ lagged_products<queries_of<Tile>> products() const noexcept
  {
    return {queries<Tile>(), start};
  }

  //! Sum of the probabilities of token g + 8 (t mod 2) of a block. With up to four q_heads, lanes t and
  //! t + 2 each have every second query; with more, both have the whole sum.
  //! @param block  of the tile
  template <class Tile>
  [[nodiscard]] __device__ float sum_of(lagged_products<queries_of<Tile>> const& products,
                                        std::uint32_t tile, int block, float soft_cap,
                                        fragment_lane at) const noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    bool const odd         = at.t % 2 != 0;
    auto const place       = static_cast<std::uint32_t>(16 * block + 2 * at.g + (odd ? 1 : 0));
    auto const position =
      static_cast<std::int32_t>(load_shared(tile + Tile::positions + 4u * place));
    float sum = 0.0f;
    float of_query[2]{minus_infinity,
                      minus_infinity};  // tokens g and g + 8, greatest over the heads
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float e[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          e[n] = products.x[i][r][n];
          if constexpr (Traits::variant::soft_cap) {
            e[n] = capped_logit(e[n], soft_cap) - lse[i][n];
          }
        }
        float const greatest      = columns::paired ? e[0] : fmaxf(e[0], e[1]);  // passes over NaN
        bool const first_of_query = columns::heads <= 4 || i % columns::per_query == 0;
        of_query[r]               = first_of_query ? greatest : fmaxf(of_query[r], greatest);
      }
      bool const last_of_query = columns::heads <= 4 || (i + 1) % columns::per_query == 0;
      if (!last_of_query) { continue; }
      // A lane keeps one token of two, and the other lane's heads of it.
      float const theirs = __shfl_xor_sync(all, odd ? of_query[0] : of_query[1], 1);
      float greatest     = fmaxf(odd ? of_query[1] : of_query[0], theirs);
      int query          = i / columns::per_query;
      if constexpr (halves) {
        query = 2 * i + at.t / 2;
      } else {
        greatest = fmaxf(greatest, __shfl_xor_sync(all, greatest, 2));
      }
      std::int32_t const query_position = row->first_query + query;
      bool seen                         = position < query_position;
      if constexpr (Traits::variant::sliding_window) {
        seen = seen && (row->window_of_attention <= 0 ||
                        position > query_position - row->window_of_attention);
      }
      sum += seen && greatest < 128.0f ? fast_exp2(greatest) : 0.0f;  // finite ones only
    }
    return sum;
  }

  //! New scores of the tokens of two blocks, and whether one of them goes first.
  //! @param a, b    sum_of the first, of the second block
  //! @param block   the first one; of the tile
  //! @param tokens  from there on, that exist
  template <class Tile>
  __device__ void update(float a, float b, std::uint32_t tile, int block, int tokens,
                         fragment_lane at) noexcept
  {
    bool const upper = at.t / 2 != 0;
    float add        = upper ? b : a;
    if constexpr (halves) { add += __shfl_xor_sync(0xFFFF'FFFFu, upper ? a : b, 2); }
    int const token = (upper ? 16 : 0) + at.g + 8 * (at.t % 2);
    if (token >= tokens) { return; }
    auto const at_place =
      static_cast<std::uint32_t>(4 * (16 * block + (upper ? 16 : 0) + 2 * at.g + at.t % 2));
    float const score   = __uint_as_float(load_shared(tile + Tile::scores + at_place)) + add;
    auto const position = static_cast<std::int32_t>(load_shared(tile + Tile::positions + at_place));
    __stcs(reinterpret_cast<float*>(page.bytes + page.scores + at_place), score);
    consider(score, position, page.first + static_cast<std::uint32_t>(16 * block + token));
  }

  __device__ void consider(float score, std::int32_t position, slot_index slot) noexcept
  {
    scored_row const of      = *row;
    std::int32_t const count = of.after.count(position + 1);
    if (!may_leave(page.of, position, of.num_tokens - 1, of.window, count)) { return; }
    float const importance = importance_of(score, count);
    if (is_nan(importance)) { return; }
    candidate const c{position, slot, policy->priority(importance, position + 1, of.num_tokens)};
    // As candidate::before, all that are compared being present.
    if (c.priority < best.priority || (c.priority == best.priority && position < best.position)) {
      best = c;
    }
  }

  //! A page begins, or a part of one.
  //! @param of_page  candidate of its tier and place so far, shared memory
  __device__ void open_page(candidate* of_page) noexcept
  {
    record        = of_page;
    bool const is = of_page->present();
    recorded      = is ? of_page->position : 0x7FFF'FFFF;
    best          = {recorded, no_slot, is ? of_page->priority : infinity};
  }
  //! It is done: what goes before the record takes its place, which becomes rare as a row is read.
  //! @threads one warp
  __device__ void close_page() noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    bool const is_new      = best.position != recorded;
    if (!__any_sync(all, is_new)) { return; }
    int const key   = is_new ? ordered_int(best.priority) : 0x7FFF'FFFF;
    int const least = __reduce_min_sync(all, key);
    auto const age =
      is_new && key == least ? static_cast<std::uint32_t>(best.position) : 0xFFFF'FFFFu;
    bool const is_first = age == __reduce_min_sync(all, age) && is_new;
    __syncwarp();  // all lanes have read the record
    if (is_first) { *record = best; }
    __syncwarp();
  }

 private:
  template <class Tile>
  [[nodiscard]] __device__ queries_of<Tile> const& queries() const noexcept
  {
    if constexpr (std::is_same_v<queries_of<Tile>, high_type>) {
      return high;
    } else {
      return low;
    }
  }

  template <class Queries, class Index>
  static __device__ void load_into(Queries& queries, query_ring_ref const& ring, Index const& index,
                                   float scale, float unit, fragment_lane at) noexcept
  {
    using share        = typename Queries::share;
    constexpr auto dim = static_cast<std::size_t>(Traits::head_dim);
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
      int const column       = 8 * i + at.g;
      std::size_t const from = index(columns::query(column), columns::head(column));
      bool const exists      = from != not_in_ring;
      if constexpr (Traits::codes_in_ring) {
        std::uint32_t words[share::elements / 4];
        code_share<share>::load(exists ? ring.codes + from * dim : nullptr, at.t, words);
        queries.set_codes(i, words, exists ? ring.largest[from] : 0.0f, scale, unit, at);
      } else {
        float x[share::elements];
        load_share<share>(exists ? ring.queries + from * dim : nullptr, true, at.t, x);
        queries.set(i, x, scale, unit, at);
      }
    }
  }
};

}  // namespace diffkv::detail
