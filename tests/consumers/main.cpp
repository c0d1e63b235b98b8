// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! A user's program: every public header in each of its two files, which must link into one.
#include "all_headers.hpp"  // written by consume.py: each header, a .cuh for nvcc alone

#include <cuda/std/span>

#include <cmath>    // abs, fmax, sin
#include <cstddef>  // byte
#include <cstdio>   // printf

cuda::std::span<float> as_span(float* first, std::size_t size);  // other.cpp

int main()
{
  float key[64];
  for (int d = 0; d < 64; ++d) { key[d] = std::sin(static_cast<float>(d)); }
  diffkv::code_spec spec{};
  spec.bits = 8;
  diffkv::coded_vector codes;
  diffkv::encode_vector(key, 64, spec, codes);

  float decoded[64];
  diffkv::decode_vector(codes, 64, spec, decoded);
  float largest = 0.0f;
  for (float& x : as_span(decoded, 64)) {
    largest = std::fmax(largest, std::abs(x - key[&x - decoded]));
  }
  std::printf("largest error %g\n", static_cast<double>(largest));
  return largest > 0.0f && largest < 0.005f ? 0 : 1;  // half a step of 2 / 255, and rounding
}
