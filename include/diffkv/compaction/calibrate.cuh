// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The key offsets of a model on the device: the mean over the keys of a prompt, per layer and head.
//! Read before this: compaction/calibration.hpp, compaction/scan_candidates.cuh.
#include <diffkv/compaction/calibration.hpp>
#include <diffkv/core/launch.cuh>
#include <diffkv/core/vectors.hpp>
#include <diffkv/quant/vector_codec.hpp>  // max_head_dim

#include <limits>

namespace diffkv {

//! The keys of some layers of a prompt, in device memory.
template <class T>
struct calibration_keys {
  vectors<T const>
    key{};  //!< of the first layer: [num_tokens, num_heads, head_dim], not conditioned
  std::ptrdiff_t layer_stride = 0;  //!< elements from one layer to the next
  std::uint32_t num_layers    = 0;
  std::uint32_t num_heads     = 0;
  std::int32_t num_tokens     = 0;
  std::int32_t head_dim       = 0;
};

namespace detail {

template <class T>
struct calibrate_params {
  calibration_keys<T> keys;
  std::uint32_t chunks;
  key_sum* sums;  //!< [layers, heads, chunks, head_dim]
  float* offsets;
};

//! CTA per (layer, head, chunk), thread per dim.
template <class T>
DIFFKV_KERNEL void __launch_bounds__(max_head_dim)
  calibrate_chunk_kernel(__grid_constant__ calibrate_params<T> const p)
{
  wait_for_previous();
  std::uint32_t const row   = blockIdx.x / p.chunks;
  auto const begin          = static_cast<std::int32_t>(blockIdx.x % p.chunks) * calibration_chunk;
  std::int32_t const end    = min(begin + calibration_chunk, p.keys.num_tokens);
  std::uint32_t const layer = row / p.keys.num_heads;
  T const* const key        = p.keys.key.at(0, row % p.keys.num_heads) +
                       static_cast<std::ptrdiff_t>(layer) * p.keys.layer_stride + threadIdx.x;
  key_sum sum;
#pragma unroll 4
  for (std::int32_t i = begin; i < end; ++i) { sum.add(to_f32(key[i * p.keys.key.token_stride])); }
  p.sums[std::size_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

//! CTA per (layer, head), thread per dim.
template <class T>
DIFFKV_KERNEL void __launch_bounds__(max_head_dim)
  calibrate_mean_kernel(__grid_constant__ calibrate_params<T> const p)
{
  wait_for_previous();
  key_sum all;
  for (std::uint32_t c = 0; c < p.chunks; ++c) {
    all.add(p.sums[(std::size_t{blockIdx.x} * p.chunks + c) * blockDim.x + threadIdx.x]);
  }
  p.offsets[std::size_t{blockIdx.x} * blockDim.x + threadIdx.x] = all.mean();
}

}  // namespace detail

//! Bytes that calibrate_key_offsets needs.
template <class T>
[[nodiscard]] std::size_t calibrate_workspace_bytes(calibration_keys<T> const& keys) noexcept
{
  auto const chunks =
    static_cast<std::size_t>(detail::ceil_div(keys.num_tokens, calibration_chunk));
  return std::size_t{keys.num_layers} * keys.num_heads * chunks *
         static_cast<std::size_t>(keys.head_dim) * sizeof(key_sum);
}

//! Key offsets of some layers: equals host::calibrate_key_offsets bit for bit.
//! @param[out] offsets  [num_layers, num_heads, head_dim] f32, device
//! @param workspace     calibrate_workspace_bytes, aligned to 16 bytes; free when the work is done
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; two kernels
//! @cost   reads every key once; no allocation
template <class T>
void calibrate_key_offsets(calibration_keys<T> const& keys, float* offsets, void* workspace,
                           std::size_t workspace_bytes, cudaStream_t stream)
{
  DIFFKV_EXPECTS(keys.num_tokens >= 1, "num_tokens: a mean needs at least 1 token, got " +
                                         std::to_string(keys.num_tokens));
  DIFFKV_EXPECTS(keys.head_dim >= 1 && keys.head_dim <= max_head_dim,
                 "head_dim: " + std::to_string(keys.head_dim) + " is not within 1 .. " +
                   std::to_string(max_head_dim));
  detail::expect_workspace(workspace, workspace_bytes, calibrate_workspace_bytes(keys));
  auto const chunks =
    static_cast<std::uint32_t>(detail::ceil_div(keys.num_tokens, calibration_chunk));
  std::uint64_t const rows = std::uint64_t{keys.num_layers} * keys.num_heads;
  DIFFKV_EXPECTS(
    rows * chunks <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
    "num_tokens: too many chunks of keys for one launch, calibrate fewer layers at a time");
  detail::calibrate_params<T> const params{keys, chunks, static_cast<key_sum*>(workspace), offsets};
  auto const threads = static_cast<unsigned>(keys.head_dim);
  detail::launch(detail::calibrate_chunk_kernel<T>,
                 {static_cast<unsigned>(rows * chunks), threads, 0, true}, stream, params);
  detail::launch(detail::calibrate_mean_kernel<T>, {static_cast<unsigned>(rows), threads, 0, true},
                 stream, params);
}

}  // namespace diffkv
