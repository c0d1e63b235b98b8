// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a warp keeps of a row while it reads it: softmax in one pass, and the weighted sums of values.
//! Read before this: attention/key_products.cuh.  Read next: attention/value_products.cuh.
#include <diffkv/attention/decode_traits.hpp>
#include <diffkv/attention/softmax_state.hpp>  // minus_infinity
#include <diffkv/attention/tensor_core.cuh>

namespace diffkv::detail {

//! Of head 4 s + t, over the tokens that this warp has seen. `sum` and `zeros` are over the tokens of
//! this lane only until `close`.
template <class Traits>
struct row_accumulator {
  static constexpr int sets   = Traits::sets;
  static constexpr int groups = max_of(Traits::values.groups, Traits::low_values.groups);
  //! Of the g-th share; in the order of the tier at hand.
  static constexpr int elements = max_of(Traits::values.stored(), Traits::low_values.stored()) / 8;

  float max[sets];  //!< reference of the exponents, base 2
  float sum[sets];
  float zeros[sets][groups];  //!< sum of weight * zero: the same for every element of a group
  //! Sums of weight * scale * code.
  float out[sets][elements];

  __device__ void clear() noexcept
  {
#pragma unroll
    for (int s = 0; s < sets; ++s) {
      max[s] = lowest_reference;
      sum[s] = 0.0f;
#pragma unroll
      for (int i = 0; i < groups; ++i) { zeros[s][i] = 0.0f; }
#pragma unroll
      for (int e = 0; e < elements; ++e) { out[s][e] = 0.0f; }
    }
  }

  //! Moves the reference of set s to at least `logit`.
  __device__ void raise(int s, float logit) noexcept
  {
    float const reference = fmaxf(max[s], logit);
    float const factor    = fast_exp2(max[s] - reference);
    max[s]                = reference;
    sum[s] *= factor;
#pragma unroll
    for (int i = 0; i < groups; ++i) { zeros[s][i] *= factor; }
#pragma unroll
    for (int e = 0; e < elements; ++e) { out[s][e] *= factor; }
  }

  //! Before the first token. Not -inf: differences stay numbers.
  static constexpr float lowest_reference = -1e30f;
};

//! Over the eight lanes g of the same t.
[[nodiscard]] __device__ inline float sum_over_g(float x) noexcept
{
#pragma unroll
  for (int mask = 4; mask <= 16; mask *= 2) { x += __shfl_xor_sync(0xFFFF'FFFFu, x, mask); }
  return x;
}
[[nodiscard]] __device__ inline float max_over_g(float x) noexcept
{
#pragma unroll
  for (int mask = 4; mask <= 16; mask *= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFF'FFFFu, x, mask));
  }
  return x;
}

//! Weights of some tokens for head 4 s + t: token 16 b + g at 2 b, token 16 b + g + 8 at 2 b + 1.
//! The reference is moved only when a lane's weights sum to more than 2^40, which f32 has room for; a NaN
//! moves it too, and stays.
//! @param logits  in units of factor; -inf: left out
template <int Tokens, class Traits>
__device__ void weigh_tokens(row_accumulator<Traits>& row, int s, float const (&logits)[Tokens],
                             float factor, float (&weights)[Tokens]) noexcept
{
  constexpr float most = 0x1p40f;
  auto const weigh     = [&] {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < Tokens; ++i) {
      weights[i] = fast_exp2(fmaf(logits[i], factor, -row.max[s]));
      total += weights[i];
    }
    return total;
  };
  float total = weigh();
  if (__any_sync(0xFFFF'FFFFu, !(total < most))) {
    float greatest = minus_infinity;
#pragma unroll
    for (int i = 0; i < Tokens; ++i) { greatest = fmaxf(greatest, logits[i] * factor); }
    row.raise(s, max_over_g(greatest));
    total = weigh();
  }
  row.sum[s] += total;
}

}  // namespace diffkv::detail
