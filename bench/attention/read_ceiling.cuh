// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The read ceiling of the machine: a kernel that reads bytes and does nothing with them.
#include "attention/fill.cuh"

#include <cstddef>

namespace bench {

struct read_parameters {
  uint4 const* data      = nullptr;
  std::size_t count      = 0;  //!< of 16-byte words
  std::uint32_t* visited = nullptr;
};

inline constexpr int read_threads = 256;

//! Each CTA reads its own stretch once, every thread `Loads` times 16 bytes before it uses any.
template <int Loads>
static __global__ void __launch_bounds__(read_threads)
  read_once(__grid_constant__ read_parameters const p)
{
  std::size_t const first = std::size_t{blockIdx.x} * (read_threads * Loads) + threadIdx.x;
  uint4 words[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    std::size_t const at = first + static_cast<std::size_t>(i) * read_threads;
    words[i]             = at < p.count ? __ldcs(p.data + at) : uint4{};
  }
  std::uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < Loads; ++i) { all ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w; }
  if (all == 0x5EED'0001u) { *p.visited = all; }  // else the loads would be left out
}

//! Memory that is read over and over, much larger than any cache.
class read_arena {
 public:
  static constexpr std::size_t bytes = std::size_t{8} << 30;

  explicit read_arena(cudaStream_t stream) : stream_{stream}
  {
    DIFFKV_CUDA_TRY(cudaMalloc(&data_, bytes + 16));
    fill_words<<<4096, 256, 0, stream>>>(static_cast<std::uint32_t*>(data_), bytes / 4);
    DIFFKV_CUDA_TRY(cudaGetLastError());
  }
  read_arena(read_arena const&)            = delete;
  read_arena& operator=(read_arena const&) = delete;
  ~read_arena() { cudaFree(data_); }

  //! Reads `count` bytes, the `turn`-th stretch of that size.
  //! @param loads  4 or 8: which kernel
  void read(std::size_t count, std::size_t turn, int loads) const
  {
    std::size_t const words = (count + 15) / 16;
    std::size_t const turns = bytes / (16 * words);
    read_parameters const p{
      static_cast<uint4 const*>(data_) + turn % turns * words, words,
      reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(data_) + bytes)};
    std::size_t const per_cta =
      static_cast<std::size_t>(read_threads) * static_cast<std::size_t>(loads);
    diffkv::detail::launch(loads == 4 ? &read_once<4> : &read_once<8>,
                           {static_cast<unsigned>((words + per_cta - 1) / per_cta), read_threads},
                           stream_, p);
  }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace bench
