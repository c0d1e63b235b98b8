// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The softmax of a warpgroup's 64 queries, and where these stand.
//! Read before this: prefill/warpgroup_product.cuh, prefill/prefill_schedule.cuh.
//! Read next: prefill/prefill_hopper.cuh.
#include <diffkv/attention/softmax_state.hpp>  // minus_infinity
#include <diffkv/attention/tensor_core.cuh>    // load_shared, fast_exp2
#include <diffkv/prefill/prefill_schedule.cuh>
#include <diffkv/prefill/warpgroup_product.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace diffkv::detail {

#if DIFFKV_HAS_WARPGROUP_PRODUCTS

//! An item of attention in numbers. Where a sequence has fewer queries than a tile, the first rows
//! of its last tile are missing: they are of somebody else, or of nobody.
struct alignas(16) hopper_tile {
  std::int32_t first_query;     //!< of the tile in query and out; of a missing one, may be negative
  std::int32_t first_key;       //!< of the sequence in key and value
  std::int32_t first_position;  //!< of the tile
  std::int32_t missing;         //!< rows
  std::uint32_t q_head;
  std::int32_t is_there;

  [[nodiscard]] static __device__ hopper_tile of(prefill_item const& item, int rows) noexcept
  {
    if (item.tile < 0) { return {}; }
    std::int32_t const first = item.part.num_queries - (item.tile + 1) * rows;
    return {static_cast<std::int32_t>(item.part.first_query) + first,
            static_cast<std::int32_t>(item.part.first_key),
            item.part.position + first,
            max_of(-first, 0),
            item.unit,
            1};
  }
  //! As a tile in shared memory; one lane reads, it is also the one that says when it was read.
  [[nodiscard]] static __device__ hopper_tile read(hopper_tile const& shared, int lane) noexcept
  {
    hopper_tile tile{};
    if (lane == 0) { tile = shared; }
    return {__shfl_sync(~0u, tile.first_query, 0),    __shfl_sync(~0u, tile.first_key, 0),
            __shfl_sync(~0u, tile.first_position, 0), __shfl_sync(~0u, tile.missing, 0),
            __shfl_sync(~0u, tile.q_head, 0),         __shfl_sync(~0u, tile.is_there, 0)};
  }
  //! Whether there is no tile any more.
  [[nodiscard]] __device__ bool is_last() const noexcept { return is_there == 0; }
  [[nodiscard]] __device__ std::int32_t last_position(int rows) const noexcept
  {
    return first_position + rows - 1;
  }
};

//! Of a warpgroup's 64 queries those that a lane holds: g and g + 8 of the warp's 16, of those
//! every fourth pair of elements.
template <class T, int HeadDim, int Keys>
class hopper_rows {
 public:
  using key_tile = swizzled_tile<Keys, HeadDim>;

  //! @param first  position of the warpgroup's first query
  __device__ void clear(std::int32_t first) noexcept
  {
    first_ = first;
#pragma unroll
    for (int n = 0; n < HeadDim / 2; ++n) { out_[n] = 0.0f; }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference_[r] = minus_infinity;
      sum_[r]       = 0.0f;
    }
  }
  [[nodiscard]] __device__ std::int32_t first_position() const noexcept { return first_; }
  [[nodiscard]] __device__ std::int32_t last_position() const noexcept { return first_ + 63; }

  //! No weight for later keys, whatever they hold.
  __device__ void mask(float (&products)[Keys / 2], std::int32_t first_key) const noexcept
  {
    std::int32_t const until = position(0) - first_key - 2 * lane() % 8;
#pragma unroll
    for (int i = 0; i < Keys / 2; ++i) {
      if (i / 4 * 8 + i % 2 > until + i / 2 % 2 * 8) { products[i] = minus_infinity; }
    }
  }

  //! Makes weights of products. The reference, which the largest weight stands near, moves only
  //! when weights would pass 2^8: what was summed before then rarely changes.
  //! @param scale  of products to logits to base 2, positive
  __device__ void weigh(float const (&products)[Keys / 2], float scale,
                        std::uint32_t (&weights)[Keys / 4]) noexcept
  {
    float largest[2][2];
#pragma unroll
    for (int i = 0; i < Keys / 2; ++i) {
      float& greatest = largest[i / 2 % 2][i % 2];
      greatest        = i < 4 ? products[i] : fmaxf(greatest, products[i]);
    }
    float factor[2];
    float offset[2];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float greatest = fmaxf(largest[r][0], largest[r][1]);
      greatest       = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
      greatest       = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
      factor[r]      = 1.0f;
      if ((greatest - reference_[r]) * scale > 8.0f) {
        factor[r]     = fast_exp2((reference_[r] - greatest) * scale);
        reference_[r] = greatest;
        moves         = true;
      }
      // A row that has seen nothing has no reference.
      offset[r] = reference_[r] == minus_infinity ? 0.0f : -reference_[r] * scale;
    }
    float added[2][2] = {};
#pragma unroll
    for (int i = 0; i < Keys / 2; i += 2) {
      int const r       = i / 2 % 2;
      float const left  = fast_exp2(fmaf(products[i], scale, offset[r]));
      float const right = fast_exp2(fmaf(products[i + 1], scale, offset[r]));
      added[r][0] += left;
      added[r][1] += right;
      weights[i / 2] = pack_pair<T>(left, right);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) { sum_[r] = sum_[r] * factor[r] + (added[r][0] + added[r][1]); }
    if (__any_sync(~0u, moves)) {
#pragma unroll
      for (int n = 0; n < HeadDim / 2; ++n) { out_[n] *= factor[n / 2 % 2]; }
    }
  }

  __device__ void add_values(std::uint32_t const (&weights)[Keys / 4], key_tile values) noexcept
  {
    std::uint64_t const right = values.by_rows();
    begin_products();
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) {
      add_weighted_rows<T>(out_, weights + 4 * k, right + key_tile::row_step(k));
    }
    end_products();
    wait_for_products();
    settle(out_);
  }

  //! Whether an element of a value that one of the queries does not see is no finite number, as
  //! far as this thread looks.  @threads the warpgroup, which looks at all of them together
  [[nodiscard]] __device__ bool has_non_finite_part(key_tile values,
                                                    std::int32_t first_key) const noexcept
  {
    constexpr int units = HeadDim / 8;
    auto const thread   = static_cast<int>(threadIdx.x) % warpgroup_threads;
    // NaN if one of the elements times zero is.
    pair_of found = zero_pair();
#pragma unroll 2
    for (int unit = max_of(first_ + 1 - first_key, 0) * units + thread; unit < Keys * units;
         unit += warpgroup_threads) {
      std::uint32_t w[4];
      load_shared(w, values.at(unit / units, unit % units * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        found = __hfma2(*reinterpret_cast<pair_of const*>(w + i), zero_pair(), found);
      }
    }
    return !__hbeq2(found, found);
  }

  //! Adds values that are not all finite: key by key, as 0 * NaN must not reach a query that does
  //! not see the key. Slow, and rarely needed.
  __device__ void add_values_seen(std::uint32_t const (&weights)[Keys / 4], key_tile values,
                                  std::int32_t first_key) noexcept
  {
#pragma unroll 1
    for (int key = 0; key < Keys; ++key) {
      std::uint32_t pairs[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < Keys / 4; ++i) {
        if (i / 2 == key / 8) { pairs[i % 2] = weights[i]; }
      }
      float weight[2];
      bool sees[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float2 const both =
          unpack_pair<T>(__shfl_sync(~0u, pairs[r], lane() / 4 * 4 + key % 8 / 2));
        weight[r] = key % 2 == 0 ? both.x : both.y;
        sees[r]   = first_key + key <= position(r);
      }
#pragma unroll
      for (int n = 0; n < HeadDim / 8; ++n) {
        float2 const value = unpack_pair<T>(load_shared(values.at(key, 8 * n) + lane() % 4 * 4u));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          out_[4 * n + 2 * r] += sees[r] ? weight[r] * value.x : 0.0f;
          out_[4 * n + 2 * r + 1] += sees[r] ? weight[r] * value.y : 0.0f;
        }
      }
    }
  }

  //! Sums of whole rows.
  __device__ void finish() noexcept
  {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 1);
      sum_[r] += __shfl_xor_sync(~0u, sum_[r], 2);
    }
  }
  //! Puts the warp's 16 results into a tile.  @pre finish() was called
  __device__ void stage(swizzled_tile<16, HeadDim> to) const noexcept
  {
    float const factor[2] = {1.0f / sum_[0], 1.0f / sum_[1]};
#pragma unroll
    for (int n = 0; n < HeadDim / 16; ++n) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const* const pair = out_ + 8 * n + 2 * i;
        words[i]                = pack_pair<T>(pair[0] * factor[i % 2], pair[1] * factor[i % 2]);
      }
      store_matrices(to.at(lane() % 16, 16 * n + lane() / 16 * 8), words);
    }
  }
  //! Natural logarithm.  @pre finish() was called
  [[nodiscard]] __device__ float log_sum_exp(int r, float scale) const noexcept
  {
    return sum_[r] == 0.0f ? minus_infinity
                           : (reference_[r] * scale + fast_log2(sum_[r])) * ln_of_2;
  }

 private:
  using pair_of = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

  [[nodiscard]] static __device__ int lane() noexcept { return static_cast<int>(threadIdx.x % 32); }
  [[nodiscard]] static __device__ pair_of zero_pair() noexcept
  {
    std::uint32_t const zero = 0;
    return *reinterpret_cast<pair_of const*>(&zero);
  }
  [[nodiscard]] __device__ std::int32_t position(int r) const noexcept
  {
    return first_ + static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane() / 4 + 8 * r;
  }

  float out_[HeadDim / 2];  //!< weighted sums of values
  float reference_[2];      //!< a product; -inf: none yet
  float sum_[2];            //!< of weights, of this lane's keys
  std::int32_t first_;
};

#endif  // DIFFKV_HAS_WARPGROUP_PRODUCTS

}  // namespace diffkv::detail
