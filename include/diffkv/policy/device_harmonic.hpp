// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The harmonic table in device memory, for the `relative` policy in kernels.
//! Read before this: policy/harmonic.hpp, core/device_memory.hpp.  Read next: policy/relative.hpp.
#include <diffkv/core/device_memory.hpp>
#include <diffkv/policy/harmonic.hpp>

namespace diffkv {

//! Owns a copy of the host's table, so that both processors see the same bits.
template <class MemoryResource = cuda_async_resource>
class device_harmonic_table {
 public:
  //! @param stream  copies the table; the constructor waits for it
  //! @throws cuda_error; what the resource throws
  device_harmonic_table(std::int32_t max_tokens, MemoryResource resource, cudaStream_t stream)
    : sums_(static_cast<std::size_t>(max_tokens) + 1, resource), max_tokens_{max_tokens}
  {
    harmonic_table const table{max_tokens};
    device_guard const guard{stream};
    DIFFKV_CUDA_TRY(cudaMemcpyAsync(sums_.data(), table.ref().sums, sums_.size() * sizeof(double),
                                    cudaMemcpyHostToDevice, stream));
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
  }
  [[nodiscard]] harmonic_ref ref() const noexcept { return {sums_.data(), max_tokens_}; }

 private:
  buffer<double, MemoryResource> sums_;
  std::int32_t max_tokens_;
};

}  // namespace diffkv
