// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codec and the rotation as a compiler builds them that may use every instruction of this
//! machine and fuse products into sums (contracted_codec.cpp and the flags in tests/CMakeLists.txt).
#include <cstdint>

namespace diffkv::test {

struct contracted_result {
  std::uint16_t codes[256];
  std::uint16_t scales[4];
  std::uint16_t zeros[4];
  float values[256];
};

void contracted_codec(float const* x, int head_dim, int bits, int groups, float clip,
                      contracted_result& out);
//! Scale and zero of a range, as f16 bits: scale in the upper half.
std::uint32_t contracted_fit(float min, float max, int bits, float clip);
void contracted_rotate(float* x, int head_dim);

//! a * b + c as those flags compile it, and whether the machine has the fused instruction.
float contracted_expression(float a, float b, float c);
bool contraction_is_possible();

}  // namespace diffkv::test
