// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The key offsets of a model: the mean over the keys of a prompt.
//! Read before this: host/prefill_attention.hpp.  Read next: cache/cache_options.hpp.
#include <diffkv/compaction/calibration.hpp>
#include <diffkv/core/error.hpp>
#include <diffkv/core/vectors.hpp>

namespace diffkv::host {

//! Key offsets of one layer.
//! @param key           [num_tokens, num_heads, head_dim], rotary embedding applied, not conditioned
//! @param[out] offsets  [num_heads, head_dim] f32, as cache_ref::key_offsets has them per layer
//! @throws invalid_argument if num_tokens is below 1
//! @cost   O(num_tokens * num_heads * head_dim)
template <class T>
void calibrate_key_offsets(vectors<T> key, std::int32_t num_tokens, std::uint32_t num_heads,
                           std::int32_t head_dim, float* offsets)
{
  DIFFKV_EXPECTS(num_tokens >= 1,
                 "num_tokens: a mean needs at least 1 token, got " + std::to_string(num_tokens));
  for (std::uint32_t head = 0; head < num_heads; ++head) {
    for (std::int32_t d = 0; d < head_dim; ++d) {
      key_sum all;
      for (std::int32_t begin = 0; begin < num_tokens; begin += calibration_chunk) {
        std::int32_t const end = diffkv::detail::min_of(begin + calibration_chunk, num_tokens);
        key_sum chunk;
        for (std::int32_t i = begin; i < end; ++i) { chunk.add(to_f32(key.at(i, head)[d])); }
        all.add(chunk);
      }
      offsets[static_cast<std::size_t>(head) * static_cast<std::size_t>(head_dim) +
              static_cast<std::size_t>(d)] = all.mean();
    }
  }
}

}  // namespace diffkv::host
