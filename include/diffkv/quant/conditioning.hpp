// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Conditioning: k' = R (k - c) and v' = R v before encoding, so that the same bytes lose less.
//! R is an orthonormal Hadamard matrix, symmetric and its own inverse; c is one constant per layer and
//! head. Softmax does not change: q' = R q, out = R out', lse = lse' + scale * q.c.
//! Read before this: quant/vector_codec.hpp.  Read next: quant/lag_rounding.hpp.
#include <diffkv/core/error.hpp>
#include <diffkv/detail/arithmetic.hpp>  // mul_rn

#include <string>
#include <string_view>

namespace diffkv {

//! A set of flags: `conditioning::centred | conditioning::rotated`.
enum class conditioning : std::uint8_t { none = 0, centred = 1, rotated = 2 };

[[nodiscard]] DIFFKV_HOST_DEVICE constexpr conditioning operator|(conditioning a,
                                                                  conditioning b) noexcept
{
  return static_cast<conditioning>(static_cast<int>(a) | static_cast<int>(b));
}
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool has(conditioning set, conditioning flag) noexcept
{
  return (static_cast<int>(set) & static_cast<int>(flag)) != 0;
}

//! @throws invalid_argument naming the four spellings
[[nodiscard]] inline conditioning parse_conditioning(std::string_view text)
{
  if (text == "none") { return conditioning::none; }
  if (text == "centred") { return conditioning::centred; }
  if (text == "rotated") { return conditioning::rotated; }
  DIFFKV_EXPECTS(text == "centred+rotated",
                 "conditioning: '" + std::string{text} +
                   "' is unknown, use none, centred, rotated or centred+rotated");
  return conditioning::centred | conditioning::rotated;
}

//! Default range clip (quant/code_spec.hpp): 0.8 for 2-bit codes of conditioned vectors, else 1.
[[nodiscard]] constexpr float default_clip(int bits, conditioning set) noexcept
{
  return bits == 2 && set != conditioning::none ? 0.8f : 1.0f;
}

//! Size of the blocks of R: the largest power of two that divides head_dim (80 = 5 blocks of 16).
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr int rotation_block(int head_dim) noexcept
{
  return head_dim & -head_dim;
}
static_assert(rotation_block(80) == 16 && rotation_block(96) == 32 && rotation_block(112) == 16);

//! 1 / sqrt(block), rounded to f32.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr float rotation_factor(int block) noexcept
{
  double factor = 1.0;
  for (; block >= 4; block /= 4) { factor *= 0.5; }
  return static_cast<float>(block == 2 ? factor * 0.70710678118654752440 : factor);
}
static_assert(rotation_factor(64) == 0.125f && rotation_factor(128) == 0.08838834764831845f);

//! x := R x, in place: butterfly stages from stride 1 upwards, one multiplication at the end.
//! The same call rotates back.
//! @error  log2(block) + 1 roundings per element
DIFFKV_HOST_DEVICE inline void rotate(float* x, int head_dim) noexcept
{
  int const block    = rotation_block(head_dim);
  float const factor = rotation_factor(block);
  for (int base = 0; base < head_dim; base += block) {
    for (int stride = 1; stride < block; stride *= 2) {
      for (int i = 0; i < block; ++i) {
        if ((i & stride) != 0) { continue; }
        float const a        = x[base + i];
        float const b        = x[base + i + stride];
        x[base + i]          = detail::add_rn(a, b);
        x[base + i + stride] = detail::sub_rn(a, b);
      }
    }
    for (int i = 0; i < block; ++i) { x[base + i] = detail::mul_rn(x[base + i], factor); }
  }
}

//! k' of a key, in place. `offset` [head_dim] f32 is read only where the set is centred.
DIFFKV_HOST_DEVICE inline void condition_key(float* key, float const* offset, int head_dim,
                                             conditioning set) noexcept
{
  if (has(set, conditioning::centred)) {
    for (int d = 0; d < head_dim; ++d) { key[d] = detail::sub_rn(key[d], offset[d]); }
  }
  if (has(set, conditioning::rotated)) { rotate(key, head_dim); }
}

//! v' of a value, q' of a query, or an output brought back: all the same rotation.
DIFFKV_HOST_DEVICE inline void condition_rotation(float* x, int head_dim, conditioning set) noexcept
{
  if (has(set, conditioning::rotated)) { rotate(x, head_dim); }
}

}  // namespace diffkv
