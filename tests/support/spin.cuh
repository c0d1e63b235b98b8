// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Keeps a stream busy, so that work which strays from its order is seen.
#include <cstdint>

#include "support/device.hpp"

namespace diffkv::test {

//! Each thread that calls it stays busy so long.
__device__ inline void spin(std::uint64_t nanoseconds)
{
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

namespace {
__global__ void spin_kernel(std::uint64_t nanoseconds) { spin(nanoseconds); }
}  // namespace

inline void spin(std::uint64_t nanoseconds, cudaStream_t stream)
{
  spin_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  check(cudaGetLastError(), "spin");
}

}  // namespace diffkv::test
