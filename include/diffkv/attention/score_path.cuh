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

//! Sums of probabilities of tokens 16 b + g + 8 (t mod 2). With up to four q_heads, lanes t and t + 2 each
//! have every second query; with more, both have the whole sum.
template <int Blocks>
struct block_additions {
  float sum[Blocks];
};

//! A page as the score path needs it.
struct scored_page {
  std::byte* bytes     = nullptr;
  tier of              = tier::high;
  slot_index first     = 0;  //!< slot of the tile's first token
  std::uint32_t place  = 0;  //!< of its candidate
  std::uint32_t scores = 0;  //!< byte offset of the tile's scores in the page
};

template <class Traits, bool Enabled = Traits::has_scores>
struct score_path {  // without scores
  static constexpr bool on = false;
};

template <class Traits>
struct score_path<Traits, true> {
  using columns = lag_columns<Traits::group_size, Traits::score_every>;
  template <class Tile>
  using queries_of = lagged_queries<Tile::head_dim, Tile::key.groups, Tile::key.is_quantised(),
                                    columns::octets, Traits::variant::exact_lag>;
  //! Formats whose keys are codes in the same order share their queries.
  static constexpr bool shared =
    std::is_same_v<queries_of<typename Traits::high_tile>, queries_of<typename Traits::low_tile>>;
  struct nothing {};
  using high_type = queries_of<typename Traits::high_tile>;
  using low_type  = std::conditional_t<shared, nothing, queries_of<typename Traits::low_tile>>;

  bool on = false;  //!< the row catches up
  high_type high;
  low_type low;
  float lse[columns::octets][2];     //!< base 2, of columns 2 t and 2 t + 1; +inf: no such query
  float offset[columns::octets][2];  //!< scale * q.c, for a soft-cap
  std::int32_t first_query         = 0;  //!< position of query 0
  std::int32_t window_of_attention = 0;  //!< sliding window; 0: none
  query_span after{};                    //!< which queries the scores hold then
  std::int32_t num_tokens = 0;
  std::int32_t window     = 0;
  scored_page page{};
  candidate best{};             //!< of this lane and page
  candidate* record = nullptr;  //!< [2, places] of the warp's part of the row, shared memory
  typename Traits::policy const* policy = nullptr;

  //! Reads the due queries of a row from the lag ring.
  //! @param q(query, head)  head_dim floats, or null where there is no such query
  template <class At>
  __device__ void load(At const& q, float scale, fragment_lane at) noexcept
  {
    constexpr float unit = Traits::variant::soft_cap ? 1.0f : log2_of_e;
    load_into(high, q, scale, unit, at);
    if constexpr (!shared) { load_into(low, q, scale, unit, at); }
  }

  //! Adds the probabilities of the tokens of one block.
  template <class Tile, int Blocks>
  __device__ void add_block(key_block<Tile> const& keys, std::uint32_t tile, int first_block, int b,
                            block_additions<Blocks>& additions, float soft_cap,
                            fragment_lane at) const noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    bool const odd         = at.t % 2 != 0;
    auto const place =
      static_cast<std::uint32_t>(16 * (first_block + b) + 2 * at.g + (odd ? 1 : 0));
    auto const position =
      static_cast<std::int32_t>(load_shared(tile + Tile::positions + 4u * place));
    float sum = 0.0f;
    float of_query[2]{minus_infinity,
                      minus_infinity};  // tokens g and g + 8, greatest over the heads
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
      float x[2][2];
      queries<Tile>().multiply(i, keys, x);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float e[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          e[n] = x[r][n];
          if constexpr (Traits::variant::soft_cap) {
            e[n] = capped_logit(e[n] + offset[i][n], soft_cap);
          }
          e[n] -= lse[i][n];
        }
        float const greatest      = fmaxf(e[0], e[1]);  // passes over NaN
        bool const first_of_query = columns::heads <= 4 || i % columns::per_query == 0;
        of_query[r]               = first_of_query ? greatest : fmaxf(of_query[r], greatest);
      }
      bool const last_of_query = columns::heads <= 4 || (i + 1) % columns::per_query == 0;
      if (!last_of_query) { continue; }
      // A lane keeps one token of two, and the other lane's heads of it.
      float const theirs = __shfl_xor_sync(all, odd ? of_query[0] : of_query[1], 1);
      float greatest     = fmaxf(odd ? of_query[1] : of_query[0], theirs);
      int query          = i / columns::per_query;
      if constexpr (columns::heads <= 4) {
        query = 2 * i + at.t / 2;
      } else {
        greatest = fmaxf(greatest, __shfl_xor_sync(all, greatest, 2));
      }
      std::int32_t const query_position = first_query + query;
      bool seen                         = position < query_position;
      if constexpr (Traits::variant::sliding_window) {
        seen =
          seen && (window_of_attention <= 0 || position > query_position - window_of_attention);
      }
      sum += seen && greatest < 128.0f ? fast_exp2(greatest) : 0.0f;  // finite ones only
    }
    additions.sum[b] = sum;
  }

  //! New scores of the tokens of a run of blocks, and whether one of them goes first.
  template <class Tile, int Blocks>
  __device__ void update(block_additions<Blocks> const& additions, std::uint32_t tile,
                         int first_block, int tokens, fragment_lane at) noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    bool const upper       = at.t / 2 != 0;
#pragma unroll
    for (int u = 0; u < ceil_div(Blocks, 2); ++u) {
      bool const pair = 2 * u + 1 < Blocks;
      float const a   = additions.sum[2 * u];
      float const b   = pair ? additions.sum[(2 * u + 1) % Blocks] : 0.0f;
      float add       = upper ? b : a;
      if constexpr (columns::heads <= 4) { add += __shfl_xor_sync(all, upper ? a : b, 2); }
      int const block = 2 * u + (upper ? 1 : 0);
      int const token = 16 * block + at.g + 8 * (at.t % 2);
      if (token >= tokens || (!pair && upper)) { continue; }
      auto const at_place =
        static_cast<std::uint32_t>(4 * (16 * (first_block + block) + 2 * at.g + at.t % 2));
      float const score = __uint_as_float(load_shared(tile + Tile::scores + at_place)) + add;
      auto const position =
        static_cast<std::int32_t>(load_shared(tile + Tile::positions + at_place));
      __stcs(reinterpret_cast<float*>(page.bytes + page.scores + at_place), score);
      consider(score, position, page.first + static_cast<std::uint32_t>(16 * first_block + token));
    }
  }

  __device__ void consider(float score, std::int32_t position, slot_index slot) noexcept
  {
    std::int32_t const count = after.count(position + 1);
    if (!may_leave(page.of, position, num_tokens - 1, window, count)) { return; }
    float const importance = importance_of(score, count);
    if (is_nan(importance)) { return; }
    candidate const c{position, slot, policy->priority(importance, position + 1, num_tokens)};
    if (c.before(best)) { best = c; }
  }

  //! The page is done: the first of all lanes into the record of the row's part.
  //! @threads one warp
  __device__ void close_page() noexcept
  {
    constexpr unsigned all = 0xFFFF'FFFFu;
    int const key          = best.present() ? ordered_int(best.priority) : 0x7FFF'FFFF;
    int const least        = __reduce_min_sync(all, key);
    auto const age =
      key == least && best.present() ? static_cast<std::uint32_t>(best.position) : 0xFFFF'FFFFu;
    std::uint32_t const first = __reduce_min_sync(all, age);
    if (age == first && best.present()) {
      candidate& place =
        record[(page.of == tier::high ? 0 : Traits::candidate_places) + page.place];
      if (best.before(place)) { place = best; }
    }
    best = candidate{};
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

  template <class Queries, class At>
  static __device__ void load_into(Queries& queries, At const& q, float scale, float unit,
                                   fragment_lane at) noexcept
  {
    using share = typename Queries::share;
#pragma unroll
    for (int i = 0; i < columns::octets; ++i) {
      int const column = 8 * i + at.g;
      float x[share::elements];
      load_share<share>(q(columns::query(column), columns::head(column)), true, at.t, x);
      queries.set(i, x, scale, unit, at);
    }
  }
};

}  // namespace diffkv::detail
