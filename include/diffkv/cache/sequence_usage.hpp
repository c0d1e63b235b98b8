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

//! From what the rows of a sequence hold together.
[[nodiscard]] DIFFKV_HOST_DEVICE inline sequence_usage usage_from(cache_ref const& cache,
                                                                  std::uint32_t slot,
                                                                  std::uint64_t high_tokens,
                                                                  std::uint64_t low_tokens,
                                                                  std::uint64_t pages) noexcept
{
  sequence_usage u{};
  u.num_tokens             = cache.layer(slot, 0).num_tokens;
  u.high_tokens            = high_tokens;
  u.low_tokens             = low_tokens;
  u.pages                  = pages;
  std::uint64_t const seen = static_cast<std::uint64_t>(u.num_tokens) * cache.shape.rows_per_slot();
  u.pruned                 = seen - high_tokens - low_tokens;
  u.bytes                  = pages * cache.pool.page_bytes;
  u.bytes_16bit            = seen * static_cast<std::uint64_t>(cache.shape.head_dim) * 4;
  u.nominal_bytes = static_cast<double>(high_tokens) * cache.tiers.high.nominal_bytes_per_token() +
                    static_cast<double>(low_tokens) * cache.tiers.low.nominal_bytes_per_token();
  return u;
}

//! Sums the rows of a sequence, on the host.  @pre slot < shape.num_slots
[[nodiscard]] inline sequence_usage usage_of(cache_ref const& cache, std::uint32_t slot) noexcept
{
  std::uint64_t high  = 0;
  std::uint64_t low   = 0;
  std::uint64_t pages = 0;
  for (std::uint32_t r = 0; r < cache.shape.rows_per_slot(); ++r) {
    row_state const& row = cache.state.rows[cache.shape.row(slot, 0, 0) + r];
    high += row.tokens.high;
    low += row.tokens.low;
    pages += row.pages.sum();
  }
  return usage_from(cache, slot, high, low, pages);
}

}  // namespace diffkv
