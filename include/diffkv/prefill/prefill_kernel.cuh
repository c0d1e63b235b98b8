// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompt attention by the tensor cores that all GPUs from compute capability 8.0 on have.
//! Read before this: prefill/prefill_rows.cuh, prefill/prefill_part.cuh.
//! Read next: prefill/prefill_importance.cuh.
//!
//! A CTA takes 64 queries of one q_head, a warp 16 of them, and walks through the keys that they
//! see, from the first one on, in blocks that start at the same positions whatever the tile, the
//! chunk or the batch is: a query's bits do not depend on those.
#include <diffkv/core/launch.cuh>
#include <diffkv/prefill/prefill_part.cuh>
#include <diffkv/prefill/prefill_rows.cuh>

#include <cstddef>  // byte

namespace diffkv::detail {

template <class T, class Out>
struct prefill_params {
  prefill_batch batch{};
  prefill_logits logits{};
  std::uint32_t num_q_heads = 0;
  std::uint32_t group_size  = 0;
  vectors<T const> query{};
  vectors<T const> key{};
  vectors<T const> value{};
  vectors<Out> out{};
  float* lse = nullptr;  //!< [num_q_heads, batch.num_queries] or null
};

//! What fits into the shared memory of every GPU from 8.0 on, 99 KiB.
template <class T, int HeadDim>
struct prefill_tuning_sm80 {
  static constexpr int warps   = 4;
  static constexpr int threads = 32 * warps;
  static constexpr int queries = 16 * warps;
  static constexpr int keys    = HeadDim > 128 ? 32 : 64;
  //! Whether a warp keeps its queries in registers; else it reads them again for each block.
  static constexpr bool keeps_queries = HeadDim <= 128;
  using query_tile                    = prefill_tile<T, HeadDim, queries>;
  using key_tile                      = prefill_tile<T, HeadDim, keys>;
  //! The queries, then two stages of keys and values.
  static constexpr std::uint32_t stage_bytes  = 2 * key_tile::bytes;
  static constexpr std::uint32_t shared_bytes = query_tile::bytes + 2 * stage_bytes;
  static_assert(shared_bytes <= 99 * 1024);
};

//! 64 queries at work.
template <class T, class Out, int HeadDim>
class prefill_cta {
 public:
  using tuning   = prefill_tuning_sm80<T, HeadDim>;
  using key_tile = typename tuning::key_tile;
  using rows     = prefill_rows<T, HeadDim, tuning::keys>;

  __device__ prefill_cta(prefill_params<T, Out> const& p, prefill_place const& place,
                         std::uint32_t q_head, std::byte* shared) noexcept
    : p_{p},
      part_{place.part},
      first_{place.first},
      q_head_{q_head},
      queries_{shared_address(shared)},
      at_{fragment_lane::of_thread()},
      warp_{static_cast<int>(threadIdx.x / 32)}
  {}

  __device__ void run() noexcept
  {
    std::int32_t const from  = part_.position + first_;
    std::int32_t const until = min_of(from + tuning::queries, part_.num_keys());
    std::int32_t const begin = p_.logits.first_seen(from) / tuning::keys;
    std::int32_t const end   = ceil_div(until, tuning::keys);
    queries_.template start_fetch<tuning::threads>(p_.query, q_head_, part_.first_query + first_, 1,
                                                   part_.num_queries - first_);
    rows state;
    state.clear(from + 16 * warp_, at_);
    std::uint32_t kept[tuning::keeps_queries ? HeadDim / 16 : 1][4];
    for_each_tile(
      begin, end, 1, [&](std::int32_t block, int stage) { start_fetch(block, stage); },
      [&](std::int32_t block, int stage) {
        if constexpr (tuning::keeps_queries) {
          if (block == begin) {
#pragma unroll
            for (int k = 0; k < HeadDim / 16; ++k) { queries_.load_a(kept[k], warp_, k, at_.lane); }
          }
        }
        attend(state, kept, block, stage);
      });
    store(state);
  }

 private:
  [[nodiscard]] __device__ key_tile keys_of(int stage) const noexcept
  {
    return {queries_.base + tuning::query_tile::bytes +
            static_cast<std::uint32_t>(stage) * tuning::stage_bytes};
  }
  [[nodiscard]] __device__ key_tile values_of(int stage) const noexcept
  {
    return {keys_of(stage).base + key_tile::bytes};
  }

  __device__ void start_fetch(std::int32_t block, int stage) const noexcept
  {
    std::int32_t const first = block * tuning::keys;
    std::int32_t const count = part_.num_keys() - first;
    std::uint32_t const head = q_head_ / p_.group_size;
    keys_of(stage).template start_fetch<tuning::threads>(p_.key, head, part_.first_key + first, 1,
                                                         count);
    values_of(stage).template start_fetch<tuning::threads>(p_.value, head, part_.first_key + first,
                                                           1, count);
  }

  template <int N>
  __device__ void attend(rows& state, std::uint32_t const (&kept)[N][4], std::int32_t block,
                         int stage) const noexcept
  {
    std::int32_t const first_key = block * tuning::keys;
    std::int32_t const from      = part_.position + first_;
    // Of the CTA, so that all of its warps go the same way.
    bool const is_masked = first_key + tuning::keys - 1 > from ||
                           first_key < p_.logits.first_seen(from + tuning::queries - 1);
    bool values_are_finite = true;
    if (is_masked) {
      values_are_finite =
        __syncthreads_or(values_of(stage).template has_non_finite_part<tuning::threads>() ? 1
                                                                                          : 0) == 0;
    }
    if (first_key > from + 16 * warp_ + 15) {
      return;
    }  // all of them later than the warp's queries
    float weights[tuning::keys / 8][4] = {};
    key_tile const keys                = keys_of(stage);
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
      if constexpr (tuning::keeps_queries) {
        keys.multiply(weights, kept[k], k, at_.lane);
      } else {
        std::uint32_t a[4];
        queries_.load_a(a, warp_, k, at_.lane);
        keys.multiply(weights, a, k, at_.lane);
      }
    }
    p_.logits.apply(weights);
    if (is_masked) { state.mask(weights, p_.logits, first_key, at_); }
    state.weigh(weights);
    if (values_are_finite) {
      state.add_values(weights, values_of(stage), at_);
    } else {
      state.add_values_seen(weights, values_of(stage), p_.logits, first_key, at_);
    }
  }

  __device__ void store(rows& state) const noexcept
  {
    state.finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::int32_t const query = first_ + 16 * warp_ + at_.g + 8 * r;
      if (query >= part_.num_queries) { continue; }
      float const factor = 1.0f / state.sum[r];
      Out* const to      = p_.out.at(part_.first_query + query, q_head_) + 2 * at_.t;
#pragma unroll
      for (int n = 0; n < HeadDim / 8; ++n) {
        store_pair(to + 8 * n, state.out[n][2 * r] * factor, state.out[n][2 * r + 1] * factor);
      }
      if (p_.lse != nullptr && at_.t == 0) {
        p_.lse[q_head_ * p_.batch.num_queries + part_.first_query + query] = state.log_sum_exp(r);
      }
    }
  }

  prefill_params<T, Out> const& p_;
  prefill_part part_;
  std::int32_t first_;
  std::uint32_t q_head_;
  typename tuning::query_tile queries_;
  fragment_lane at_;
  int warp_;
};

template <class T, class Out, int HeadDim>
DIFFKV_KERNEL void __launch_bounds__(prefill_tuning_sm80<T, HeadDim>::threads)
  prefill_attention_kernel(__grid_constant__ prefill_params<T, Out> const p)
{
  extern __shared__ __align__(128) std::byte shared[];
  wait_for_previous();
  prefill_place const place =
    find_query_tile(p.batch, blockIdx.x / p.num_q_heads, prefill_tuning_sm80<T, HeadDim>::queries);
  if (place.first < 0) { return; }
  prefill_cta<T, Out, HeadDim>{p, place, blockIdx.x % p.num_q_heads, shared}.run();
}

}  // namespace diffkv::detail
