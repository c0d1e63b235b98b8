// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Some rows of a 16-bit matrix in shared memory, and the products of a warp with them.
//! Read before this: prefill/matrix_fragments.cuh.  Read next: prefill/prefill_rows.cuh.
#include <diffkv/core/vectors.hpp>
#include <diffkv/prefill/matrix_fragments.cuh>

namespace diffkv::detail {

//! `Rows` vectors of HeadDim elements. Each has 16 bytes more than it needs, so that equal columns
//! of eight rows lie in different banks.
template <class T, int HeadDim, int Rows>
struct prefill_tile {
  static_assert(HeadDim % 16 == 0 && Rows % 16 == 0);
  static constexpr std::uint32_t pitch = 2 * HeadDim + 16;
  static constexpr std::uint32_t bytes = Rows * pitch;

  std::uint32_t base;  //!< in shared memory

  [[nodiscard]] __device__ std::uint32_t at(int row, int dim) const noexcept
  {
    return base + static_cast<std::uint32_t>(row) * pitch + static_cast<std::uint32_t>(dim) * 2;
  }

  //! Starts to copy vectors first, first + step, ... `count` of them, the other rows zero.
  //! @threads `Threads` of a CTA
  template <int Threads>
  __device__ void start_fetch(vectors<T const> const& from, std::uint32_t head, std::int64_t first,
                              std::int32_t step, std::int32_t count) const noexcept
  {
    constexpr int units = HeadDim / 8;
    static_assert(Rows * units % Threads == 0);
#pragma unroll
    for (int i = 0; i < Rows * units / Threads; ++i) {
      int const unit      = i * Threads + static_cast<int>(threadIdx.x);
      int const row       = unit / units;
      int const dim       = unit % units * 8;
      bool const is_there = row < count;
      T const* const source =
        is_there ? from.at(first + std::int64_t{step} * row, head) + dim : from.data;
      start_copy_16(at(row, dim), source, is_there);
    }
  }

  //! Rows 16 r .. 16 r + 15 as A fragments.
  __device__ void load_a(std::uint32_t (&a)[4], int r, int k, int lane) const noexcept
  {
    load_matrices(a, at(16 * r + lane % 16, 16 * k + lane / 16 * 8));
  }

  //! d[n] += A . row n, over elements 16 k .. 16 k + 15; columns are the rows of this tile.
  __device__ void multiply(float (&d)[Rows / 8][4], std::uint32_t const (&a)[4], int k,
                           int lane) const noexcept
  {
#pragma unroll
    for (int n = 0; n < Rows / 16; ++n) {
      std::uint32_t b[4];
      load_matrices(b, at(16 * n + lane / 16 * 8 + lane % 8, 16 * k + lane / 8 % 2 * 8));
      mma_16_bit<T>(d[2 * n], a, b[0], b[1]);
      mma_16_bit<T>(d[2 * n + 1], a, b[2], b[3]);
    }
  }

  //! d += A rows: A holds the weights of rows 16 k .. 16 k + 15, columns are elements.
  __device__ void add_weighted(float (&d)[HeadDim / 8][4], std::uint32_t const (&a)[4], int k,
                               int lane) const noexcept
  {
#pragma unroll
    for (int n = 0; n < HeadDim / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, at(16 * k + lane % 16, 16 * n + lane / 16 * 8));
      mma_16_bit<T>(d[2 * n], a, b[0], b[1]);
      mma_16_bit<T>(d[2 * n + 1], a, b[2], b[3]);
    }
  }

  //! Whether an element is no finite number, as far as this thread looks.
  //! @threads `Threads` of a CTA, which look at all of them together
  template <int Threads>
  [[nodiscard]] __device__ bool has_non_finite_part() const noexcept
  {
    constexpr int units = HeadDim / 8;
    bool found          = false;
#pragma unroll 1
    for (int unit = static_cast<int>(threadIdx.x); unit < Rows * units; unit += Threads) {
      std::uint32_t w[4];
      load_shared(w, at(unit / units, unit % units * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) { found = found || has_non_finite<T>(w[i]); }
    }
    return found;
  }
};

//! Calls work(tile, stage) for begin, begin + step, ... in two stages: the next tile is fetched while
//! one is worked on.
//! @param fetch  fetch(tile, stage) starts the copies of all threads
//! @pre   begin < end
//! @threads a CTA
template <class Fetch, class Work>
__device__ void for_each_tile(std::int32_t begin, std::int32_t end, std::int32_t step,
                              Fetch const& fetch, Work const& work) noexcept
{
  fetch(begin, 0);
  int stage = 0;
  for (std::int32_t tile = begin; tile < end; tile += step, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // all have copied this tile, and none reads the one before any more
    if (tile + step < end) { fetch(tile + step, stage ^ 1); }
    work(tile, stage);
  }
}

}  // namespace diffkv::detail
