// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What later queries think of each token: sums of probabilities from queries, keys and lse.
//! Read before this: prefill/prefill_kernel.cuh.  Read next: prefill/hopper_barrier.cuh.
//!
//! A CTA keeps 64 keys in registers, a warp 16 of them, and lets the queries that count pass by.
//! The products stand with keys as rows, so a key's sum stays in its lanes until the end, and
//! nobody else writes it: no atomics, and the same order of additions on every run.
#include <diffkv/core/launch.cuh>
#include <diffkv/policy/importance.hpp>  // importance_of
#include <diffkv/prefill/prefill_part.cuh>
#include <diffkv/prefill/prefill_rows.cuh>

#include <cstddef>  // byte

namespace diffkv::detail {

template <class T>
struct importance_params {
  prefill_batch batch{};
  prefill_logits logits{};
  importance_queries counted{};
  std::uint32_t num_q_heads = 0;
  std::uint32_t group_size  = 0;
  vectors<T const> query{};
  vectors<T const> key{};
  float const* lse = nullptr;  //!< [num_q_heads, batch.num_queries]
  float* sums      = nullptr;  //!< [num_q_heads, batch.key_tokens()]
};

template <class T, int HeadDim>
struct importance_tuning_sm80 {
  static constexpr int warps   = 4;
  static constexpr int threads = 32 * warps;
  static constexpr int keys    = 16 * warps;
  static constexpr int queries = HeadDim > 128 ? 32 : 64;
  using key_tile               = prefill_tile<T, HeadDim, keys>;
  using query_tile             = prefill_tile<T, HeadDim, queries>;
  //! The keys, then two stages of queries and their lse.
  static constexpr std::uint32_t stage_bytes  = query_tile::bytes + 4 * queries;
  static constexpr std::uint32_t shared_bytes = key_tile::bytes + 2 * stage_bytes;
  static_assert(shared_bytes <= 99 * 1024);
};

//! 64 keys at work.
template <class T, int HeadDim>
class importance_cta {
 public:
  using tuning = importance_tuning_sm80<T, HeadDim>;

  __device__ importance_cta(importance_params<T> const& p, prefill_place const& place,
                            std::uint32_t q_head, std::byte* shared) noexcept
    : p_{p},
      part_{place.part},
      sample_{query_sample::of(p.counted, part_.prompt_tokens, part_.position, part_.num_queries)},
      first_key_{place.first},
      q_head_{q_head},
      keys_{shared_address(shared)},
      at_{fragment_lane::of_thread()},
      warp_{static_cast<int>(threadIdx.x / 32)}
  {}

  __device__ void run() noexcept
  {
    std::int32_t const begin = sample_.first_after(first_key_);
    std::int32_t const end   = last_of_window();
    float sums[2]            = {0.0f, 0.0f};
    if (begin < end) {
      keys_.template start_fetch<tuning::threads>(p_.key, q_head_ / p_.group_size,
                                                  part_.first_key + first_key_, 1,
                                                  part_.num_keys() - first_key_);
      std::uint32_t keys[HeadDim / 16][4];
      for_each_tile(
        begin, end, tuning::queries,
        [&](std::int32_t tile, int stage) { start_fetch(tile, stage); },
        [&](std::int32_t tile, int stage) {
          if (tile == begin) {
#pragma unroll
            for (int k = 0; k < HeadDim / 16; ++k) { keys_.load_a(keys[k], warp_, k, at_.lane); }
          }
          add(sums, keys, tile, stage);
        });
    }
    store(sums);
  }

 private:
  using query_tile = typename tuning::query_tile;

  [[nodiscard]] __device__ query_tile queries_of(int stage) const noexcept
  {
    return {keys_.base + tuning::key_tile::bytes +
            static_cast<std::uint32_t>(stage) * tuning::stage_bytes};
  }
  [[nodiscard]] __device__ std::uint32_t lse_of(int stage) const noexcept
  {
    return queries_of(stage).base + query_tile::bytes;
  }
  //! Behind the last query that sees any of the keys.
  [[nodiscard]] __device__ std::int32_t last_of_window() const noexcept
  {
    if (p_.logits.window == 0) { return sample_.count; }
    std::int32_t const last_key = min_of(first_key_ + tuning::keys, part_.num_keys()) - 1;
    std::int32_t const last     = min_of(part_.num_keys() - 1 - last_key, p_.logits.window - 1);
    return min_of(sample_.count, sample_.first_after(last_key + last));
  }

  __device__ void start_fetch(std::int32_t tile, int stage) const noexcept
  {
    std::int32_t const count = sample_.count - tile;
    std::int64_t const first = part_.first_query + sample_.position(tile) - part_.position;
    queries_of(stage).template start_fetch<tuning::threads>(p_.query, q_head_, first, sample_.every,
                                                            count);
    auto const i = static_cast<std::int32_t>(threadIdx.x);
    if (i < tuning::queries) {
      float const* const lse = p_.lse + q_head_ * p_.batch.num_queries;
      bool const is_there    = i < count;
      start_copy_4(lse_of(stage) + static_cast<std::uint32_t>(i) * 4,
                   is_there ? lse + first + std::int64_t{sample_.every} * i : lse, is_there);
    }
  }

  //! Adds the probabilities that the queries of a tile give to the warp's keys.
  __device__ void add(float (&sums)[2], std::uint32_t const (&keys)[HeadDim / 16][4],
                      std::int32_t tile, int stage) const noexcept
  {
    std::int32_t const first_key = first_key_ + 16 * warp_;
    std::int32_t const last_key  = first_key + 15;
    if (tile + tuning::queries <= sample_.first_after(first_key)) { return; }
    float logits[tuning::queries / 8][4] = {};
    query_tile const queries             = queries_of(stage);
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) { queries.multiply(logits, keys[k], k, at_.lane); }
    p_.logits.apply(logits);
    std::int32_t const last_query = sample_.position(tile + tuning::queries - 1);
    bool const is_masked          = tile + tuning::queries > sample_.count ||
                           tile < sample_.first_after(last_key) ||
                           first_key < p_.logits.first_seen(last_query);
    float added[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < tuning::queries / 8; ++n) {
      std::uint32_t words[2];
      load_shared(words, lse_of(stage) + static_cast<std::uint32_t>(8 * n + 2 * at_.t) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const lse = __uint_as_float(words[i % 2]);
        // Not finite from 2^128 on, and no number where lse is none: left out.
        float const exponent = logits[n][i] - lse * log2_of_e;
        float weight         = exponent < 128.0f ? fast_exp2(exponent) : 0.0f;
        if (is_masked) {
          std::int32_t const query    = tile + 8 * n + 2 * at_.t + i % 2;
          std::int32_t const position = sample_.position(query);
          std::int32_t const key      = first_key + at_.g + i / 2 * 8;
          bool const counts =
            query < sample_.count && key < position && p_.logits.sees(position, key);
          weight = counts ? weight : 0.0f;
        }
        added[i / 2] += weight;
      }
    }
    sums[0] += added[0];
    sums[1] += added[1];
  }

  //! Sums of tokens that are new with this launch start here.
  __device__ void store(float (&sums)[2]) const noexcept
  {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(~0u, sums[r], 1);
      sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
      std::int32_t const key = first_key_ + 16 * warp_ + at_.g + 8 * r;
      if (at_.t != 0 || key >= part_.num_keys()) { continue; }
      float* const sum = p_.sums + q_head_ * p_.batch.key_tokens() + part_.first_key + key;
      *sum             = key < part_.position ? *sum + sums[r] : sums[r];
    }
  }

  importance_params<T> const& p_;
  prefill_part part_;
  query_sample sample_;
  std::int32_t first_key_;
  std::uint32_t q_head_;
  typename tuning::key_tile keys_;
  fragment_lane at_;
  int warp_;
};

template <class T, int HeadDim>
DIFFKV_KERNEL void __launch_bounds__(importance_tuning_sm80<T, HeadDim>::threads)
  add_importance_kernel(__grid_constant__ importance_params<T> const p)
{
  extern __shared__ __align__(128) std::byte shared[];
  wait_for_previous();
  prefill_place const place =
    find_key_tile(p.batch, blockIdx.x / p.num_q_heads, importance_tuning_sm80<T, HeadDim>::keys);
  if (place.first < 0) { return; }
  importance_cta<T, HeadDim>{p, place, blockIdx.x % p.num_q_heads, shared}.run();
}

struct finish_params {
  prefill_batch batch{};
  importance_queries counted{};
  std::uint32_t num_heads  = 0;
  std::uint32_t group_size = 0;
  float const* sums        = nullptr;  //!< [num_heads * group_size, batch.key_tokens()]
  float* importances       = nullptr;  //!< [num_heads, batch.key_tokens()]
};

inline constexpr int finish_threads = 256;

//! Sums become importances where the prompt is complete. A thread per token.
template <int Threads>
DIFFKV_KERNEL void __launch_bounds__(Threads)
  finish_importance_kernel(__grid_constant__ finish_params const p)
{
  wait_for_previous();
  prefill_place const place = find_key_tile(p.batch, blockIdx.x / p.num_heads, Threads);
  if (place.first < 0) { return; }
  prefill_part const& part = place.part;
  std::int32_t const key   = place.first + static_cast<std::int32_t>(threadIdx.x);
  if (part.num_keys() < part.prompt_tokens || key >= part.num_keys()) { return; }
  std::uint32_t const head  = blockIdx.x % p.num_heads;
  std::int64_t const tokens = p.batch.key_tokens();
  std::int64_t const at     = part.first_key + key;
  float const* const sums   = p.sums + std::int64_t{head} * p.group_size * tokens + at;
  float largest             = 0.0f;
  for (std::uint32_t g = 0; g < p.group_size; ++g) { largest = fmaxf(largest, sums[g * tokens]); }
  std::int32_t const count          = p.counted.count(part.prompt_tokens, key);
  p.importances[head * tokens + at] = count > 0 ? importance_of(largest, count) : 0.0f;
}

}  // namespace diffkv::detail
