// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows that several warps have read: when all warps of a CTA are done they merge their parts, and the
//! CTA that comes last merges those of the CTAs.
//! Read before this: attention/page_walk.cuh.  Read next: attention/lagged_row.cuh.
//!
//! This code runs once a CTA and is fetched cold: kept small. A warp merges one head at a time.
#include <diffkv/attention/page_walk.cuh>
#include <diffkv/attention/score_path.cuh>  // scored_row

#include <cuda/atomic>

namespace diffkv::detail {

//! A part of a row, which a warp has left in shared memory for others.
struct row_part {
  static constexpr std::uint32_t none = 0xFFFF'FFFFu;

  std::uint32_t index;  //!< row of the launch; none: no part
  std::uint32_t flags;  //!< row_flag, part_flag
  std::uint32_t begin;  //!< of the row, from where the warp's share begins, in cost: may lie before
  std::uint32_t pages;  //!< of the row
  std::uint32_t high_pages;
  std::uint32_t kept;  //!< as row_note::kept

  template <class Traits>
  [[nodiscard]] __device__ row_cost cost() const noexcept
  {
    return Traits::cost_of(high_pages, pages - high_pages, (flags & row_flag::catches_up) != 0);
  }
};

namespace part_flag {
inline constexpr std::uint32_t begins = 1u << 8;  //!< the row begins in it
inline constexpr std::uint32_t ends   = 1u << 9;
}  // namespace part_flag

//! A row that several CTAs have parts of.
struct row_of_ctas {
  std::uint32_t first_cta;
  std::uint32_t last_cta;
  std::uint32_t parts;        //!< CTAs that have one; 0: no such row
  std::uint32_t begin;        //!< of the row, in cost of the layer
  std::uint32_t is_complete;  //!< all parts are there
};

//! What the warps of a CTA share.
template <class Traits>
struct decode_cta {
  static constexpr int warps = Traits::warps;
  static_assert(2 * warps <= 32, "a lane for each part");

  //! Two of each warp, in the order of the pages: of a row that has begun before, of its last row.
  row_part parts[2 * warps];
  //! Rows that go beyond the CTA: one that began before, one that begins here.
  row_of_ctas beyond[2];
};

//! Where a warp stands in a launch, and what lies where in shared memory.
template <class Traits>
struct decode_place {
  decode_cta<Traits>* cta;
  std::byte* shared;    //!< of the CTA
  std::uint32_t warp;   //!< of the CTA
  std::uint32_t warps;  //!< of a CTA

  [[nodiscard]] __device__ std::byte* memory_of(std::uint32_t w) const noexcept
  {
    return shared + std::size_t{w} * Traits::warp_bytes;
  }
  //! Part of the row that warp w read last: where its tiles were.
  [[nodiscard]] __device__ partial_row<Traits> last_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w))};
  }
  //! Part of the row that began in front of warp w and ends in it.
  [[nodiscard]] __device__ partial_row<Traits> first_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w) + Traits::ring_bytes)};
  }
  [[nodiscard]] __device__ float* stage() const noexcept
  {
    return reinterpret_cast<float*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes);
  }
  [[nodiscard]] __device__ candidate* record() const noexcept
  {
    return reinterpret_cast<candidate*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes +
                                        Traits::stage_bytes);
  }
  [[nodiscard]] __device__ scored_row* row_of_scores() const noexcept
  {
    return reinterpret_cast<scored_row*>(reinterpret_cast<std::byte*>(record()) +
                                         round_up(Traits::candidate_bytes, 16));
  }
  [[nodiscard]] __device__ row_note* notes() const noexcept
  {
    return reinterpret_cast<row_note*>(memory_of(warp) + Traits::ring_bytes + Traits::part_bytes +
                                       Traits::stage_bytes + Traits::record_bytes);
  }
  [[nodiscard]] __device__ std::uint32_t barriers() const noexcept
  {
    return kept_shared_address(notes() + Traits::slots);
  }
};

//! Index of the lowest, of the highest bit.  @pre mask is not 0
[[nodiscard]] __device__ inline int lowest_bit(unsigned mask) noexcept
{
  return __ffs(static_cast<int>(mask)) - 1;
}
[[nodiscard]] __device__ inline int highest_bit(unsigned mask) noexcept
{
  return 31 - __clz(static_cast<int>(mask));
}

//! Merges the rows of which a CTA has several parts, or not all.
template <class Traits, class T, class Out>
struct row_merge {
  using params = decode_params<Traits, T, Out>;
  using target = row_target<Traits, T, Out>;
  //! What a warp takes at a time: a head. Candidates go with the last one.
  static constexpr std::uint32_t units = Traits::heads;

  params const& p;
  decode_place<Traits> place;
  int lane;

  //! Which of the parts of the CTA there are, and where rows begin among them.
  struct part_masks {
    unsigned present;
    unsigned firsts;
  };
  [[nodiscard]] __device__ part_masks find_parts() const noexcept
  {
    constexpr unsigned all    = 0xFFFF'FFFFu;
    bool const exists         = lane < 2 * static_cast<int>(place.warps);
    std::uint32_t const index = exists ? place.cta->parts[lane].index : row_part::none;
    unsigned const present    = __ballot_sync(all, index != row_part::none);
    unsigned const before     = present & ((1u << lane) - 1u);
    std::uint32_t const previous =
      __shfl_sync(all, index, before == 0 ? lane : highest_bit(before));
    bool const is_first = index != row_part::none && (before == 0 || previous != index);
    return {present, __ballot_sync(all, is_first)};
  }

  //! What CTA c leaves of a row: of the one that begins in it, or of one that began before.
  [[nodiscard]] __device__ partial_row<Traits> part_of_cta(std::uint32_t c,
                                                           bool begins) const noexcept
  {
    return {p.partials + (std::size_t{2} * c + (begins ? 1 : 0)) * Traits::part_floats};
  }

  //! One unit of a row, over its parts in the CTA: into its result, or for other CTAs.
  //! @param first         its first part
  //! @param which, count  of its parts from there on; see merged_head::add
  __device__ void merge_in_cta(int first, unsigned which, int count, int unit) const noexcept
  {
    auto const part_at = [&](int i) {
      auto const slot = static_cast<std::uint32_t>(first + i);
      return slot % 2 == 0 ? place.first_part(slot / 2) : place.last_part(slot / 2);
    };
    row_part const& begin        = place.cta->parts[first];
    row_part const& end          = place.cta->parts[first + count - 1];
    bool const begins            = (begin.flags & part_flag::begins) != 0;
    bool const is_whole          = begins && (end.flags & part_flag::ends) != 0;
    partial_row<Traits> const to = part_of_cta(blockIdx.x, begins);
    if (has_candidates(begin, unit)) {
      candidate best{};
      add_candidates<Traits>(best, which, count, part_at, lane);
      if (is_whole) {
        store_candidates(begin, best);
      } else if (lane < num_stored_tiers * Traits::candidate_places) {
        to.candidates()[lane] = best;
      }
    }
    merged_head<Traits> merged{};
    merged.add(unit, which, count, part_at, lane);
    float const offset = Traits::centred ? part_at(0).offset(unit) : 0.0f;
    if (is_whole) {
      store_head(begin, unit, merged, offset);
      return;
    }
    auto const& v = merged.out;
#pragma unroll
    for (int q = 0; q < v.quads_per_lane; ++q) {
      if (!v.has(lane, q)) { continue; }
      *reinterpret_cast<float4*>(to.out(unit) + 4 * v.quad(lane, q)) =
        float4{v.x[q][0], v.x[q][1], v.x[q][2], v.x[q][3]};
    }
    if (lane == 0) {
      to.state(unit) = float2{merged.max, merged.sum};
      if constexpr (Traits::centred) { to.offset(unit) = offset; }
    }
  }

  //! One unit of a row, over its parts in several CTAs.
  __device__ void merge_ctas(row_part const& row, page_shares const& shares,
                             row_of_ctas const& ctas, int unit) const noexcept
  {
    std::uint32_t const first_cta = ctas.first_cta;
    std::uint32_t const last_cta  = ctas.last_cta;
    merged_head<Traits> merged{};
    candidate best{};
    bool const catches_up = has_candidates(row, unit);
#pragma unroll 1
    for (std::uint32_t begin = first_cta; begin <= last_cta; begin += 32) {
      std::uint32_t const mine = begin + static_cast<std::uint32_t>(lane);
      bool const has_part =
        mine <= last_cta && has_part_of(row.template cost<Traits>(), ctas, shares, mine);
      unsigned const which = __ballot_sync(0xFFFF'FFFFu, has_part);
      int const count      = static_cast<int>(min_of(last_cta - begin + 1, 32u));
      auto const part_at   = [&](int i) {
        std::uint32_t const c = begin + static_cast<std::uint32_t>(i);
        return part_of_cta(c, c == first_cta);
      };
      if constexpr (Traits::has_scores) {
        if (catches_up) { add_candidates<Traits>(best, which, count, part_at, lane); }
      }
      merged.add(unit, which, count, part_at, lane);
    }
    if (catches_up) { store_candidates(row, best); }
    store_head(row, unit, merged,
               Traits::centred ? part_of_cta(first_cta, true).offset(unit) : 0.0f);
  }

  //! All rows.
  //! @threads the CTA; each warp has left its parts
  __device__ void run(std::uint32_t cost) const
  {
    __syncwarp();
    __syncthreads();
    part_masks const parts = find_parts();
    if (parts.present == 0) { return; }
    // Of the rows that go beyond the CTA. One that passes through has begun before.
    row_part const& first = place.cta->parts[lowest_bit(parts.present)];
    row_part const& last  = place.cta->parts[highest_bit(parts.firsts)];
    row_part const& end   = place.cta->parts[highest_bit(parts.present)];
    bool const comes      = (first.flags & part_flag::begins) == 0;
    bool const leaves = (last.flags & part_flag::begins) != 0 && (end.flags & part_flag::ends) == 0;
    page_shares const shares{p.grid, cost};
    // The last warp has the least to merge.
    if (place.warp == place.warps - 1 && lane < 2) {
      bool const exists       = lane == 0 ? comes : leaves;
      place.cta->beyond[lane] = exists ? ctas_of(lane == 0 ? first : last, shares) : row_of_ctas{};
    }
    merge_rows_of_cta(parts);
    if (!comes && !leaves) { return; }
    __syncthreads();  // what is passed on is written
    if (threadIdx.x < 2) { arrive(place.cta->beyond[threadIdx.x]); }
    __syncthreads();
#pragma unroll 1
    for (std::uint32_t u = place.warp; u < 2 * units; u += place.warps) {
      bool const of_last = u >= units;
      if (place.cta->beyond[of_last ? 1 : 0].is_complete == 0) { continue; }
      merge_ctas(of_last ? last : first, shares, place.cta->beyond[of_last ? 1 : 0],
                 static_cast<int>(of_last ? u - units : u));
    }
  }

 private:
  //! Whether candidates are merged together with a head.
  [[nodiscard]] static __device__ bool has_candidates(row_part const& row, int unit) noexcept
  {
    return Traits::has_scores && unit + 1 == Traits::heads &&
           (row.flags & row_flag::catches_up) != 0;
  }

  //! The parts of each row within the CTA.
  __device__ void merge_rows_of_cta(part_masks const& parts) const noexcept
  {
    auto const num_units = static_cast<std::uint32_t>(__popc(parts.firsts)) * units;
    unsigned left        = parts.firsts;
    std::uint32_t row    = 0;  // whose first part is the lowest bit of `left`
#pragma unroll 1
    for (std::uint32_t u = place.warp; u < num_units; u += place.warps) {
      for (; row < u / units; ++row) { left &= left - 1; }
      unsigned const next     = left & (left - 1);
      unsigned const in_front = next == 0 ? ~0u : (1u << lowest_bit(next)) - 1u;
      int const first         = lowest_bit(left);
      unsigned const of_row   = (parts.present & in_front) >> first;
      merge_in_cta(first, of_row, highest_bit(of_row) + 1, static_cast<int>(u - row * units));
    }
  }

  //! @param part  the row's first part in this CTA
  [[nodiscard]] __device__ row_of_ctas ctas_of(row_part const& part,
                                               page_shares const& shares) const noexcept
  {
    auto const slot               = static_cast<std::uint32_t>(&part - place.cta->parts);
    std::uint32_t const begin     = shares.begin_of_warp(blockIdx.x, slot / 2) + part.begin;
    row_cost const cost           = part.template cost<Traits>();
    std::uint32_t const first_cta = shares.cta_of(begin + cost.begin_of(1) - 1);
    std::uint32_t const last_cta  = shares.cta_of(begin + cost.total() - 1);
    row_of_ctas ctas{first_cta, last_cta, last_cta - first_cta + 1, begin, 0};
    if (!shares.exceed(cost)) {  // some of them have no page
      ctas.parts = 0;
#pragma unroll 1
      for (std::uint32_t c = first_cta; c <= last_cta; ++c) {
        ctas.parts += has_part_of(cost, ctas, shares, c) ? 1 : 0;
      }
    }
    return ctas;
  }
  //! Whether CTA c, of those that the row goes through, has pages of it.
  [[nodiscard]] static __device__ bool has_part_of(row_cost const& cost, row_of_ctas const& ctas,
                                                   page_shares const& shares,
                                                   std::uint32_t c) noexcept
  {
    if (shares.exceed(cost) || c == ctas.first_cta || c == ctas.last_cta) { return true; }
    // Pages that end in front of it and in front of the next one.
    return cost.page_at(shares.begin_of_cta(c + 1) - ctas.begin) >
           cost.page_at(shares.begin_of_cta(c) - ctas.begin);
  }

  //! This CTA's part of a row is there.
  //! @threads one
  __device__ void arrive(row_of_ctas& row) const noexcept
  {
    if (row.parts == 0) { return; }
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> arrivals{p.arrivals[row.first_cta]};
    if (arrivals.fetch_add(1, cuda::memory_order_acq_rel) == row.parts - 1) {
      arrivals.store(0, cuda::memory_order_relaxed);
      row.is_complete = 1;
    }
  }

  __device__ void store_head(row_part const& row, int h, merged_head<Traits>& merged,
                             float offset) const noexcept
  {
    store_merged_head(target{p, row.index}, h, merged, offset, row.kept, lane);
  }
  __device__ void store_candidates(row_part const& row, candidate const& c) const noexcept
  {
    if constexpr (Traits::has_scores) { store_scores(target{p, row.index}, c, lane); }
  }
};

}  // namespace diffkv::detail
