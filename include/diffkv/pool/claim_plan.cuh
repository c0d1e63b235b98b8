// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Who gets pages: the parts of a claim that kernels share. One launch stores how much each sequence
//! wants and a snapshot of the counters; in the next, every CTA sums what is wanted before its own
//! sequences by itself. There is no scan kernel, no atomic and no waiting for other CTAs.
//! Read before this: pool/claim_request.hpp.  Read next: pool/claim_tile.cuh.
//!
//! Exact first fit: a sequence is served if and only if it fits into what those before it left. If
//! everything fits (one comparison) a sum is all it takes. Else a warp walks over sequences or whole
//! groups of them: what is left only shrinks, so whoever does not fit now never will, and the others
//! are granted up to the first that would not fit whole.
#include <diffkv/pool/free_ring.hpp>

#include <cstdint>

namespace diffkv {

//! The counters of a ring when a launch sequence began, and the cells they name.
struct alignas(16) ring_snapshot {
  std::uint64_t head      = 0;
  std::uint64_t tail      = 0;
  std::uint32_t head_cell = 0;  //!< head % capacity
  std::uint32_t tail_cell = 0;  //!< tail % capacity

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint64_t num_free() const noexcept
  {
    return tail - head;
  }
};

//! @threads one
[[nodiscard]] DIFFKV_HOST_DEVICE inline ring_snapshot take_snapshot(
  free_ring_ref const& ring) noexcept
{
  std::uint64_t const head = *ring.head;
  std::uint64_t const tail = *ring.tail;
  return {head, tail, static_cast<std::uint32_t>(head % ring.capacity),
          static_cast<std::uint32_t>(tail % ring.capacity)};
}

//! The cell `distance` places behind the cell `from`.  @pre distance <= capacity
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t cell_behind(
  std::uint32_t from, std::uint64_t distance, std::uint32_t capacity) noexcept
{
  std::uint64_t const cell = from + distance;
  return static_cast<std::uint32_t>(cell < capacity ? cell : cell - capacity);
}
static_assert(cell_behind(6, 1, 8) == 7 && cell_behind(6, 2, 8) == 0 && cell_behind(7, 8, 8) == 7);

//! Demand of a sequence as it is stored: no ring has 2^32 - 1 pages, so more than that does not fit
//! either.
[[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t saturated(std::uint64_t pages) noexcept
{
  return pages < 0xFFFF'FFFFu ? static_cast<std::uint32_t>(pages) : 0xFFFF'FFFFu;
}

// What lies in shared memory has no initial values; `{}` makes zeros.

//! What some neighbouring sequences want: enough to grant or refuse all of them at once.
struct alignas(16) demand_sum {
  std::uint64_t pages;    //!< sum of their (saturated) demands
  std::uint32_t least;    //!< least demand that is not zero; 2^32 - 1 if there is none
  std::uint32_t wanting;  //!< how many want any page

  [[nodiscard]] DIFFKV_HOST_DEVICE static constexpr demand_sum none() noexcept
  {
    return {0, 0xFFFF'FFFFu, 0};
  }

  //! Adds a sequence.
  DIFFKV_HOST_DEVICE constexpr void add(std::uint32_t demand) noexcept
  {
    if (demand == 0) { return; }
    pages += demand;
    least = demand < least ? demand : least;
    ++wanting;
  }
  //! Adds sequences.
  DIFFKV_HOST_DEVICE constexpr void add(demand_sum const& other) noexcept
  {
    pages += other.pages;
    least = other.least < least ? other.least : least;
    wanting += other.wanting;
  }
};
static_assert(sizeof(demand_sum) == 16);  // one load

[[nodiscard]] DIFFKV_HOST_DEVICE constexpr demand_sum demand_of_one(std::uint32_t demand) noexcept
{
  return {demand, demand == 0 ? 0xFFFF'FFFFu : demand, demand == 0 ? 0u : 1u};
}

//! What a walk has given so far.
struct grant_sum {
  std::uint64_t taken;    //!< pages
  std::uint32_t refused;  //!< sequences
};

namespace detail {

inline constexpr unsigned all_lanes = 0xFFFF'FFFFu;

[[nodiscard]] __device__ inline unsigned lane_index() noexcept { return threadIdx.x % 32; }

//! @threads one warp; result valid in all lanes
[[nodiscard]] __device__ inline std::uint64_t warp_sum(std::uint64_t v) noexcept
{
  if (__all_sync(all_lanes, v < (1u << 27)) != 0) {
    return __reduce_add_sync(all_lanes, static_cast<unsigned>(v));
  }
  for (int other = 16; other > 0; other /= 2) { v += __shfl_xor_sync(all_lanes, v, other); }
  return v;
}

//! Inclusive prefix sum over the lanes.  @threads one warp
template <class T>
[[nodiscard]] __device__ T warp_inclusive_sum(T v) noexcept
{
  for (unsigned below = 1; below < 32; below *= 2) {
    T const other = __shfl_up_sync(all_lanes, v, below);
    v += lane_index() >= below ? other : T{0};
  }
  return v;
}

[[nodiscard]] __device__ inline demand_sum load_demand(demand_sum const* from) noexcept
{
  uint4 const raw = __ldcg(reinterpret_cast<uint4 const*>(from));  // written by the launch before
  return {raw.x | std::uint64_t{raw.y} << 32, raw.z, raw.w};
}

}  // namespace detail

//! Exact first fit for up to 32 sequences, one a lane.
//! @param pages  demand of this lane's sequence; 0 in lanes that have none
//! @param left   pages that are still there
//! @return bit i: lane i's sequence is granted (those that want nothing are)
//! @threads one warp; result valid in all lanes
[[nodiscard]] __device__ inline std::uint32_t first_fit(std::uint32_t pages,
                                                        std::uint64_t left) noexcept
{
  bool granted = pages == 0;
  bool open    = !granted;  // neither granted nor refused yet
  while (__any_sync(detail::all_lanes, open) != 0) {
    open                    = open && pages <= left;
    std::uint64_t const sum = detail::warp_inclusive_sum(open ? std::uint64_t{pages} : 0u);
    bool const fits         = open && sum <= left;
    unsigned const fitting  = __ballot_sync(detail::all_lanes, fits);
    if (fitting == 0) { break; }
    left -= __shfl_sync(detail::all_lanes, sum, 31 - __clz(static_cast<int>(fitting)));
    granted = granted || fits;
    open    = open && !fits;
  }
  return __ballot_sync(detail::all_lanes, granted);
}

//! Goes on with `given` through `count` sequences whose demands are stored.
//! @param on_chunk  called by the warp for each 32 of them: (first of them, mask of the granted, what
//!                  was given before)
//! @threads one warp; result valid in all lanes
template <class OnChunk>
[[nodiscard]] __device__ grant_sum first_fit_sequences(std::uint32_t const* demands,
                                                       std::uint32_t count, std::uint64_t room,
                                                       grant_sum given, OnChunk const& on_chunk)
{
  std::uint32_t const lane = detail::lane_index();
  std::uint32_t next       = lane < count ? __ldcg(demands + lane) : 0u;
  for (std::uint32_t first = 0; first < count; first += 32) {
    std::uint32_t const pages = next;
    next = count - first > 32 + lane ? __ldcg(demands + first + 32 + lane) : 0u;
    std::uint32_t const granted = first_fit(pages, room - given.taken);
    on_chunk(first, granted, given);
    given.taken += detail::warp_sum((granted >> lane & 1u) != 0 ? pages : 0u);
    given.refused += static_cast<std::uint32_t>(__popc(~granted));
  }
  return given;
}

//! Walks over `count` groups of neighbouring sequences from the first one on.
//! @param load     (group) -> demand_sum, called by a lane
//! @param descend  (group, given) -> given: walks over the sequences of a group that is neither granted
//!                 nor refused as a whole; called by the warp, never for a group of one sequence
//! @threads one warp; result valid in all lanes
template <class Load, class Descend>
[[nodiscard]] __device__ grant_sum first_fit_groups(std::uint32_t count, std::uint64_t room,
                                                    Load const& load, Descend const& descend)
{
  std::uint32_t const lane = detail::lane_index();
  std::uint32_t refused    = 0;  // by this lane
  grant_sum given{};
  demand_sum next = lane < count ? load(lane) : demand_sum::none();
  for (std::uint32_t first = 0; first < count; first += 32) {
    demand_sum const group = next;
    next      = count - first > 32 + lane ? load(first + 32 + lane) : demand_sum::none();
    bool open = group.wanting > 0;
    while (__any_sync(detail::all_lanes, open) != 0) {
      std::uint64_t const left = room - given.taken;
      if (open && group.least > left) {
        refused += group.wanting;
        open = false;
      }
      // Clipped, so that the sum cannot overflow; a clipped one does not fit.
      std::uint64_t const pages = !open ? 0u : group.pages <= left ? group.pages : left + 1;
      std::uint64_t const sum   = detail::warp_inclusive_sum(pages);
      open                      = open && sum > left;
      unsigned const over       = __ballot_sync(detail::all_lanes, open);
      if (over == 0) {
        given.taken += __shfl_sync(detail::all_lanes, sum, 31);
        break;
      }
      auto const stop = static_cast<std::uint32_t>(__ffs(static_cast<int>(over)) - 1);
      given.taken += __shfl_sync(detail::all_lanes, sum - pages, static_cast<int>(stop));
      if (__shfl_sync(detail::all_lanes, group.wanting, static_cast<int>(stop)) > 1) {
        given = descend(first + stop, given);
      } else {
        refused += lane == stop ? 1u : 0u;
      }
      open = open && lane != stop;
    }
  }
  given.refused += static_cast<std::uint32_t>(detail::warp_sum(refused));
  return given;
}

//! Sums of demand seen from one place in the order.
struct demand_before {
  std::uint64_t before;
  std::uint64_t all;
};

//! Shared memory of the functions for a CTA.
struct claim_shared {
  demand_before warps[32];
  grant_sum given;
};

//! Sums the pages that everybody wants, and those before `own`.
//! @param load  (index) -> pages
//! @threads the CTA, whole warps; result valid in all threads; ends behind a barrier
template <class Load>
[[nodiscard]] __device__ demand_before sum_demand_before(std::uint32_t count, std::uint32_t own,
                                                         claim_shared& shared, Load const& load)
{
  demand_before mine{};
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    std::uint64_t const pages = load(i);
    mine.all += pages;
    mine.before += i < own ? pages : 0u;
  }
  unsigned const warps = blockDim.x / 32;
  mine                 = {detail::warp_sum(mine.before), detail::warp_sum(mine.all)};
  if (detail::lane_index() == 0) { shared.warps[threadIdx.x / 32] = mine; }
  __syncthreads();
  if (warps == 1) { return mine; }
  demand_before const other =
    detail::lane_index() < warps ? shared.warps[detail::lane_index()] : demand_before{};
  return {detail::warp_sum(other.before), detail::warp_sum(other.all)};
}

//! How one sequence fares.
struct sequence_grant {
  std::uint64_t taken   = 0;      //!< pages granted to those before it
  std::uint32_t refused = 0;      //!< sequences refused before it
  bool granted          = false;  //!< whether it gets all it wants
  std::uint32_t pages   = 0;      //!< what it wants

  //! Pages granted up to and with this sequence, and sequences refused.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr grant_sum after() const noexcept
  {
    return {taken + (granted ? pages : 0u), refused + (granted ? 0u : 1u)};
  }
};

//! Decides for sequence `own` of `count` sequences, whose demands the launch before has stored.
//! The CTA of the last sequence publishes: head + after().taken, and after().refused.
//! @param demands  [count] saturated demands
//! @param room     free pages by the snapshot
//! @pre     own < count
//! @threads the CTA, whole warps; result valid in all threads
//! @cost    O(count / threads) if all demand fits, else O(own / 32) steps of one warp
[[nodiscard]] __device__ inline sequence_grant grant_of(std::uint32_t const* demands,
                                                        std::uint32_t count, std::uint32_t own,
                                                        std::uint64_t room, claim_shared& shared)
{
  std::uint32_t const pages = __ldcg(demands + own);
  demand_before const sums  = sum_demand_before(
     count, own, shared, [demands](std::uint32_t s) { return __ldcg(demands + s); });
  if (sums.all <= room) { return {sums.before, 0, true, pages}; }
  if (threadIdx.x < 32) {
    grant_sum const given = first_fit_groups(
      own, room, [demands](std::uint32_t s) { return demand_of_one(__ldcg(demands + s)); },
      [](std::uint32_t, grant_sum g) { return g; });
    if (threadIdx.x == 0) { shared.given = given; }
  }
  __syncthreads();
  grant_sum const given = shared.given;
  return {given.taken, given.refused, pages <= room - given.taken, pages};
}

}  // namespace diffkv
