// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows that several warps have read: when all warps of a CTA are done they merge their parts, and the
//! CTA that comes last merges those of the CTAs.
//! Read before this: attention/page_walk.cuh.  Read next: attention/lagged_row.cuh.
//!
//! This code runs once a CTA and is fetched cold: kept small.
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
  //! Behind the barriers: of the warp's row, by head.
  [[nodiscard]] __device__ float* offsets() const noexcept
  {
    return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(notes() + Traits::slots) +
                                    Traits::barrier_bytes);
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

//! Merges the rows of which a CTA has several parts, or not all. A warp takes one head of a row at a time, by
//! the same code for parts of the CTA's warps and for parts of CTAs: the second time it is at hand.
template <class Traits, class T, class Out>
struct row_merge {
  using params                         = decode_params<Traits, T, Out>;
  using target                         = row_target<Traits, T, Out>;
  static constexpr std::uint32_t heads = Traits::heads;

  params const& p;
  decode_place<Traits> place;
  int lane;

  //! Which of the parts of the CTA there are, and where rows begin among them.
  struct part_masks {
    unsigned present = 0;
    unsigned firsts  = 0;
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

  //! Parts of a row, merged at a time.
  struct parts_of_row {
    row_part const* row;  //!< the first one of the CTA
    std::uint32_t first;  //!< slot in the CTA, or CTA
    std::uint32_t end;    //!< behind the last one
    bool is_whole;        //!< there are no others
    bool begins;          //!< the row begins in the CTA
  };

  //! All rows.
  //! @param totals  of the launch
  //! @threads the CTA; each warp has left its parts
  __device__ void run(planned_layer const& totals) const
  {
    __syncwarp();
    __syncthreads();
    part_masks const parts = find_parts();
    if (parts.present == 0) { return; }
    row_part const* const parts_here = place.cta->parts;
    // Of the rows that go beyond the CTA. One that passes through has begun before.
    int const first   = lowest_bit(parts.present);
    int const last    = highest_bit(parts.firsts);
    bool const comes  = (parts_here[first].flags & part_flag::begins) == 0;
    bool const leaves = (parts_here[last].flags & part_flag::begins) != 0 &&
                        (parts_here[highest_bit(parts.present)].flags & part_flag::ends) == 0;
    auto const shares = page_shares::of(totals.sharing, totals.cost);
    // The last warp has the least to merge.
    if (place.warp == place.warps - 1 && lane < 2) {
      bool const exists       = lane == 0 ? comes : leaves;
      place.cta->beyond[lane] = exists ? ctas_of(lane == 0 ? first : last, shares) : row_of_ctas{};
    }
    std::uint32_t units = static_cast<std::uint32_t>(__popc(parts.firsts)) * heads;
#pragma unroll 1
    for (bool across_ctas = false;; across_ctas = true) {
      unsigned firsts   = parts.firsts;
      std::uint32_t row = 0;  // whose first part is the lowest bit of `firsts`
#pragma unroll 1
      for (std::uint32_t u = place.warp; u < units; u += place.warps) {
        std::uint32_t const wanted = u / heads;
        parts_of_row of{};
        row_of_ctas const& beyond = place.cta->beyond[across_ctas ? wanted : 0];
        if (across_ctas) {
          if (beyond.is_complete == 0) { continue; }
          of = {parts_here + (wanted == 0 ? first : last), beyond.first_cta, beyond.last_cta + 1,
                true, false};
        } else {
#pragma unroll 1
          for (; row < wanted; ++row) { firsts &= firsts - 1; }
          of = parts_in_cta(parts, firsts);
        }
        merge(of, static_cast<int>(u - wanted * heads), parts, across_ctas ? &beyond : nullptr,
              shares);
      }
      if (across_ctas || (!comes && !leaves)) { return; }
      __syncthreads();  // what is passed on is written
      if (threadIdx.x < 2) { arrive(place.cta->beyond[threadIdx.x]); }
      __syncthreads();
      units = 2 * heads;
    }
  }

 private:
  //! @param firsts  of part_masks, from the row on
  [[nodiscard]] __device__ parts_of_row parts_in_cta(part_masks const& parts,
                                                     unsigned firsts) const noexcept
  {
    int const first     = lowest_bit(firsts);
    unsigned const next = firsts & (firsts - 1);
    unsigned const of   = next == 0 ? ~0u : (1u << lowest_bit(next)) - 1u;
    int const last      = highest_bit(parts.present & of);
    row_part const* row = place.cta->parts + first;
    bool const begins   = (row->flags & part_flag::begins) != 0;
    bool const ends     = (place.cta->parts[last].flags & part_flag::ends) != 0;
    return {row, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last) + 1,
            begins && ends, begins};
  }
  //! What CTA c leaves of a row: of the one that begins in it, or of one that began before.
  [[nodiscard]] __device__ partial_row<Traits> part_of_cta(std::uint32_t c,
                                                           bool begins) const noexcept
  {
    return {p.partials + (std::size_t{2} * c + (begins ? 1 : 0)) * Traits::part_floats};
  }
  [[nodiscard]] __device__ partial_row<Traits> part_of_warp(std::uint32_t slot) const noexcept
  {
    return slot % 2 == 0 ? place.first_part(slot / 2) : place.last_part(slot / 2);
  }

  //! A head of a row, over its parts: into its result, or for other CTAs.
  //! @param ctas  null: parts of the CTA
  __device__ void merge(parts_of_row const& of, int h, part_masks const& parts,
                        row_of_ctas const* ctas, page_shares const& shares) const noexcept
  {
    bool const has_candidates =
      Traits::has_scores && h + 1 == Traits::heads && (of.row->flags & row_flag::catches_up) != 0;
    merged_head<Traits> merged{};
    candidate best{};
    float offset = 0.0f;  // in lane 0
#pragma unroll 1
    for (std::uint32_t begin = of.first; begin < of.end; begin += 32) {
      std::uint32_t const i = begin + static_cast<std::uint32_t>(lane);
      bool is_there         = i < of.end;
      partial_row<Traits> mine{};
      if (ctas != nullptr) {
        is_there = is_there && has_part_of(of.row->template cost<Traits>(), *ctas, shares, i);
        mine     = part_of_cta(i, i == of.first);
      } else {
        is_there = is_there && (parts.present >> i & 1u) != 0;
        mine     = part_of_warp(i);
      }
      unsigned const which = __ballot_sync(0xFFFF'FFFFu, is_there);
      if constexpr (Traits::has_scores) {
        if (has_candidates) { add_candidates<Traits>(best, mine, which, lane); }
      }
      if constexpr (Traits::centred) {
        if (begin == of.first && lane == 0) { offset = mine.offset(h); }
      }
      merged.add(h, mine, which, lane);
    }
    if (of.is_whole) {
      target const to{p, of.row->index};
      if constexpr (Traits::has_scores) {
        if (has_candidates) { store_scores(to, best, lane); }
      }
      store_merged_head(to, h, merged, offset, of.row->kept, lane);
    } else {
      partial_row<Traits> const to = part_of_cta(blockIdx.x, of.begins);
      if constexpr (Traits::has_scores) {
        if (has_candidates && lane < num_stored_tiers * Traits::candidate_places) {
          to.candidates()[lane] = best;
        }
      }
      store_merged_part(to, h, merged, offset, lane);
    }
  }

  //! @param slot  the row's first part in this CTA
  [[nodiscard]] __device__ row_of_ctas ctas_of(int slot, page_shares const& shares) const noexcept
  {
    row_part const& part = place.cta->parts[slot];
    std::uint32_t const begin =
      shares.begin_of_warp(blockIdx.x, static_cast<std::uint32_t>(slot) / 2) + part.begin;
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
};

}  // namespace diffkv::detail
