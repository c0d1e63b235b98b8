// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which items of a launch a CTA of the Hopper kernels works on, and in which order. No plan is
//! made: the items follow from the lengths in device memory.
//! Read before this: attention/prefill_part.cuh.  Read next: attention/prefill_hopper.cuh.
//!
//! An item is one tile of a sequence for one unit of heads. Items are counted sequence by
//! sequence, in a sequence by sections of heads that the second-level cache can hold, and in a
//! section with the tiles that take longest first.
#include <diffkv/attention/prefill_part.cuh>

namespace diffkv::detail {

//! How sequences are cut into items.
struct prefill_cut {
  std::uint32_t num_heads      = 1;
  std::uint32_t units_per_head = 1;
  std::int32_t rows            = 1;  //!< of a tile
  std::uint32_t token_bytes    = 1;  //!< what all items of a head read again and again, per token

  [[nodiscard]] __device__ std::uint32_t tiles(std::int32_t size) const noexcept
  {
    return static_cast<std::uint32_t>(ceil_div(max_of(size, 0), rows));
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE std::uint32_t units() const noexcept
  {
    return num_heads * units_per_head;
  }
};

//! One item; `tile` counts from the one that takes longest, and is negative if there is no item.
struct prefill_item {
  prefill_part part{};
  std::int32_t tile  = -1;
  std::uint32_t unit = 0;
};

//! Item `index`, see above.
//! @param size_of  size_of(part) is how many rows of a sequence are cut into tiles
//! @threads one warp, all lanes; the result is the same in each
template <class SizeOf>
[[nodiscard]] __device__ prefill_item find_item(prefill_batch const& batch, prefill_cut const& cut,
                                                std::uint32_t index, SizeOf const& size_of) noexcept
{
  constexpr std::uint32_t section_bytes = 32u << 20;  // leaves a third of an H200's cache to others
  prefill_share const share             = find_share(
                batch, index, [&](prefill_part const& part) { return cut.tiles(size_of(part)) * cut.units(); });
  if (!share.is_there) { return {}; }
  std::uint32_t const tiles = cut.tiles(size_of(share.part));
  std::uint64_t const head_bytes =
    std::uint64_t{cut.token_bytes} * static_cast<std::uint32_t>(share.part.num_keys());
  std::uint32_t const fitting = static_cast<std::uint32_t>(section_bytes / head_bytes);
  std::uint32_t const heads   = max_of(min_of(fitting, cut.num_heads), 1u);
  std::uint32_t const section = share.index / (heads * cut.units_per_head * tiles);
  std::uint32_t const head    = section * heads;
  std::uint32_t const units   = min_of(heads, cut.num_heads - head) * cut.units_per_head;
  std::uint32_t const rest    = share.index - head * cut.units_per_head * tiles;
  return {share.part, static_cast<std::int32_t>(rest / units),
          head * cut.units_per_head + rest % units};
}

//! The items of one CTA. Of the first rounds of items each of the first `workers` CTAs has one a
//! round, to and fro, so that nobody always has the longest. The rest are for later CTAs, one
//! each: those start where others have ended, and make up for what the rounds left uneven.
class prefill_turns {
 public:
  //! @param items  of the launch
  __device__ prefill_turns(std::uint32_t items, std::uint32_t workers) noexcept
    : items_{items}, workers_{workers}, rounds_{rounds(items, workers)}
  {}
  //! CTAs that are enough for up to `items` items.
  [[nodiscard]] static unsigned grid(std::uint64_t items, std::uint32_t workers)
  {
    std::uint64_t const late = items / late_part + workers;
    return static_cast<unsigned>(items <= workers ? items
                                                  : workers + min_of(items - workers, late));
  }
  //! The CTA's next item; not less than the number of items if it has no more.
  [[nodiscard]] __device__ std::uint32_t next() noexcept
  {
    std::uint32_t const round = round_++;
    std::uint32_t const cta   = blockIdx.x;
    if (cta >= workers_) { return round == 0 ? (rounds_ - 1) * workers_ + cta : items_; }
    if (round >= rounds_) { return items_; }
    return round * workers_ + (round % 2 == 0 ? cta : workers_ - 1 - cta);
  }

 private:
#if !defined(DIFFKV_LATE_PART)
#define DIFFKV_LATE_PART 6
#endif
  static constexpr std::uint32_t late_part =
    DIFFKV_LATE_PART;  //!< one of so many items is for later CTAs
  [[nodiscard]] static __device__ std::uint32_t rounds(std::uint32_t items,
                                                       std::uint32_t workers) noexcept
  {
    return max_of((items - items / late_part) / workers, 1u);
  }

  std::uint32_t items_;
  std::uint32_t workers_;
  std::uint32_t rounds_;
  std::uint32_t round_ = 0;
};

}  // namespace diffkv::detail
