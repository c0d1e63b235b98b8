// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Fills caches on the device with what attention may meet: arbitrary codes of about unit variance,
//! positions in order, small scores, earlier queries.
#include <diffkv/core/half.hpp>
#include <diffkv/core/launch.cuh>
#include <diffkv/table/row_view.hpp>

namespace bench {

using namespace diffkv;

[[nodiscard]] static DIFFKV_HOST_DEVICE inline std::uint32_t hash_of(std::uint32_t a,
                                                                     std::uint32_t b) noexcept
{
  std::uint32_t h = a * 2654435761u ^ (b + 0x9E3779B9u) * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  h *= 3266489917u;
  return h ^ h >> 16;
}
//! Uniform, mean 0, variance 1.
[[nodiscard]] static DIFFKV_HOST_DEVICE inline float unit_variance(std::uint32_t hash) noexcept
{
  return (static_cast<float>(hash >> 8) * 0x1.0p-24f - 0.5f) * 3.4641016f;
}

//! Tokens of a row among the positions 0 .. num_tokens - 1: the window is high, what is older
//! alternates between the tiers as their counts have it, with gaps where tokens were pruned.
struct row_positions {
  tier_counts tokens{};
  std::int32_t num_tokens = 0;
  std::int32_t window     = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE std::int32_t of(tier t, slot_index slot) const noexcept
  {
    auto const recent              = static_cast<std::uint32_t>(window) < tokens.high
                                       ? static_cast<std::uint32_t>(window)
                                       : tokens.high;
    std::uint32_t const older_high = tokens.high - recent;
    if (t == tier::high && slot >= older_high) {
      return num_tokens - static_cast<std::int32_t>(tokens.high - slot);
    }
    std::uint64_t const older = std::uint64_t{older_high} + tokens.low;
    // Of the first r + 1 older tokens, floor((r + 1) * older_high / older) are high.
    std::uint64_t const rank =
      t == tier::high ? (std::uint64_t{slot + 1} * older + older_high - 1) / older_high - 1
                      : std::uint64_t{slot} * older / tokens.low;
    std::uint64_t const positions = static_cast<std::uint32_t>(num_tokens) - recent;
    return static_cast<std::int32_t>(rank * positions / older);
  }
};

//! What stands in one 32-bit word of a page, before scores and positions.
[[nodiscard]] static __device__ inline std::uint32_t arbitrary_word(page_geometry const& page,
                                                                    std::uint32_t offset,
                                                                    std::uint32_t hash) noexcept
{
  bool const is_key       = offset < page.value_codes;
  code_spec const spec    = is_key ? page.format.key : page.format.value;
  std::uint32_t const end = is_key ? page.key_metadata : page.value_metadata;
  auto const pair         = [](float a, float b) {
    __half2 const h = __floats2half2_rn(a, b);
    std::uint32_t word;
    memcpy(&word, &h, sizeof word);
    return word;
  };
  if (offset < end && spec.is_quantised()) { return hash; }
  if (offset < end) { return pair(unit_variance(hash), unit_variance(hash_of(hash, 1))); }
  float const range = 3.4641016f * (0.5f + static_cast<float>(hash >> 8) * 0x1.0p-24f);
  return pair(range / static_cast<float>(spec.max_code()), -0.5f * range);  // scale, zero
}

struct fill_parameters {
  cache_ref cache{};
  std::uint32_t seed = 0;
};

//! Grid: rows of the cache; pages of a row are spread over blockIdx.y.
static __global__ void fill_pages(__grid_constant__ fill_parameters const p)
{
  cache_ref const& cache = p.cache;
  row_view const row{&cache, blockIdx.x};
  row_state const state = row.state();
  layer_state const& of_layer =
    cache.layer(blockIdx.x / cache.shape.rows_per_slot(),
                blockIdx.x % cache.shape.rows_per_slot() / cache.shape.num_heads);
  row_positions const positions{state.tokens, of_layer.num_tokens, cache.shape.window};
  for (tier t : {tier::high, tier::low}) {
    page_geometry const& geometry = cache.tiers.of(t);
    auto const per_page           = static_cast<std::uint32_t>(geometry.tokens_per_page);
    for (std::uint32_t ordinal = blockIdx.y; ordinal < state.pages.of(t); ordinal += gridDim.y) {
      page_view const page = row.page(t, ordinal);
      std::uint32_t const page_index =
        static_cast<std::uint32_t>(cache.table.entry(row.row, t, ordinal));
      auto* const words = reinterpret_cast<std::uint32_t*>(page.bytes);
      for (std::uint32_t w = threadIdx.x; w < geometry.scores / 4; w += blockDim.x) {
        words[w] = arbitrary_word(geometry, 4 * w, hash_of(w, page_index ^ p.seed));
      }
      for (std::uint32_t i = threadIdx.x; i < per_page; i += blockDim.x) {
        std::uint32_t const slot = ordinal * per_page + i;
        bool const used          = slot < state.tokens.of(t);
        page.set_position(static_cast<int>(i), used ? positions.of(t, slot) : -1);
        page.set_score(
          static_cast<int>(i),
          used ? 0x1.0p-8f * static_cast<float>(hash_of(slot, page_index) >> 8) * 0x1.0p-24f
               : 0.0f);
      }
    }
  }
}

//! Queries of unit variance, and the log-sum-exp that such queries have over `num_tokens` keys.
static __global__ void fill_ring(__grid_constant__ fill_parameters const p, std::size_t entries,
                                 float lse)
{
  query_ring_ref const& ring = p.cache.queries;
  auto const dim             = static_cast<std::size_t>(ring.head_dim);
  std::size_t const stride   = std::size_t{gridDim.x} * blockDim.x;
  constexpr float largest    = 2.0f;  // unit_variance gives no more
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < entries * dim;
       i += stride) {
    float const x = unit_variance(hash_of(static_cast<std::uint32_t>(i), p.seed));
    if (ring.rounding == lag_rounding::int8) {
      ring.codes[i] = static_cast<std::int8_t>(int8_query_code(x, largest));
    } else {
      ring.queries[i] = x;
    }
    if (i < entries) {
      if (ring.rounding == lag_rounding::int8) { ring.largest[i] = largest; }
      ring.lse[i]           = lse;
      ring.offset_logits[i] = 0.0f;
    }
  }
}

//! Bits that do not compress, for the read ceiling.
static __global__ void fill_words(std::uint32_t* words, std::size_t count)
{
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = hash_of(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32));
  }
}

}  // namespace bench
