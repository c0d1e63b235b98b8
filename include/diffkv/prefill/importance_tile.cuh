// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the Hopper kernel of importance is given, how it uses shared memory and registers, and what
//! an item of it is in numbers.
//! Read before this: prefill/prefill_hopper.cuh, prefill/prefill_importance.cuh.
//! Read next: prefill/importance_hopper.cuh.
#include <diffkv/prefill/prefill_importance.cuh>  // importance_params
#include <diffkv/prefill/prefill_schedule.cuh>
#include <diffkv/prefill/tensor_map.cuh>
#include <diffkv/prefill/warpgroup_product.cuh>

namespace diffkv::detail {

template <class T>
struct importance_hopper_params {
  importance_params<T> call{};
  token_map query{};
  token_map key{};
  prefill_cut cut{};
  std::uint32_t heads_per_unit = 1;  //!< q_heads of an item, of one head
  std::uint32_t workers        = 1;  //!< CTAs that run at the same time
  std::uint32_t max_rounds     = 1;
};

//! @tparam Queries  of a tile: 128 if all count, 64 for a few, whose tiles are better filled
template <class T, int HeadDim, int Queries>
struct importance_tuning_sm90 {
  static_assert(Queries == 64 || Queries == 128);
  static constexpr int warpgroups = 4;  //!< that compute
  static constexpr int threads    = warpgroup_threads * (warpgroups + 1);
  static constexpr int keys       = 64 * warpgroups;
  //! Whether a warpgroup keeps its keys in registers; else it reads them again for each tile.
  static constexpr bool keeps_keys  = Queries == 64;
  static constexpr int key_stages   = keeps_keys ? 1 : 2;
  static constexpr int query_stages = keeps_keys ? 6 : 3;
  using key_tile                    = swizzled_tile<keys, HeadDim>;
  using query_tile                  = swizzled_tile<Queries, HeadDim>;
  //! Of 65536 / threads, rounded down to 96, at launch: 32 + 4 * 112 = 5 * 96.
  static constexpr int copying_registers   = 32;
  static constexpr int computing_registers = 112;
  //! The lse of a tile's queries, of each four lanes' together; 16 bytes against bank conflicts.
  static constexpr std::uint32_t lse_pitch    = Queries + 16;
  static constexpr std::uint32_t lse_bytes    = 4 * lse_pitch;
  static constexpr std::uint32_t queries_at   = key_stages * key_tile::bytes;
  static constexpr std::uint32_t lse_at       = queries_at + query_stages * query_tile::bytes;
  static constexpr std::uint32_t shared_bytes = lse_at + query_stages * lse_bytes + 1024;
  static_assert(shared_bytes <= most_dynamic_bytes);
};

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! An item of importance in numbers; keys and queries are counted from the tile's first ones.
struct alignas(16) importance_tile {
  std::int32_t first_key;    //!< in key and sums
  std::int32_t num_keys;     //!< that are there, from the first one on
  std::int32_t new_from;     //!< keys from this one on are new with this launch
  std::int32_t first_query;  //!< in query
  std::int32_t num_queries;  //!< that count for at least one key
  std::int32_t every;        //!< query i is token first_query + every * i
  std::int32_t ahead;        //!< positions of the first query in front of the first key
  std::uint32_t first_q_head;
  std::uint32_t num_q_heads;
  std::int32_t is_there;

  [[nodiscard]] static __device__ importance_tile of(prefill_item const& item, int keys,
                                                     importance_queries const& counted,
                                                     std::uint32_t group_size,
                                                     std::uint32_t units_per_head,
                                                     std::uint32_t heads_per_unit) noexcept
  {
    if (item.tile < 0) { return {}; }
    prefill_part const& part = item.part;
    std::int32_t const key   = item.tile * keys;
    query_sample const sample =
      query_sample::of(counted, part.prompt_tokens, part.position, part.num_queries);
    std::int32_t const first   = sample.first_after(key);
    std::uint32_t const q_head = item.unit % units_per_head * heads_per_unit;
    return {static_cast<std::int32_t>(part.first_key) + key,
            min_of(part.num_keys() - key, keys),
            part.position - key,
            static_cast<std::int32_t>(part.first_query) + sample.position(first) - part.position,
            max_of(sample.count - first, 0),
            sample.every,
            sample.position(first) - key,
            item.unit / units_per_head * group_size + q_head,
            min_of(group_size - q_head, heads_per_unit),
            1};
  }
  //! As a tile in shared memory; one lane reads, it is also the one that says when it was read.
  [[nodiscard]] static __device__ importance_tile read(importance_tile const& shared) noexcept
  {
    importance_tile tile{};
    if (threadIdx.x % 32 == 0) { tile = shared; }
    return {__shfl_sync(~0u, tile.first_key, 0),   __shfl_sync(~0u, tile.num_keys, 0),
            __shfl_sync(~0u, tile.new_from, 0),    __shfl_sync(~0u, tile.first_query, 0),
            __shfl_sync(~0u, tile.num_queries, 0), __shfl_sync(~0u, tile.every, 0),
            __shfl_sync(~0u, tile.ahead, 0),       __shfl_sync(~0u, tile.first_q_head, 0),
            __shfl_sync(~0u, tile.num_q_heads, 0), __shfl_sync(~0u, tile.is_there, 0)};
  }
  //! Whether there is no tile any more.
  [[nodiscard]] __device__ bool is_last() const noexcept { return is_there == 0; }
  //! The first query that is later than a key; may be `num_queries` or more.
  [[nodiscard]] __device__ std::int32_t first_after(std::int32_t key) const noexcept
  {
    return key < ahead ? 0 : (key - ahead) / every + 1;
  }
};

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

}  // namespace diffkv::detail
