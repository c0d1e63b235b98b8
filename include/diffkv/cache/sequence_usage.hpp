// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What sequences hold, for reports and for a scheduler.
//! Read before this: cache/cache_storage.hpp.  Read next: cache/kv_cache.hpp.
#include <diffkv/table/cache_ref.hpp>

#include <cstdint>

namespace diffkv {

//! What one sequence holds, summed over its layers and heads.
struct sequence_usage {
  std::int32_t num_tokens   = 0;  //!< N: seen, pruned ones included
  std::uint64_t high_tokens = 0;
  std::uint64_t low_tokens  = 0;
  std::uint64_t pruned      = 0;
  std::uint64_t pages       = 0;
  std::uint64_t bytes       = 0;    //!< of all pages held
  std::uint64_t bytes_16bit = 0;    //!< what plain 16-bit keys and values of N tokens take
  double nominal_bytes      = 0.0;  //!< code bits of the stored tokens, nothing else
};

//! Sums the rows of a sequence.  @pre slot < shape.num_slots; handles that the caller can read
[[nodiscard]] DIFFKV_HOST_DEVICE inline sequence_usage usage_of(cache_ref const& cache,
                                                                std::uint32_t slot) noexcept
{
  cache_shape const& shape = cache.shape;
  sequence_usage u{};
  u.num_tokens = cache.layer(slot, 0).num_tokens;
  for (std::uint32_t r = 0; r < shape.rows_per_slot(); ++r) {
    row_state const& row = cache.state.rows[shape.row(slot, 0, 0) + r];
    u.high_tokens += row.tokens.high;
    u.low_tokens += row.tokens.low;
    u.pages += row.pages.sum();
  }
  std::uint64_t const seen = static_cast<std::uint64_t>(u.num_tokens) * shape.rows_per_slot();
  u.pruned                 = seen - u.high_tokens - u.low_tokens;
  u.bytes                  = u.pages * cache.pool.page_bytes;
  u.bytes_16bit            = seen * static_cast<std::uint64_t>(shape.head_dim) * 4;
  u.nominal_bytes =
    static_cast<double>(u.high_tokens) * cache.tiers.high.nominal_bytes_per_token() +
    static_cast<double>(u.low_tokens) * cache.tiers.low.nominal_bytes_per_token();
  return u;
}

}  // namespace diffkv
