// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rows that several warps have read: who comes last merges, within a CTA, then over the CTAs.
//! Read before this: attention/page_walk.cuh.  Read next: attention/decode_warp.cuh.
//!
//! Code that runs once or twice a warp and is fetched cold: kept small and out of line.
#include <diffkv/attention/page_walk.cuh>

#include <cuda/atomic>

namespace diffkv::detail {

//! What the warps of a CTA share.
template <class Traits>
struct decode_cta {
  static constexpr int warps = Traits::tuning::warps;
  //! Pages of a row that have been read; 0: the row that began in front of the CTA, 1 + w: the one that
  //! goes on behind warp w.
  std::uint32_t arrived[warps + 1];
  //! Rows of many CTAs whose last part came from here: merged by all warps at the end. One begins in
  //! front of the CTA, one ends behind it.
  struct waiting_row {
    std::uint32_t index;
    std::uint32_t first_cta;
    std::uint32_t last_cta;
    std::uint32_t flags;
  } waiting[2];
  std::uint32_t num_waiting;
};

//! Where a warp stands in a launch, and what lies where in shared memory.
template <class Traits>
struct decode_place {
  decode_cta<Traits>* cta;
  std::byte* shared;  //!< of the CTA
  float* partials;    //!< of the workspace
  divider num_warps;  //!< of the launch
  std::uint32_t ctas;
  std::uint32_t warp;   //!< of the CTA
  std::uint32_t warps;  //!< of a CTA
  std::uint32_t total;  //!< pages of the layer
  std::uint32_t each;   //!< total / num_warps
  std::uint32_t rest;   //!< what is left

  __device__ decode_place(decode_cta<Traits>* shared_cta, std::byte* shared_memory,
                          float* parts_of_ctas, divider warps_of_launch, std::uint32_t num_ctas,
                          std::uint32_t num_pages) noexcept
    : cta{shared_cta},
      shared{shared_memory},
      partials{parts_of_ctas},
      num_warps{warps_of_launch},
      ctas{num_ctas},
      warp{threadIdx.x / 32},
      warps{blockDim.x / 32},
      total{num_pages},
      each{num_warps.quotient(num_pages)},
      rest{num_pages - each * num_warps.divisor}
  {}

  //! share_begin without a division.  @pre at most most_warps warps
  [[nodiscard]] __device__ std::uint32_t begin_of_warp(std::uint32_t w) const noexcept
  {
    return w * each + num_warps.quotient(w * rest);
  }
  //! share_of; 64 bits are slow and seldom needed.
  [[nodiscard]] __device__ std::uint32_t warp_of(std::uint32_t page) const noexcept
  {
    std::uint32_t const n = num_warps.divisor;
    return each < 0xFFFF'FFFFu / n / n ? ((page + 1) * n - 1) / total : share_of(total, page, n);
  }
  [[nodiscard]] __device__ std::uint32_t begin_of_cta(std::uint32_t c) const noexcept
  {
    return begin_of_warp(c * warps);
  }

  [[nodiscard]] __device__ std::byte* memory_of(std::uint32_t w) const noexcept
  {
    return shared + std::size_t{w} * Traits::warp_bytes;
  }
  //! Part of a row that warp w read last: where its tiles were.
  [[nodiscard]] __device__ partial_row<Traits> last_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w))};
  }
  //! Part of the row that began in front of warp w and ends in it.
  [[nodiscard]] __device__ partial_row<Traits> first_part(std::uint32_t w) const noexcept
  {
    return {reinterpret_cast<float*>(memory_of(w) + Traits::ring_bytes)};
  }
  //! What CTA c leaves of a row: of the one that begins in it, or of the one that began before.
  [[nodiscard]] __device__ partial_row<Traits> part_of_cta(std::uint32_t c,
                                                           bool begins) const noexcept
  {
    return {partials + (std::size_t{2} * c + (begins ? 1 : 0)) * Traits::part_floats};
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

//! The parts of a row that one merge takes together, in the order of its pages.
template <class Traits>
struct part_list {
  decode_place<Traits> at;
  bool of_ctas;         //!< else of the warps of a CTA
  std::uint32_t first;  //!< warp or CTA of part 0
  std::uint32_t step;
  std::uint32_t count;
  std::uint32_t first_cta;  //!< of CTAs: where the row begins
  bool ends_early;          //!< of warps: the last one goes on with another row

  //! Null where a warp or CTA has no pages.
  [[nodiscard]] __device__ partial_row<Traits> operator()(std::uint32_t i) const noexcept
  {
    std::uint32_t const n = first + i * step;
    if (at.each == 0) {  // else all have some
      std::uint32_t const w = of_ctas ? n * at.warps : blockIdx.x * at.warps + n;
      if (at.begin_of_warp(w) == at.begin_of_warp(w + (of_ctas ? at.warps : 1u))) { return {}; }
    }
    if (of_ctas) { return at.part_of_cta(n, n == first_cta); }
    return ends_early && i + 1 == count ? at.first_part(n) : at.last_part(n);
  }
};

//! Merges parts of a row into another part, or into its result.
//! @param to     null: the result
//! @param flags  row_flag
//! @threads one warp
template <class Traits, class T, class Out, class Parts>
__device__ __noinline__ void merge_row(decode_params<Traits, T, Out> const& p, Parts const parts,
                                       std::uint32_t count, partial_row<Traits> const to,
                                       std::uint32_t index, std::uint32_t flags)
{
  int const lane        = static_cast<int>(threadIdx.x % 32);
  bool const catches_up = (flags & row_flag::catches_up) != 0;
  auto const finish     = [&](int h, merged_head<Traits>& merged) {
    float offset = 0.0f;
    if constexpr (Traits::centred) {
      if (count > 0 && parts(0).at != nullptr) { offset = parts(0).offset(h); }
    }
    if (to.at == nullptr) {
      store_merged_head(row_target<Traits, T, Out>{p, index}, h, merged, offset,
                            (flags & row_flag::stored) != 0, lane);
      return;
    }
    auto const& v = merged.out;
#pragma unroll
    for (int q = 0; q < v.quads_per_lane; ++q) {
      if (!v.has(lane, q)) { continue; }
      *reinterpret_cast<float4*>(to.out(h) + 4 * v.quad(lane, q)) =
        float4{v.x[q][0], v.x[q][1], v.x[q][2], v.x[q][3]};
    }
    if (lane == 0) {
      to.state(h) = float2{merged.max, merged.sum};
      if constexpr (Traits::centred) { to.offset(h) = offset; }
    }
  };
  merge_parts<Traits>(count, parts, finish, lane);
  if constexpr (Traits::has_scores) {
    if (catches_up) {
      candidate const c = merge_candidates<Traits>(count, parts, lane);
      if (to.at == nullptr) {
        store_scores(row_target<Traits, T, Out>{p, index}, c, lane);
      } else if (lane < num_stored_tiers * Traits::candidate_places) {
        to.candidates()[lane] = c;
      }
    }
  }
  __syncwarp();
}

//! A warp has left its part of a row; whoever completes the row merges.
//! @param begin, end  pages of the row, counted over the layer
//! @param pages_read  by this warp
//! @threads one warp
template <class Traits, class T, class Out>
__device__ __noinline__ void hand_over(decode_params<Traits, T, Out> const& p,
                                       decode_place<Traits> const at, std::uint32_t index,
                                       std::uint32_t begin, std::uint32_t end,
                                       std::uint32_t pages_read, std::uint32_t flags)
{
  constexpr unsigned all        = 0xFFFF'FFFFu;
  bool const speaks             = threadIdx.x % 32 == 0;
  std::uint32_t const cta_begin = at.begin_of_cta(blockIdx.x);
  std::uint32_t const cta_end   = at.begin_of_cta(blockIdx.x + 1);
  std::uint32_t const here      = max_of(begin, cta_begin);
  std::uint32_t const here_end  = min_of(end, cta_end);
  std::uint32_t const first     = at.warp_of(here) - blockIdx.x * at.warps;
  std::uint32_t const last      = at.warp_of(here_end - 1) - blockIdx.x * at.warps;
  bool completes                = false;
  if (speaks) {
    std::uint32_t const key = begin < cta_begin ? 0u : first + 1;
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_block> arrived{at.cta->arrived[key]};
    completes =
      arrived.fetch_add(pages_read, cuda::memory_order_acq_rel) + pages_read == here_end - here;
  }
  if (__shfl_sync(all, completes ? 1 : 0, 0) == 0) { return; }
  __syncwarp();  // a shuffle does not pass on what lane 0 has acquired
  bool const ends_early = end < at.begin_of_warp(blockIdx.x * at.warps + last + 1);
  part_list<Traits> const of_warps{at, false, first, 1, last - first + 1, 0, ends_early};
  bool const within              = begin >= cta_begin && end <= cta_end;
  std::uint32_t const first_cta  = at.warp_of(begin) / at.warps;
  partial_row<Traits> const none = {};
  merge_row(p, of_warps, of_warps.count,
            within ? none : at.part_of_cta(blockIdx.x, blockIdx.x == first_cta), index, flags);
  if (within) { return; }

  std::uint32_t const last_cta = at.warp_of(end - 1) / at.warps;
  bool is_last                 = false;
  if (speaks) {
    // A layer of fewer pages than CTAs leaves some without.
    std::uint32_t const parts = at.total >= at.ctas ? last_cta - first_cta + 1 : end - begin;
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> arrivals{p.arrivals[first_cta]};
    is_last = arrivals.fetch_add(1, cuda::memory_order_acq_rel) == parts - 1;
    if (is_last) { arrivals.store(0, cuda::memory_order_relaxed); }
  }
  if (__shfl_sync(all, is_last ? 1 : 0, 0) == 0) { return; }
  __syncwarp();
  part_list<Traits> const of_ctas{at,        true, first_cta, 1, last_cta - first_cta + 1,
                                  first_cta, false};
  if (of_ctas.count <= Traits::tuning::few_parts) {
    merge_row(p, of_ctas, of_ctas.count, none, index, flags);
    return;
  }
  if (speaks) {
    cuda::atomic_ref<std::uint32_t, cuda::thread_scope_block> waiting{at.cta->num_waiting};
    std::uint32_t const place = waiting.fetch_add(1, cuda::memory_order_relaxed);
    at.cta->waiting[place]    = {index, first_cta, last_cta, flags};
  }
}

//! Rows of many CTAs, by all warps: each merges some of the parts, then one what they have made.
//! @threads the CTA
template <class Traits, class T, class Out>
__device__ void merge_waiting_rows(decode_params<Traits, T, Out> const& p,
                                   decode_place<Traits> const& at)
{
  __syncthreads();
  std::uint32_t const num_waiting = at.cta->num_waiting;
#pragma unroll 1
  for (std::uint32_t i = 0; i < num_waiting; ++i) {
    auto const row            = at.cta->waiting[i];
    std::uint32_t const parts = row.last_cta - row.first_cta + 1;
    part_list<Traits> const own{at,
                                true,
                                row.first_cta + at.warp,
                                at.warps,
                                parts > at.warp ? ceil_div(parts - at.warp, at.warps) : 0u,
                                row.first_cta,
                                false};
    merge_row(p, own, own.count, at.last_part(at.warp), row.index, row.flags);
    __syncthreads();
    if (at.warp == 0) {
      merge_row(
        p, [at](std::uint32_t w) { return at.last_part(w); }, at.warps, partial_row<Traits>{},
        row.index, row.flags);
    }
    __syncthreads();
  }
}

}  // namespace diffkv::detail
