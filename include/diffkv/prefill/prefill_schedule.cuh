// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which items of a launch a CTA of the Hopper kernels works on, and in which order. No plan is
//! made: the items follow from the lengths in device memory.
//! Read before this: prefill/prefill_part.cuh.  Read next: prefill/hopper_rows.cuh.
//!
//! An item is one tile of a sequence for one unit of heads. Items are counted sequence by
//! sequence, in a sequence by sections of heads that the second-level cache can hold, and in a
//! section with the tiles that take longest first.
#include <diffkv/prefill/prefill_part.cuh>

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
//! each, which start where others have ended.
template <class SizeOf>
class prefill_turns {
 public:
  //! @param workers     CTAs that run at the same time
  //! @param max_rounds  see `max_rounds_for`
  __device__ prefill_turns(prefill_batch const& batch, prefill_cut const& cut,
                           std::uint32_t workers, std::uint32_t max_rounds,
                           SizeOf const& size_of) noexcept
    : batch_{batch}, cut_{cut}, workers_{workers}, max_rounds_{max_rounds}, size_of_{size_of}
  {}

  //! The CTA's next item.  @threads one warp, all lanes
  [[nodiscard]] __device__ prefill_item next() noexcept
  {
    std::uint32_t const cta   = blockIdx.x;
    std::uint32_t const round = round_++;
    if (round == 0 && cta < workers_) { return find_item(batch_, cut_, cta, size_of_); }
    if (rounds_ == 0) {  // counted only where it matters: launches of few items are short
      auto const items = count_shares(batch_, [&](prefill_part const& part) {
        return cut_.tiles(size_of_(part)) * cut_.units();
      });
      rounds_          = max_of(min_of(items / workers_, max_rounds_), 1u);
    }
    if (cta >= workers_) {
      return round == 0 ? find_item(batch_, cut_, (rounds_ - 1) * workers_ + cta, size_of_)
                        : prefill_item{};
    }
    if (round >= rounds_) { return {}; }
    std::uint32_t const place = round % 2 == 0 ? cta : workers_ - 1 - cta;
    return find_item(batch_, cut_, round * workers_ + place, size_of_);
  }

 private:
  prefill_batch const& batch_;
  prefill_cut const& cut_;
  std::uint32_t workers_;
  std::uint32_t max_rounds_;
  SizeOf const& size_of_;
  std::uint32_t rounds_ = 0;
  std::uint32_t round_  = 0;
};

//! Rounds cost an item nothing; CTAs of their own cost one about 2 us, and even out what the cores
//! differ in. That pays where items take hundreds of microseconds.
[[nodiscard]] inline std::uint32_t max_rounds_for(prefill_batch const& batch) noexcept
{
  return batch.num_queries / batch.capacity >= 16384 ? 1u : ~0u;
}

//! CTAs that are enough for up to `items` items.
[[nodiscard]] inline unsigned turns_grid(std::uint64_t items, std::uint32_t workers,
                                         std::uint32_t max_rounds) noexcept
{
  std::uint64_t const at_most = max_rounds == 1 ? items : std::uint64_t{2} * workers;
  return static_cast<unsigned>(min_of(items, at_most));
}

}  // namespace diffkv::detail
