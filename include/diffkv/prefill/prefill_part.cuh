// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which sequence and which of its tokens a CTA of prompt attention works on. No plan is made: who
//! needs to know counts the tiles of the sequences.
//! Read before this: prefill/prefill_batch.hpp.  Read next: prefill/matrix_fragments.cuh.
#include <diffkv/prefill/prefill_batch.hpp>

namespace diffkv::detail {

//! What a launch has of one sequence.
struct prefill_part {
  std::int64_t first_query   = 0;  //!< in query and out
  std::int64_t first_key     = 0;  //!< in key and value
  std::int32_t num_queries   = 0;
  std::int32_t position      = 0;  //!< of the first query
  std::int32_t prompt_tokens = 0;

  [[nodiscard]] __device__ std::int32_t num_keys() const noexcept
  {
    return num_queries > 0 ? position + num_queries : 0;
  }
  [[nodiscard]] static __device__ prefill_part of(prefill_batch const& batch,
                                                  std::uint32_t sequence) noexcept
  {
    prefill_part part;
    part.first_query = batch.first_queries[sequence];
    part.num_queries =
      static_cast<std::int32_t>(batch.first_queries[sequence + 1] - part.first_query);
    part.position  = batch.positions == nullptr ? 0 : batch.positions[sequence];
    part.first_key = batch.first_keys == nullptr ? part.first_query : batch.first_keys[sequence];
    part.prompt_tokens =
      batch.prompt_tokens == nullptr ? part.num_keys() : batch.prompt_tokens[sequence];
    return part;
  }
};

//! Where a running number that counts something over all sequences, from the last one to the
//! first, falls: `index` within the sequence of `part`.
struct prefill_share {
  prefill_part part{};
  std::uint32_t index = 0;
  std::uint32_t count = 0;  //!< of the sequence
  bool is_there       = false;
};

//! @param count_of  count_of(part) is how many a sequence has
//! @threads one warp, all lanes; the result is the same in each
template <class CountOf>
[[nodiscard]] __device__ prefill_share find_share(prefill_batch const& batch, std::uint32_t index,
                                                  CountOf const& count_of) noexcept
{
  std::uint32_t const lane = threadIdx.x % 32;
  for (std::uint32_t done = 0; done < batch.capacity; done += 32) {
    prefill_part part{};
    if (done + lane < batch.capacity) {
      part = prefill_part::of(batch, batch.capacity - 1 - done - lane);
    }
    std::uint32_t const count = count_of(part);
    std::uint32_t until       = count;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
      std::uint32_t const before = __shfl_up_sync(~0u, until, step);
      if (lane >= step) { until += before; }
    }
    unsigned const beyond = __ballot_sync(~0u, index < until);
    if (beyond == 0) {
      index -= __shfl_sync(~0u, until, 31);
      continue;
    }
    int const owner = __ffs(static_cast<int>(beyond)) - 1;
    prefill_share share;
    share.index              = index - __shfl_sync(~0u, until - count, owner);
    share.count              = __shfl_sync(~0u, count, owner);
    share.is_there           = true;
    share.part.first_query   = __shfl_sync(~0u, part.first_query, owner);
    share.part.first_key     = __shfl_sync(~0u, part.first_key, owner);
    share.part.num_queries   = __shfl_sync(~0u, part.num_queries, owner);
    share.part.position      = __shfl_sync(~0u, part.position, owner);
    share.part.prompt_tokens = __shfl_sync(~0u, part.prompt_tokens, owner);
    return share;
  }
  return {};
}

//! How many all sequences have together.  @threads one warp, all lanes
template <class CountOf>
[[nodiscard]] __device__ std::uint32_t count_shares(prefill_batch const& batch,
                                                    CountOf const& count_of) noexcept
{
  std::uint32_t count = 0;
  for (std::uint32_t s = threadIdx.x % 32; s < batch.capacity; s += 32) {
    count += count_of(prefill_part::of(batch, s));
  }
  return __reduce_add_sync(~0u, count);
}

//! A tile of one sequence; `first` is negative where there is none.
struct prefill_place {
  prefill_part part{};
  std::int32_t first = -1;  //!< first query or key of the tile, counted within the sequence
};

//! Tile `index`, counted over all sequences from the last one to the first.
//! @param size_of  size_of(part) is how many rows of a sequence are cut into tiles
//! @param rows     of a tile
//! @param reverse  whether a sequence's tiles are taken from its end
//! @threads one warp, all lanes; the result is the same in each
template <class SizeOf>
[[nodiscard]] __device__ prefill_place find_tile(prefill_batch const& batch, std::uint32_t index,
                                                 std::int32_t rows, bool reverse,
                                                 SizeOf const& size_of) noexcept
{
  prefill_share const share = find_share(batch, index, [&](prefill_part const& part) {
    return static_cast<std::uint32_t>(ceil_div(max_of(size_of(part), 0), rows));
  });
  if (!share.is_there) { return {}; }
  return {share.part,
          static_cast<std::int32_t>(reverse ? share.count - 1 - share.index : share.index) * rows};
}

//! The queries of the batch in tiles, of each sequence those that see most keys first.
[[nodiscard]] __device__ inline prefill_place find_query_tile(prefill_batch const& batch,
                                                              std::uint32_t index,
                                                              std::int32_t rows) noexcept
{
  return find_tile(batch, index, rows, true,
                   [](prefill_part const& part) { return part.num_queries; });
}
//! The keys of the batch in tiles, of each sequence those that most queries see first.
[[nodiscard]] __device__ inline prefill_place find_key_tile(prefill_batch const& batch,
                                                            std::uint32_t index,
                                                            std::int32_t rows) noexcept
{
  return find_tile(batch, index, rows, false,
                   [](prefill_part const& part) { return part.num_keys(); });
}

//! CTAs that have at least one for each tile of each head.
//! @param tokens  of all sequences together
[[nodiscard]] inline unsigned prefill_grid(std::int64_t tokens, std::uint32_t capacity,
                                           std::int32_t rows, std::uint32_t heads)
{
  std::uint64_t const tiles = static_cast<std::uint64_t>(tokens / rows) + capacity;
  DIFFKV_EXPECTS(tiles <= 0x7FFF'FFFFu / heads,
                 "batch: too many tokens for one launch, cut the batch into several");
  return static_cast<unsigned>(tiles * heads);
}

}  // namespace diffkv::detail
