// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Numbers that look random, on the device.
#include <cstdint>

namespace diffkv::test {

[[nodiscard]] __device__ inline std::uint32_t hash(std::uint32_t x)
{
  x = (x ^ (x >> 16)) * 0x7FEB'352Du;
  x = (x ^ (x >> 15)) * 0x846C'A68Bu;
  return x ^ (x >> 16);
}

}  // namespace diffkv::test
