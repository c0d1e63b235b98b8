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

  //! Of token g + 8 (t mod 2) of a block, from this lane and its neighbour t xor 1: with k = 4 the sum of the
  //! probabilities of two queries, with k = 2 the probability of one, with k = 1 the greatest logit of half
  //! the heads. A lane gives what it has of the other token for what its neighbour has of its own.
  //! @param block  of the tile
  template <class Tile>
  [[nodiscard]] __device__ float of_block(lagged_products<queries_of<Tile>> const& products,
                                          std::uint32_t tile, int block, float soft_cap,
                                          fragment_lane at) const noexcept
  {
    float x[2]{minus_infinity,
               minus_infinity};  // tokens g and g + 8, greatest over the lane's heads
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int n = 0; n < (columns::paired ? 1 : 2); ++n) {
          float e = products.x[i][r][n];
          if constexpr (Traits::variant::soft_cap) { e = capped_logit(e, soft_cap) - lse[i][n]; }
          x[r] = fmaxf(x[r], e);  // passes over NaN
        }
      }
    }
    std::uint32_t const positions = tile + Tile::positions + place_of_two(block, at);
    bool const odd                = at.t % 2 != 0;
    if constexpr (columns::lanes == 1) {
      std::uint32_t of_tokens[2];
      load_shared(of_tokens, positions);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[r] = probability(x[r], static_cast<std::int32_t>(of_tokens[r]), at);
      }
    }
    float const theirs = __shfl_xor_sync(whole_warp, odd ? x[0] : x[1], 1);
    float const own    = odd ? x[1] : x[0];
    if constexpr (columns::lanes == 1) { return own + theirs; }
    float const greatest = fmaxf(own, theirs);
    if constexpr (columns::lanes == 4) { return greatest; }
    std::uint32_t const position = load_shared(positions + (odd ? 4u : 0u));
    return probability(greatest, static_cast<std::int32_t>(position), at);
  }

  //! What is added to the score of a lane's token of two blocks: token g + 8 (t mod 2) of the first one in
  //! lanes whose t is below 2, of the second one in the others.
  //! @param a, b    of_block
  //! @param block   the first one; of the tile
  //! @param blocks  1 if there is no second one
  template <class Tile>
  [[nodiscard]] __device__ float of_two_blocks(float a, float b, std::uint32_t tile, int block,
                                               int blocks, fragment_lane at) const noexcept
  {
    bool const upper   = at.t / 2 != 0;
    float const theirs = __shfl_xor_sync(whole_warp, upper ? a : b, 2);
    float const own    = upper ? b : a;
    if constexpr (columns::lanes < 4) { return own + theirs; }
    std::uint32_t const position =
      load_shared(tile + Tile::positions + place_of(block, blocks, at));
    return probability(fmaxf(own, theirs), static_cast<std::int32_t>(position), at);
  }

  //! New scores of the tokens of some blocks, and whether one of them goes first. No branch but those of the
  //! policy, so that this is computed beside the weights and sums of attention.
  //! @param add          of_two_blocks, for each two
  //! @param first_block  of the tile
  //! @param tokens       from there on, that exist
  template <class Tile, int Blocks, int Pairs>
  __device__ void update(float const (&add)[Pairs], std::uint32_t tile, int first_block, int tokens,
                         fragment_lane at) noexcept
  {
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
      int const token           = 16 * (2 * i + at.t / 2) + at.g + 8 * (at.t % 2);
      bool const exists         = token < min_of(tokens, Blocks * block_tokens);
      std::uint32_t const place = place_of(first_block + 2 * i, min_of(Blocks - 2 * i, 2), at);
      float const score   = __uint_as_float(load_shared(tile + Tile::scores + place)) + add[i];
      auto const position = static_cast<std::int32_t>(load_shared(tile + Tile::positions + place));
      if (exists) { __stcs(reinterpret_cast<float*>(page.bytes + page.scores + place), score); }
      consider(exists, score, exists ? position : 0,
               page.first + static_cast<std::uint32_t>(16 * first_block + token));
    }
  }

  //! Whether a token goes in front of the best one so far.
  __device__ void consider(bool exists, float score, std::int32_t position,
                           slot_index slot) noexcept
  {
    scored_row const of      = *row;
    std::int32_t const count = of.after.count(position + 1);
    bool const eligible =
      exists & may_leave(page.of, position, of.num_tokens - 1, of.window, count);
    float const importance = importance_of(score, eligible ? count : 1);
    bool const is          = eligible & !is_nan(importance);
    float const priority =
      policy->priority(is ? importance : 0.0f, is ? position + 1 : 1, of.num_tokens);
    // As candidate::before, all that are compared being present.
    bool const is_first = is & ((priority < best.priority) |
                                ((priority == best.priority) & (position < best.position)));
    best.priority       = is_first ? priority : best.priority;
    best.position       = is_first ? position : best.position;
    best.slot           = is_first ? slot : best.slot;
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
    bool const is_new = best.position != recorded;
    if (!__any_sync(whole_warp, is_new)) { return; }
    int const key   = is_new ? ordered_int(best.priority) : 0x7FFF'FFFF;
    int const least = __reduce_min_sync(whole_warp, key);
    auto const age =
      is_new && key == least ? static_cast<std::uint32_t>(best.position) : 0xFFFF'FFFFu;
    bool const is_first = age == __reduce_min_sync(whole_warp, age) && is_new;
    __syncwarp();  // all lanes have read the record
    if (is_first) { *record = best; }
    __syncwarp();
  }

 private:
  static constexpr unsigned whole_warp = 0xFFFF'FFFFu;

  //! Byte offset of what tokens g and g + 8 of a block have in a segment of four bytes a token.
  [[nodiscard]] static __device__ std::uint32_t place_of_two(int block, fragment_lane at) noexcept
  {
    return static_cast<std::uint32_t>(4 * (block_tokens * block + 2 * at.g));
  }
  //! The same for a lane's token of two blocks.
  //! @param blocks  1: the second one does not exist, nor does the token
  [[nodiscard]] static __device__ std::uint32_t place_of(int block, int blocks,
                                                         fragment_lane at) noexcept
  {
    return place_of_two(block + min_of(at.t / 2, blocks - 1), at) +
           static_cast<std::uint32_t>(4 * (at.t % 2));
  }

  //! Probability that the query of this lane gives a token, if the query has seen it.
  //! @param logit  base 2, less the log-sum-exp
  [[nodiscard]] __device__ float probability(float logit, std::int32_t position,
                                             fragment_lane at) const noexcept
  {
    std::int32_t const query = row->first_query + at.t / columns::lanes;
    bool seen                = position < query;
    if constexpr (Traits::variant::sliding_window) {
      seen &= row->window_of_attention <= 0 || position > query - row->window_of_attention;
    }
    return seen & (logit < 128.0f) ? fast_exp2(logit) : 0.0f;  // finite ones only
  }

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
