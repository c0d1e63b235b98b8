// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The arithmetic of sampling, one definition for the kernel and its host twin. Probabilities are
//! whole numbers: their sums are exact in any order, so neither the number of threads nor the batch
//! can change a token, and both processors choose the same one.
//! Read next: llama3/cuda/sample_twin.hpp.
#include "llama3/sampling_options.hpp"

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cmath>    // fmaf, rintf
#include <cstdint>  // int32_t, uint32_t, uint64_t
#include <cstring>  // memcpy

namespace llama3 {
//! Orders logits as unsigned numbers: 0 for those that are never chosen (NaN, -inf), and more for a
//! larger logit. -0 and +0 are equal.
[[nodiscard]] __host__ __device__ inline std::uint32_t logit_key(float logit) noexcept
{
  constexpr std::uint32_t sign = 0x8000'0000u, infinity = 0x7F80'0000u;
  float const x = logit == 0.0f ? 0.0f : logit;
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & ~sign) > infinity || bits == (sign | infinity)) { return 0; }
  return (bits & sign) != 0 ? ~bits : bits | sign;
}

//! The logit of a key.  @pre key != 0
[[nodiscard]] __host__ __device__ inline float logit_of_key(std::uint32_t key) noexcept
{
  constexpr std::uint32_t sign = 0x8000'0000u;
  std::uint32_t const bits     = (key & sign) != 0 ? key & ~sign : ~key;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

//! Weight of the largest logit. Weights are exp((logit - largest) / temperature) in units of 2^-44:
//! what is less likely than that by itself is never chosen.
inline constexpr std::uint64_t full_weight = std::uint64_t{1} << 44;
//! The id where no logit is left to choose from: the model's output is broken.
inline constexpr std::int32_t nothing_to_choose = -2;
//! As many full weights as can be added in 64 bits.
inline constexpr int max_sampled_ids = 1 << 19;

//! What a difference of logits is multiplied by to become a power of two.  @pre temperature > 0
[[nodiscard]] __host__ __device__ inline float weight_scale(float temperature) noexcept
{
  return 1.44269504f / temperature;
}

//! Weights of logits that lie further below the largest are 0, in powers of two.
inline constexpr float lightest_exponent = -60.0f;

//! full_weight * exp((logit - largest) / temperature), rounded down; 0 for NaN and -inf.
//! The same bits on host and device: only operations that IEEE 754 defines, and no product that a
//! compiler could merge with a sum.
//! @pre largest is finite and not below logit
//! @error relative 1e-6 + 2^-24 * |exponent|, and below one unit
[[nodiscard]] __host__ __device__ inline std::uint64_t token_weight(float logit, float largest,
                                                                    float scale) noexcept
{
  if (logit == largest) { return full_weight; }  // the scale may be infinite
  float const exponent = (logit - largest) * scale;
  if (!(exponent >= lightest_exponent)) { return 0; }
  float const whole = ::rintf(exponent);
  float const rest  = exponent - whole;  // exact, in [-1/2, 1/2]
  float power       = 1.52527338e-5f;    // Taylor series of 2^rest
  power             = ::fmaf(power, rest, 1.54035304e-4f);
  power             = ::fmaf(power, rest, 1.33335581e-3f);
  power             = ::fmaf(power, rest, 9.61812911e-3f);
  power             = ::fmaf(power, rest, 5.55041087e-2f);
  power             = ::fmaf(power, rest, 2.40226507e-1f);
  power             = ::fmaf(power, rest, 6.93147181e-1f);
  power             = ::fmaf(power, rest, 1.0f);
  auto const units  = static_cast<std::uint32_t>(power * 0x1p30f);  // exact
  return std::uint64_t{units} << 14 >> -static_cast<int>(whole);
}

//! The weight that top-p must reach, of a sum of weights: at least one unit.
[[nodiscard]] __host__ __device__ inline std::uint64_t wanted_weight(std::uint64_t sum,
                                                                     float top_p) noexcept
{
  if (!(top_p < 1.0f)) { return sum; }
  double const wanted = static_cast<double>(sum) * static_cast<double>(top_p);
  return wanted >= 1.0 ? static_cast<std::uint64_t>(wanted) : 1;
}

//! The finaliser of SplitMix64: each bit of the result depends on all bits of `z`.
[[nodiscard]] __host__ __device__ constexpr std::uint64_t scrambled(std::uint64_t z) noexcept
{
  z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9u;
  z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBu;
  return z ^ (z >> 31);
}

//! 64 random bits of a seed and a position alone.
[[nodiscard]] __host__ __device__ constexpr std::uint64_t random_word(
  std::uint64_t seed, std::int32_t position) noexcept
{
  constexpr std::uint64_t golden = 0x9E37'79B9'7F4A'7C15u;
  std::uint64_t const number     = std::uint64_t{static_cast<std::uint32_t>(position)} + 1;
  return scrambled(scrambled(seed + golden) + golden * number);
}

//! Evenly one of 0 .. count - 1: the upper 64 bits of word * count.
[[nodiscard]] __host__ __device__ inline std::uint64_t scaled_word(std::uint64_t word,
                                                                   std::uint64_t count) noexcept
{
#if defined(__CUDA_ARCH__)
  return __umul64hi(word, count);
#else
  std::uint64_t const low = word & 0xFFFF'FFFFu, high = word >> 32;
  std::uint64_t const count_low = count & 0xFFFF'FFFFu, count_high = count >> 32;
  std::uint64_t const middle = high * count_low + (low * count_low >> 32);
  std::uint64_t const carry  = low * count_high + (middle & 0xFFFF'FFFFu);
  return high * count_high + (middle >> 32) + (carry >> 32);
#endif
}
}  // namespace llama3
