// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What later queries think of each token, by the warpgroup products and the copy engine of Hopper
//! GPUs (sm_90a).
//! Read before this: prefill/hopper_cta.cuh, prefill/importance_tile.cuh.
//! Read next: prefill/prefill_launch.cuh.
//!
//! A CTA keeps 256 keys, a warpgroup 64 of them, and lets the queries that count pass by, of one
//! q_head after the other. The products stand with keys as rows, so that a key's sum stays in its
//! lanes until the end, and nobody else writes it: no atomics, and the same order of additions on
//! every run. One warp copies keys and queries, another one brings lse.
#include <diffkv/prefill/hopper_cta.cuh>
#include <diffkv/prefill/importance_tile.cuh>

namespace diffkv::detail {

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! What the warps tell each other. There are two places for tiles, so that one can be read until
//! all of it is done, even where its keys are needed no longer.
template <int KeyStages, int QueryStages>
struct importance_exchange {
  stage_barriers<KeyStages> keys;
  stage_barriers<QueryStages> queries;
  stage_barriers<2> announced;  // full once a tile can be read, before its keys are there
  importance_tile tiles[2];
};

//! The CTA at work; each warpgroup does its part.
template <class T, int HeadDim, int Queries>
class importance_hopper_cta {
 public:
  using tuning   = importance_tuning_sm90<T, HeadDim, Queries>;
  using exchange = importance_exchange<tuning::key_stages, tuning::query_stages>;

  __device__ importance_hopper_cta(importance_hopper_params<T> const& p, exchange& shared,
                                   std::uint32_t base) noexcept
    : p_{p}, exchange_{shared}, base_{base}
  {}

  __device__ static void init(exchange& shared) noexcept
  {
    constexpr std::uint32_t warps = 4 * tuning::warpgroups;
    shared.keys.init(1, warps + 1);  // who brings lse reads the tile, too
    shared.queries.init(2, warps);   // the copies and lse
    shared.announced.init(1, 1);
    publish_barriers();
  }

  //! @threads one warpgroup, of which two warps are needed
  __device__ void copy_all() const noexcept
  {
    if (threadIdx.x < 32) {
      copy_tiles();
    } else if (threadIdx.x < 64) {
      bring_lse();
    }
  }

  //! @threads one warpgroup, the i-th of those that compute
  __device__ void compute_all(int i) const noexcept
  {
    item_cursor item;
    query_cursor query;
    if (i == tuning::warpgroups - 1) { tensor_turns::pass(i); }  // the first one begins
    while (true) {
      exchange_.keys.full(item.keys.stage).wait(item.keys.parity);
      importance_tile const& shared = exchange_.tiles[item.place.stage];
      importance_tile const tile    = importance_tile::read(shared);
      if (tile.is_last()) { break; }
      key_tile const keys{base_ + static_cast<std::uint32_t>(item.keys.stage) * key_tile::bytes +
                          static_cast<std::uint32_t>(i) * 64 * 128};
      std::uint32_t kept[tuning::keeps_keys ? HeadDim / 4 : 1];
      if constexpr (tuning::keeps_keys) {
        load(kept, keys);
        __syncwarp();
        release(exchange_.keys.free(item.keys.stage));
      }
      std::int32_t const key       = own_key();
      std::int32_t const first[2]  = {tile.first_after(64 * i + key),
                                      tile.first_after(64 * i + key + 8)};
      std::int32_t const first_any = tile.first_after(64 * i);
      std::int32_t const first_all = tile.first_after(64 * i + 63);
      for (std::uint32_t h = 0; h < tile.num_q_heads; ++h) {
        float sums[2] = {0.0f, 0.0f};
        for (std::int32_t from = 0; from < tile.num_queries; from += Queries) {
          exchange_.queries.full(query.stage).wait(query.parity);
          tensor_turns::take(i);
          if (from + Queries <= first_any) {  // none is later than one of the keys
            tensor_turns::pass(i);
          } else {
            float products[Queries / 2];
            multiply_keys(products, kept, keys, query.stage);
            tensor_turns::pass(i);
            wait_for_products();
            settle(products);
            add(sums, products, query.stage, first[0] - from, first[1] - from, from < first_all);
          }
          // All lanes have used the tile's lse. From the ring's second turn on, racecheck reports
          // these reads beside the next stores, as it does not see the warp's being in step.
          __syncwarp();
          release(exchange_.queries.free(query.stage));
          query.advance();
        }
        store(sums, importance_tile::read(shared), h, 64 * i + key);
      }
      if constexpr (!tuning::keeps_keys) { release(exchange_.keys.free(item.keys.stage)); }
      item.advance();
    }
  }

 private:
  using key_tile     = typename tuning::key_tile;
  using query_tile   = typename tuning::query_tile;
  using query_cursor = stage_cursor<tuning::query_stages>;
  using tensor_turns = warpgroup_turns<tuning::warpgroups>;

  //! Where somebody stands among the items.
  struct item_cursor {
    stage_cursor<tuning::key_stages> keys;
    stage_cursor<2> place;

    __device__ void advance() noexcept
    {
      keys.advance();
      place.advance();
    }
  };

  [[nodiscard]] __device__ query_tile queries(int stage) const noexcept
  {
    return {base_ + tuning::queries_at + static_cast<std::uint32_t>(stage) * query_tile::bytes};
  }
  [[nodiscard]] __device__ std::uint32_t lse_of(int stage) const noexcept
  {
    return base_ + tuning::lse_at + static_cast<std::uint32_t>(stage) * tuning::lse_bytes;
  }
  //! The first one of a thread's two keys, counted from the warpgroup's first one.
  [[nodiscard]] static __device__ int own_key() noexcept
  {
    return static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4);
  }

  //! Copies what an item reads.  @threads one
  __device__ void copy(importance_tile const& tile, item_cursor const& item,
                       query_cursor& query) const noexcept
  {
    phase_barrier const full = exchange_.keys.full(item.keys.stage);
    exchange_.keys.free(item.keys.stage).wait(item.keys.parity ^ 1);
    exchange_.tiles[item.place.stage] = tile;
    exchange_.announced.full(item.place.stage).arrive();
    if (tile.is_last()) { return full.arrive(); }
    full.arrive_expecting(key_tile::bytes);
    p_.key.copy(base_ + static_cast<std::uint32_t>(item.keys.stage) * key_tile::bytes, full,
                tile.first_key, tile.first_q_head / p_.call.group_size);
    for (std::uint32_t h = 0; h < tile.num_q_heads; ++h) {
      for (std::int32_t from = 0; from < tile.num_queries; from += Queries) {
        exchange_.queries.free(query.stage).wait(query.parity ^ 1);
        exchange_.queries.full(query.stage).arrive_expecting(query_tile::bytes);
        p_.query.copy_sampled(queries(query.stage).base, exchange_.queries.full(query.stage),
                              tile.first_query + p_.query.step * from, tile.first_q_head + h);
        query.advance();
      }
    }
  }

  //! Keys and queries.  @threads one warp
  __device__ void copy_tiles() const noexcept
  {
    auto const size_of = [](prefill_part const& part) { return part.num_keys(); };
    prefill_turns turns{p_.call.batch, p_.cut, p_.workers, p_.max_rounds, size_of};
    item_cursor item;
    query_cursor query;
    while (true) {
      auto const tile =
        importance_tile::of(turns.next(), tuning::keys, p_.call.counted, p_.call.group_size,
                            p_.cut.units_per_head, p_.heads_per_unit);
      if (threadIdx.x % 32 == 0) { copy(tile, item, query); }
      if (tile.is_last()) { break; }
      item.advance();
      __syncwarp();
    }
  }

  //! lse to base 2, negative; what is not there gives nobody a probability.  @threads one warp
  __device__ void bring_lse() const noexcept
  {
    auto const lane = static_cast<std::int32_t>(threadIdx.x % 32);
    item_cursor item;
    query_cursor query;
    while (true) {
      exchange_.announced.full(item.place.stage).wait(item.place.parity);
      importance_tile const tile = importance_tile::read(exchange_.tiles[item.place.stage]);
      if (tile.is_last()) { break; }
      release(exchange_.keys.free(item.keys.stage));  // it has been read
      for (std::uint32_t h = 0; h < tile.num_q_heads; ++h) {
        float const* const lse =
          p_.call.lse + (tile.first_q_head + h) * p_.call.batch.num_queries + tile.first_query;
        for (std::int32_t from = 0; from < tile.num_queries; from += Queries) {
          float negative[Queries / 32];
#pragma unroll
          for (int i = 0; i < Queries / 32; ++i) {
            std::int32_t const q = from + 32 * i + lane;
            negative[i] = q < tile.num_queries ? lse[std::int64_t{tile.every} * q] * -log2_of_e
                                               : minus_infinity;
          }
          exchange_.queries.free(query.stage).wait(query.parity ^ 1);
          std::uint32_t const to = lse_of(query.stage) +
                                   static_cast<std::uint32_t>(lane / 2 % 4) * tuning::lse_pitch +
                                   static_cast<std::uint32_t>(lane / 8 * 2 + lane % 2) * 4;
#pragma unroll
          for (int i = 0; i < Queries / 32; ++i) {
            store_shared(to + 32u * static_cast<std::uint32_t>(i), __float_as_uint(negative[i]));
          }
          __syncwarp();
          release(exchange_.queries.full(query.stage));
          query.advance();
        }
      }
      item.advance();
    }
  }

  template <int N>
  __device__ static void load(std::uint32_t (&kept)[N], key_tile keys) noexcept
  {
    auto const lane = static_cast<int>(threadIdx.x % 32);
    int const row   = static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
      std::uint32_t w[4];
      load_matrices(w, keys.at(row, 16 * k + lane / 16 * 8));
#pragma unroll
      for (int j = 0; j < 4; ++j) { kept[4 * k + j] = w[j]; }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) { asm volatile("" : "+r"(kept[k])::"memory"); }
  }

  template <int N>
  __device__ void multiply_keys(float (&products)[Queries / 2], std::uint32_t const (&kept)[N],
                                key_tile keys, int stage) const noexcept
  {
    std::uint64_t const right = queries(stage).by_elements();
    std::uint64_t const left  = keys.by_elements();
    begin_products();
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
      if constexpr (tuning::keeps_keys) {
        multiply<T>(products, kept + 4 * k, right + query_tile::element_step(k), k > 0);
      } else {
        multiply<T>(products, left + key_tile::element_step(k), right + query_tile::element_step(k),
                    k > 0);
      }
    }
    end_products();
  }

  //! Adds the probabilities that the queries of a tile give to a thread's two keys.
  //! @param first_0, first_1  the first query of the tile that counts for each
  __device__ void add(float (&sums)[2], float const (&products)[Queries / 2], int stage,
                      std::int32_t first_0, std::int32_t first_1, bool is_masked) const noexcept
  {
    float added[2];
    bool is_finite = false;
    if (!is_masked) {
      add_probabilities<false>(added, products, stage, 0, 0);
      is_finite = added[0] + added[1] < infinity;
    }
    if (__any_sync(~0u, !is_finite)) {
      add_probabilities<true>(added, products, stage, first_0, first_1);
    }
    sums[0] += added[0];
    sums[1] += added[1];
  }

  //! @tparam IsGuarded  whether queries that do not count and what is not finite are left out; the
  //!         order of additions is the same
  template <bool IsGuarded>
  __device__ void add_probabilities(float (&added)[2], float const (&products)[Queries / 2],
                                    int stage, std::int32_t first_0,
                                    std::int32_t first_1) const noexcept
  {
    std::uint32_t const lane   = threadIdx.x % 32;
    std::uint32_t const lse    = lse_of(stage) + lane % 4 * tuning::lse_pitch;
    auto const column          = static_cast<std::int32_t>(lane % 4 * 2);
    std::int32_t const from[2] = {first_0 - column, first_1 - column};
    float parts[2][2]          = {};
#pragma unroll
    for (int n = 0; n < Queries / 8; n += 2) {
      std::uint32_t words[4];
      load_shared(words, lse + 8u * static_cast<std::uint32_t>(n));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        int const r          = j / 2 % 2;
        float const exponent = fmaf(products[4 * n + j], p_.call.logits.scale,
                                    __uint_as_float(words[j / 4 * 2 + j % 2]));
        float weight         = fast_exp2(exponent);
        if constexpr (IsGuarded) {
          // Not finite from 2^128 on, and no number where lse is none: left out.
          bool const counts = 8 * n + j / 4 * 8 + j % 2 >= from[r] && exponent < 128.0f;
          weight            = counts ? weight : 0.0f;
        }
        parts[r][j % 2] += weight;
      }
    }
    added[0] = parts[0][0] + parts[0][1];
    added[1] = parts[1][0] + parts[1][1];
  }

  //! Sums of tokens that are new with this launch start here.
  __device__ void store(float (&sums)[2], importance_tile const& tile, std::uint32_t h,
                        std::int32_t key) const noexcept
  {
    std::int64_t const at =
      (tile.first_q_head + h) * p_.call.batch.key_tokens() + tile.first_key + key;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(~0u, sums[r], 1);
      sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
      if (threadIdx.x % 4 != 0 || key + 8 * r >= tile.num_keys) { continue; }
      float* const sum = p_.call.sums + at + 8 * r;
      *sum             = key + 8 * r < tile.new_from ? *sum + sums[r] : sums[r];
    }
  }

  importance_hopper_params<T> const& p_;
  exchange& exchange_;
  std::uint32_t base_;
};

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

//! Static shared memory is there only where the body is: how `has_hopper_body` tells.
template <class T, int HeadDim, int Queries>
DIFFKV_KERNEL void __launch_bounds__(importance_tuning_sm90<T, HeadDim, Queries>::threads, 1)
  importance_hopper_kernel(__grid_constant__ importance_hopper_params<T> const p)
{
#if DIFFKV_HAS_WARPGROUP_PRODUCTS
  run_warpgroups<importance_hopper_cta<T, HeadDim, Queries>>(p);
#endif
}

}  // namespace diffkv::detail
