// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The rotation of quant/conditioning.hpp for a vector that a few lanes share, bit for bit.
//! Read before this: quant/group_coder.cuh, quant/conditioning.hpp.  Read next: page/block_image.cuh.
#include <diffkv/quant/conditioning.hpp>

namespace diffkv {

//! x := R x, where R has one block: HeadDim is a power of two. Owner o of `Owners` lanes holds, of each
//! of `Groups` equal parts of the vector, the o-th share; x has the shares one after the other. Owners
//! are the lanes that differ in the bits FirstMask, 2 FirstMask, ... of their index.
//! @threads one warp
template <int HeadDim, int Groups, int Owners, int FirstMask>
__device__ void rotate_over_lanes(float (&x)[HeadDim / Owners], int lane) noexcept
{
  static_assert(rotation_block(HeadDim) == HeadDim, "HeadDim must be a power of two");
  constexpr int elements  = HeadDim / Owners;
  constexpr int share     = elements / Groups;
  auto const in_registers = [&](int stride) {
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      if ((i & stride) != 0) { continue; }
      float const a = x[i];
      float const b = x[i + stride];
      x[i]          = detail::add_rn(a, b);
      x[i + stride] = detail::sub_rn(a, b);
    }
  };
#pragma unroll
  for (int stride = 1; stride < share; stride *= 2) { in_registers(stride); }
#pragma unroll
  for (int mask = FirstMask; mask < FirstMask * Owners; mask *= 2) {
    float const sign = (lane & mask) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < elements; ++i) {
      float const theirs = __shfl_xor_sync(0xFFFF'FFFFu, x[i], mask);
      x[i]               = detail::fma_rn(x[i], sign, theirs);  // one rounding: theirs + or - x
    }
  }
#pragma unroll
  for (int stride = share; stride < elements; stride *= 2) { in_registers(stride); }
  constexpr float factor = rotation_factor(HeadDim);
#pragma unroll
  for (int i = 0; i < elements; ++i) { x[i] = detail::mul_rn(x[i], factor); }
}

}  // namespace diffkv
