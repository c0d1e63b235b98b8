// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The last launch of a prompt: its first CTAs put pages in place and give the surplus back; in the
//! others, warps encode rows. Both read the pages of a row from the plan's copy, so neither waits
//! for the other.
//! Read before this: compaction/row_encoder.cuh.  Read next: compaction/prompt.cuh.
#include <diffkv/compaction/row_encoder.cuh>

namespace diffkv::detail {

//! Last launch; see the top of the file. CTAs that encode: heads of a token beside each other.
template <class Config, class T>
DIFFKV_KERNEL void __launch_bounds__(encode_cta<Config, T>::warps * 32, encode_cta<Config, T>::ctas)
  prompt_store_kernel(__grid_constant__ store_params<T> const p)
{
  using cta = encode_cta<Config, T>;
  alignas(16) __shared__ std::byte shared[cta::bytes];
  planned_prompts const& planned = p.planned;
  std::uint32_t const of_item    = planned.ctas.count();
  if (blockIdx.x < planned.items * of_item) {
    place_pages<cta::warps * 32>(planned, blockIdx.x / of_item, blockIdx.x % of_item);
    return;
  }
  std::uint32_t const heads = planned.cache.shape.num_heads;
  std::uint32_t const n     = blockIdx.x - planned.items * of_item;
  std::uint32_t const item  = n / (heads * p.row_ctas);
  std::uint32_t const head  = n % heads;
  std::uint32_t const begin = n / heads % p.row_ctas * (cta::pairs * p.steps);
  std::uint32_t const warp  = threadIdx.x / 32;
  if (planned.rows[item * heads + head].num_tokens == 0) { return; }
  float* const offset = reinterpret_cast<float*>(shared + cta::warps * cta::bytes_per_warp);
  row_encoder<Config, T> const encoder{p,
                                       item,
                                       head,
                                       warp % 2 == 0,
                                       offset,
                                       shared + warp * cta::bytes_per_warp,
                                       static_cast<int>(threadIdx.x % 32)};
  // Block k of this warp; no more than steps of them.
  auto const find = [&](std::uint32_t k) {
    return k < p.steps ? encoder.find(begin + k * cta::pairs + warp / 2) : token_block{};
  };
  token_block block = find(0);
  if (block.count > 0) { encoder.fetch(block); }
  token_block next = find(1);
  if constexpr (has(Config::conditioned, conditioning::centred)) {
    float const* const from =
      planned.cache.key_offset(planned.layers.first + item % planned.layers.count, head);
    for (unsigned d = threadIdx.x; d < cta::head_dim; d += cta::warps * 32) { offset[d] = from[d]; }
    __syncthreads();
  }
  for (std::uint32_t k = 0; block.count > 0; ++k) {
    wait_for_tile();
    token_block after;
    encoder.store(block, [&] {
      if (next.count > 0) { encoder.fetch(next); }
      after = find(k + 2);
    });
    block = next;
    next  = after;
  }
}

}  // namespace diffkv::detail
