// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompt attention by the warpgroup products and the copy engine of Hopper GPUs (sm_90a).
//! Read before this: prefill/hopper_cta.cuh, prefill/hopper_rows.cuh, prefill/prefill_kernel.cuh.
//! Read next: prefill/importance_tile.cuh.
//!
//! A CTA takes 192 queries of one q_head; one warpgroup copies, three have 64 queries each and walk
//! from the last key that these see to the first, in blocks that start at the same positions
//! whatever the tile, the chunk or the batch is. A warpgroup has nothing of its own in flight while
//! it makes weights of its logits: the other two keep the tensor cores busy meanwhile, and take
//! turns to stay out of step. Tiles are cut from a sequence's end, so that the one that is not full
//! is the cheapest.
#include <diffkv/prefill/hopper_cta.cuh>
#include <diffkv/prefill/hopper_rows.cuh>
#include <diffkv/prefill/prefill_kernel.cuh>  // prefill_params
#include <diffkv/prefill/prefill_schedule.cuh>
#include <diffkv/prefill/tensor_map.cuh>
#include <diffkv/prefill/warpgroup_product.cuh>

namespace diffkv::detail {

template <class T>
struct prefill_hopper_params {
  prefill_params<T, T> call{};
  token_map query{};
  token_map key{};
  token_map value{};
  prefill_cut cut{};
  std::uint32_t workers    = 1;  //!< CTAs that run at the same time
  std::uint32_t max_rounds = 1;
};

template <class T, int HeadDim>
struct prefill_tuning_sm90 {
  static constexpr int warpgroups = 3;  //!< that compute
  static constexpr int threads    = warpgroup_threads * (warpgroups + 1);
  static constexpr int queries    = 64 * warpgroups;
  static constexpr int keys       = 128;
  static constexpr int stages     = HeadDim == 64 ? 4 : 2;
  using query_tile                = swizzled_tile<queries, HeadDim>;
  using key_tile                  = swizzled_tile<keys, HeadDim>;
  //! Of 65536 / threads = 128 at launch: 32 + 3 * 160 = 4 * 128.
  static constexpr int copying_registers   = 32;
  static constexpr int computing_registers = 160;
  //! Queries, keys, values, out; and what it takes to start at a multiple of 1024 bytes.
  static constexpr std::uint32_t keys_at      = query_tile::bytes;
  static constexpr std::uint32_t values_at    = keys_at + stages * key_tile::bytes;
  static constexpr std::uint32_t out_at       = values_at + stages * key_tile::bytes;
  static constexpr std::uint32_t shared_bytes = out_at + query_tile::bytes + 1024;
  static_assert(shared_bytes <= most_dynamic_bytes);
};

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! What the warpgroups tell each other. There are two places for tiles, so that one can be read
//! until all of it is done: the next but one comes when all have the next one's products.
template <int Stages>
struct prefill_exchange {
  stage_barriers<1> queries;
  stage_barriers<Stages> keys;
  stage_barriers<Stages> values;
  hopper_tile tiles[2];
};
static_assert(sizeof(prefill_exchange<4>) <= most_static_bytes);

//! The CTA at work; each warpgroup does its part.
template <class T, int HeadDim>
class prefill_hopper_cta {
 public:
  using tuning   = prefill_tuning_sm90<T, HeadDim>;
  using exchange = prefill_exchange<tuning::stages>;

  __device__ prefill_hopper_cta(prefill_hopper_params<T> const& p, exchange& shared,
                                std::uint32_t base) noexcept
    : p_{p}, exchange_{shared}, base_{base}
  {}

  __device__ static void init(exchange& shared) noexcept
  {
    constexpr std::uint32_t warps = 4 * tuning::warpgroups;
    shared.queries.init(1, warps);
    shared.keys.init(1, warps);
    shared.values.init(1, warps);
    publish_barriers();
  }

  //! @threads one warpgroup, of which one warp is needed
  __device__ void copy_all() const noexcept
  {
    if (threadIdx.x >= 32) { return; }
    auto const size_of = [](prefill_part const& part) { return part.num_queries; };
    prefill_turns turns{p_.call.batch, p_.cut, p_.workers, p_.max_rounds, size_of};
    stage_cursor<1> query;
    stage_cursor<tuning::stages> block;
    while (true) {
      hopper_tile const tile = hopper_tile::of(turns.next(), tuning::queries);
      if (threadIdx.x % 32 == 0) { copy(tile, query, block); }
      if (tile.is_last()) { break; }
      query.advance();
      __syncwarp();
    }
  }

  //! @threads one warpgroup, the i-th of those that compute
  __device__ void compute_all(int i) const noexcept
  {
    int const lane = static_cast<int>(threadIdx.x % 32);
    stage_cursor<1> query;
    stage_cursor<tuning::stages> block;
    if (i == tuning::warpgroups - 1) { tensor_turns::pass(i); }  // the first one begins
    while (true) {
      exchange_.queries.full(0).wait(query.parity);
      hopper_tile const& shared = exchange_.tiles[query.parity];
      hopper_tile const tile    = hopper_tile::read(shared, lane);
      if (tile.is_last()) { break; }
      query.advance();
      hopper_rows<T, HeadDim, tuning::keys> rows;
      rows.clear(tile.first_position + 64 * i);
      std::int32_t n = tile.last_position(tuning::queries) / tuning::keys;
      for (; n * tuning::keys > rows.last_position(); --n) { pass_over(i, n, block); }
      for (; n >= 0 && (n + 1) * tuning::keys - 1 > rows.first_position(); --n) {
        attend<true>(rows, i, n, block);
      }
      for (; n >= 0; --n) { attend<false>(rows, i, n, block); }
      store(rows, hopper_tile::read(shared, lane), i);
    }
  }

 private:
  using query_tile   = typename tuning::query_tile;
  using key_tile     = typename tuning::key_tile;
  using cursor       = stage_cursor<tuning::stages>;
  using tensor_turns = warpgroup_turns<tuning::warpgroups>;

  [[nodiscard]] __device__ query_tile queries() const noexcept { return {base_}; }
  [[nodiscard]] __device__ key_tile keys(int stage) const noexcept
  {
    return {base_ + tuning::keys_at + static_cast<std::uint32_t>(stage) * key_tile::bytes};
  }
  [[nodiscard]] __device__ key_tile values(int stage) const noexcept
  {
    return {base_ + tuning::values_at + static_cast<std::uint32_t>(stage) * key_tile::bytes};
  }

  //! Copies what an item reads.  @threads one
  __device__ void copy(hopper_tile const& tile, stage_cursor<1> const& query,
                       cursor& block) const noexcept
  {
    exchange_.queries.free(0).wait(query.parity ^ 1);
    exchange_.tiles[query.parity] = tile;
    if (tile.is_last()) { return exchange_.queries.full(0).arrive(); }
    exchange_.queries.full(0).arrive_expecting(query_tile::bytes);
    p_.query.copy(queries().base, exchange_.queries.full(0), tile.first_query, tile.q_head);
    std::uint32_t const head = tile.q_head / p_.call.group_size;
    for (std::int32_t n = tile.last_position(tuning::queries) / tuning::keys; n >= 0; --n) {
      copy(p_.key, keys(block.stage), exchange_.keys, block, tile.first_key + n * tuning::keys,
           head);
      copy(p_.value, values(block.stage), exchange_.values, block,
           tile.first_key + n * tuning::keys, head);
      block.advance();
    }
  }
  __device__ static void copy(token_map const& from, key_tile to,
                              stage_barriers<tuning::stages> const& barriers, cursor const& block,
                              std::int32_t token, std::uint32_t head) noexcept
  {
    barriers.free(block.stage).wait(block.parity ^ 1);
    barriers.full(block.stage).arrive_expecting(key_tile::bytes);
    from.copy(to.base, barriers.full(block.stage), token, head);
  }

  //! A block whose keys are all later than the warpgroup's queries.
  __device__ void pass_over(int i, std::int32_t n, cursor& block) const noexcept
  {
    exchange_.keys.full(block.stage).wait(block.parity);
    tensor_turns::take(i);
    tensor_turns::pass(i);
    exchange_.values.full(block.stage).wait(block.parity);
    __syncwarp();  // all have seen both tiles
    release(exchange_.keys.free(block.stage));
    release(exchange_.values.free(block.stage));
    if (n == 0) { release(exchange_.queries.free(0)); }
    block.advance();
  }

  template <bool IsMasked>
  __device__ void attend(hopper_rows<T, HeadDim, tuning::keys>& rows, int i, std::int32_t n,
                         cursor& block) const noexcept
  {
    float logits[tuning::keys / 2];
    std::uint32_t weights[tuning::keys / 4];
    query_tile const own{base_ + static_cast<std::uint32_t>(i) * 64 * 128};
    exchange_.keys.full(block.stage).wait(block.parity);
    tensor_turns::take(i);
    std::uint64_t const left  = own.by_elements();
    std::uint64_t const right = keys(block.stage).by_elements();
    begin_products();
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
      multiply<T>(logits, left + query_tile::element_step(k), right + key_tile::element_step(k),
                  k > 0);
    }
    end_products();
    tensor_turns::pass(i);
    wait_for_products();
    settle(logits);
    release(exchange_.keys.free(block.stage));
    if (n == 0) { release(exchange_.queries.free(0)); }
    if constexpr (IsMasked) { rows.mask(logits, n * tuning::keys); }
    rows.weigh(logits, p_.call.logits.scale, weights);
    exchange_.values.full(block.stage).wait(block.parity);
    bool values_are_finite = true;
    if constexpr (IsMasked) {
      values_are_finite = !any_at(1 + tuning::warpgroups + i, warpgroup_threads,
                                  rows.has_non_finite_part(values(block.stage), n * tuning::keys));
    }
    if (values_are_finite) {
      rows.add_values(weights, values(block.stage));
    } else {
      rows.add_values_seen(weights, values(block.stage), n * tuning::keys);
      wait_at(1 + tuning::warpgroups + i, warpgroup_threads);  // all have read the values
    }
    release(exchange_.values.free(block.stage));
    block.advance();
  }

  __device__ void store(hopper_rows<T, HeadDim, tuning::keys>& rows, hopper_tile const& tile,
                        int i) const noexcept
  {
    constexpr int units = HeadDim / 8;
    auto const lane     = static_cast<int>(threadIdx.x % 32);
    auto const warp     = static_cast<int>(threadIdx.x / 32 % 4);
    // A warp's 16 queries, exchanged within the warp: whole vectors are stored.
    swizzled_tile<16, HeadDim> const staged{base_ + tuning::out_at +
                                            static_cast<std::uint32_t>(4 * i + warp) *
                                              swizzled_tile<16, HeadDim>::bytes};
    rows.finish();
    __syncwarp();
    rows.stage(staged);
    __syncwarp();
    std::int32_t const first = 64 * i + 16 * warp;
#pragma unroll
    for (int unit = lane; unit < 16 * units; unit += 32) {
      std::int32_t const row = first + unit / units;
      if (row < tile.missing) { continue; }
      std::uint32_t w[4];
      load_shared(w, staged.at(unit / units, unit % units * 8));
      *reinterpret_cast<uint4*>(p_.call.out.at(tile.first_query + std::int64_t{row}, tile.q_head) +
                                unit % units * 8) = uint4{w[0], w[1], w[2], w[3]};
    }
    if (p_.call.lse == nullptr || lane % 4 != 0) { return; }
    float* const lse = p_.call.lse + tile.q_head * p_.call.batch.num_queries + tile.first_query;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::int32_t const row = first + lane / 4 + 8 * r;
      if (row >= tile.missing) { lse[row] = rows.log_sum_exp(r, p_.call.logits.scale); }
    }
  }

  prefill_hopper_params<T> const& p_;
  exchange& exchange_;
  std::uint32_t base_;
};

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

//! Static shared memory is there only where the body is: how `has_hopper_body` tells.
template <class T, int HeadDim>
DIFFKV_KERNEL void __launch_bounds__(prefill_tuning_sm90<T, HeadDim>::threads, 1)
  prefill_hopper_kernel(__grid_constant__ prefill_hopper_params<T> const p)
{
#if DIFFKV_HAS_WARPGROUP_PRODUCTS
  run_warpgroups<prefill_hopper_cta<T, HeadDim>>(p);
#endif
}

}  // namespace diffkv::detail
