// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Times of operations that find nothing of theirs in the L2 cache: in front of each a kernel reads so
//! much else that nothing older is left, and what that takes alone is taken off.
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/core/launch.cuh>

namespace bench {

//! Reads `count` quads; writes only what cannot be, so that the reads are not left out.
static __global__ void read_all(uint4 const* quads, std::size_t count, std::uint32_t* never)
{
  diffkv::detail::wait_for_previous();
  std::uint32_t seen       = 0;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint4 const q = quads[i];
    seen |= q.x | q.y | q.z | q.w;
  }
  if (seen != 0) { *never = seen; }
}

class cold_caches {
 public:
  cold_caches()
  {
    DIFFKV_CUDA_TRY(
      cudaMemsetAsync(other_.data(), 0, other_.size() * sizeof(uint4), bench_stream()));
  }
  void evict()
  {
    diffkv::detail::launch(read_all, {1056, 256, 0, true}, bench_stream(), other_.data(),
                           other_.size(), never_.data());
  }
  //! Median time of op(i) without the reading in front of it.
  //! @param before  is called before each replay of a graph
  template <class Op, class Before>
  [[nodiscard]] double us_per_op(int n, int replays, Op&& op, Before&& before)
  {
    return graph_us_behind(
      bench_stream(), n, replays, [&](int) { evict(); }, op, before);
  }
  template <class Op>
  [[nodiscard]] double us_per_op(int n, int replays, Op&& op)
  {
    return us_per_op(n, replays, op, [] {});
  }

 private:
  //! Three times what the L2 cache holds.
  [[nodiscard]] static std::size_t num_quads()
  {
    int device = 0, bytes = 0;
    DIFFKV_CUDA_TRY(cudaGetDevice(&device));
    DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return 3 * static_cast<std::size_t>(bytes) / sizeof(uint4);
  }

  device_buffer<uint4> other_         = on_device<uint4>(num_quads());
  device_buffer<std::uint32_t> never_ = on_device<std::uint32_t>(1);
};

}  // namespace bench
