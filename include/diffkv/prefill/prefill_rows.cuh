// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Logits to base 2, who sees whom, and the softmax of a warp's 16 queries.
//! Read before this: prefill/prefill_tile.cuh.  Read next: prefill/prefill_kernel.cuh.
#include <diffkv/attention/attention_options.hpp>
#include <diffkv/attention/softmax_state.hpp>  // minus_infinity
#include <diffkv/prefill/prefill_tile.cuh>

namespace diffkv::detail {

//! attention_options as the kernels need them: logits in units of ln 2.
struct prefill_logits {
  float scale         = 0.0f;  //!< times log2(e); with a soft-cap divided by that instead
  float cap           = 0.0f;  //!< times log2(e); 0: none
  std::int32_t window = 0;     //!< 0: none

  [[nodiscard]] static prefill_logits of(attention_options const& options) noexcept
  {
    bool const capped = options.soft_cap > 0.0f;
    return {capped ? options.scale / options.soft_cap : options.scale * log2_of_e,
            capped ? options.soft_cap * log2_of_e : 0.0f, max_of(options.sliding_window, 0)};
  }
  //! All logits of some products, in place.
  template <int N>
  __device__ void apply(float (&products)[N][4]) const noexcept
  {
    if (cap > 0.0f) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) { products[n][i] = cap * tanhf(products[n][i] * scale); }
      }
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) { products[n][i] *= scale; }
      }
    }
  }
  //! Positions that the query at `position` sees: first_seen(position) .. position.
  [[nodiscard]] __device__ std::int32_t first_seen(std::int32_t position) const noexcept
  {
    return window > 0 ? max_of(position + 1 - window, 0) : 0;
  }
  [[nodiscard]] __device__ bool sees(std::int32_t position, std::int32_t key) const noexcept
  {
    return key <= position && key >= first_seen(position);
  }
};

//! Queries g and g + 8 of a warp's 16, as a lane holds them: every fourth pair of their elements.
template <class T, int HeadDim, int Keys>
struct prefill_rows {
  using key_tile = prefill_tile<T, HeadDim, Keys>;

  float out[HeadDim / 8][4];  //!< weighted sums of values, on the reference of `max`
  float max[2];               //!< over all lanes of a row
  float sum[2];               //!< of this lane's weights
  std::int32_t position[2];

  //! @param first  position of the warp's first query
  __device__ void clear(std::int32_t first, fragment_lane const& at) noexcept
  {
#pragma unroll
    for (int n = 0; n < HeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) { out[n][i] = 0.0f; }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r]      = minus_infinity;
      sum[r]      = 0.0f;
      position[r] = first + at.g + 8 * r;
    }
  }

  //! No weight for keys that a query does not see, whatever they hold.
  __device__ void mask(float (&logits)[Keys / 8][4], prefill_logits const& how,
                       std::int32_t first_key, fragment_lane const& at) const noexcept
  {
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::int32_t const key = first_key + 8 * n + 2 * at.t + i % 2;
        if (!how.sees(position[i / 2], key)) { logits[n][i] = minus_infinity; }
      }
    }
  }

  //! Logits become weights; what was summed before moves to the new reference.
  __device__ void weigh(float (&logits)[Keys / 8][4]) noexcept
  {
    float reference[2];
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = max[r];
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
        largest = fmaxf(largest, fmaxf(logits[n][2 * r], logits[n][2 * r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // A row that has seen nothing stays as it is.
      reference[r] = largest == minus_infinity ? 0.0f : largest;
      factor[r]    = fast_exp2(max[r] - reference[r]);
      max[r]       = largest;
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        logits[n][i] = fast_exp2(logits[n][i] - reference[i / 2]);
        sum[i / 2] += logits[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < HeadDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) { out[n][i] *= factor[i / 2]; }
    }
  }

  __device__ void add_values(float const (&weights)[Keys / 8][4], key_tile const& values,
                             fragment_lane const& at) noexcept
  {
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) {
      float const(&low)[4]  = weights[2 * k];
      float const(&high)[4] = weights[2 * k + 1];
      std::uint32_t const a[4]{pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                               pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
      values.add_weighted(out, a, k, at.lane);
    }
  }

  //! The same for values that are not all finite: key by key, as 0 * NaN must not reach a query
  //! that does not see the key. Slow, and rarely needed.
  __device__ void add_values_seen(float const (&weights)[Keys / 8][4], key_tile const& values,
                                  prefill_logits const& how, std::int32_t first_key,
                                  fragment_lane const& at) noexcept
  {
#pragma unroll 1
    for (int key = 0; key < Keys; ++key) {
      float weight[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
        if (n == key / 8) {
          weight[0] = key % 2 == 0 ? weights[n][0] : weights[n][1];
          weight[1] = key % 2 == 0 ? weights[n][2] : weights[n][3];
        }
      }
      bool seen[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weight[r] = __shfl_sync(~0u, weight[r], at.g * 4 + key % 8 / 2);
        seen[r]   = how.sees(position[r], first_key + key);
      }
#pragma unroll
      for (int n = 0; n < HeadDim / 8; ++n) {
        float2 const value = unpack_pair<T>(load_shared(values.at(key, 8 * n + 2 * at.t)));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          out[n][2 * r] += seen[r] ? weight[r] * value.x : 0.0f;
          out[n][2 * r + 1] += seen[r] ? weight[r] * value.y : 0.0f;
        }
      }
    }
  }

  //! Sums of whole rows.
  __device__ void finish() noexcept
  {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
    }
  }
  //! Natural logarithm.  @pre finish() was called
  [[nodiscard]] __device__ float log_sum_exp(int r) const noexcept
  {
    return sum[r] == 0.0f ? minus_infinity : (max[r] + fast_log2(sum[r])) * ln_of_2;
  }
};

}  // namespace diffkv::detail
