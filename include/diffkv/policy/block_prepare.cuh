// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! `prepare` of a policy by a whole CTA: the same parameters as Policy::prepare, sooner.
//! Read before this: policy/any_policy.hpp.  Read next: compaction/prompt_plan.cuh.
#include <diffkv/policy/any_policy.hpp>

#include <type_traits>  // is_same_v

namespace diffkv::detail {

//! Of the CTAs that prepare rows.
inline constexpr int prepare_threads = 1024;
inline constexpr int prepare_warps   = prepare_threads / 32;

struct prepare_shared {
  std::uint32_t histogram[256];
  std::int32_t of_warp[prepare_warps];
  std::uint32_t key;
  std::int32_t rank;
};

//! Key of the k-th largest of values[0 .. count), and which of the values with that key it is, counted
//! from the greatest index: byte by byte from the top, one histogram each. Integer counts alone meet in
//! shared memory, so the order of threads does not matter.
//! @threads one CTA; result valid in all threads
[[nodiscard]] __device__ inline std::uint32_t select_key(float const* values, std::int32_t count,
                                                         std::int32_t k, prepare_shared& shared)
{
  if (threadIdx.x == 0) {
    shared.key  = 0;
    shared.rank = k;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) { shared.histogram[threadIdx.x] = 0; }
    __syncthreads();
    std::uint32_t const above = shift == 24 ? 0u : ~0u << (shift + 8);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < count; i += prepare_threads) {
      std::uint32_t const key = ordered_key(values[i]);
      if (((key ^ shared.key) & above) == 0) {
        atomicAdd(shared.histogram + (key >> shift & 255u), 1u);
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // Lane l has the bytes 255 - 8 l down to 248 - 8 l.
      std::int32_t const top = 255 - 8 * static_cast<std::int32_t>(threadIdx.x);
      std::int32_t mine      = 0;
      for (int b = 0; b < 8; ++b) { mine += static_cast<std::int32_t>(shared.histogram[top - b]); }
      std::int32_t up_to = mine;
      for (unsigned o = 1; o < 32; o *= 2) {
        std::int32_t const other = __shfl_up_sync(0xFFFF'FFFFu, up_to, o);
        up_to += threadIdx.x >= o ? other : 0;
      }
      std::int32_t const rank = shared.rank;
      __syncwarp();
      std::int32_t greater = up_to - mine;
      if (greater < rank && rank <= up_to) {
        int b = 0;
        for (; greater + static_cast<std::int32_t>(shared.histogram[top - b]) < rank; ++b) {
          greater += static_cast<std::int32_t>(shared.histogram[top - b]);
        }
        shared.key |= static_cast<std::uint32_t>(top - b) << shift;
        shared.rank = rank - greater;
      }
    }
    __syncthreads();
  }
  return shared.key;
}

//! Index of the rank-th value with this key, counted from the greatest index.
//! @threads one CTA; result valid in all threads
[[nodiscard]] __device__ inline std::int32_t select_tie(float const* values, std::int32_t count,
                                                        std::uint32_t key, std::int32_t rank,
                                                        prepare_shared& shared)
{
  auto const warp            = static_cast<std::int32_t>(threadIdx.x / 32);
  auto const lane            = static_cast<std::int32_t>(threadIdx.x % 32);
  std::int32_t const segment = round_up(ceil_div(count, prepare_warps), 32);
  std::int32_t const begin   = min_of(warp * segment, count);
  std::int32_t const end     = min_of(begin + segment, count);
  auto const ties_from       = [&](std::int32_t first) {
    std::int32_t const i = first + lane;
    return __ballot_sync(0xFFFF'FFFFu, i < end && ordered_key(values[i]) == key);
  };
  std::int32_t mine = 0;
  for (std::int32_t i = begin; i < end; i += 32) { mine += __popc(ties_from(i)); }
  if (lane == 0) { shared.of_warp[warp] = mine; }
  __syncthreads();
  std::int32_t const later =
    __reduce_add_sync(0xFFFF'FFFFu, lane > warp ? shared.of_warp[lane] : 0);
  if (later < rank && rank <= later + mine) {
    std::int32_t from_left = mine - (rank - later);  // ties of this warp before the one sought
    for (std::int32_t i = begin; i < end; i += 32) {
      unsigned const ties = ties_from(i);
      if (from_left >= __popc(ties)) {
        from_left -= __popc(ties);
        continue;
      }
      if (lane == 0) { shared.rank = i + static_cast<std::int32_t>(__fns(ties, 0, from_left + 1)); }
      break;
    }
  }
  __syncthreads();
  return shared.rank;
}

//! static_policy::prepare.  @threads one CTA; result valid in all threads
[[nodiscard]] __device__ inline static_policy::row_parameters prepare_static(
  static_policy const& policy, prompt_view const& row, prepare_shared& shared)
{
  std::int32_t const outside = row.num_tokens - row.window;
  if (outside <= policy.budget || policy.budget <= 0) { return policy.prepare(row); }
  std::uint32_t const key = select_key(row.importances, outside, policy.budget, shared);
  std::int32_t const rank = shared.rank;
  __syncthreads();
  return {key, select_tie(row.importances, outside, key, rank, shared) + 1, false};
}

//! Whether `prepare` has nothing to find out.
template <class Policy>
inline constexpr bool prepares_nothing =
  std::is_same_v<typename Policy::row_parameters, no_parameters>;

//! Policy::prepare. A policy of the user's own is asked by one thread.
//! @param[out] to  written by one thread
//! @threads one CTA of prepare_threads
template <class Policy>
__device__ void block_prepare(Policy const& policy, prompt_view const& row, prepare_shared& shared,
                              typename Policy::row_parameters& to)
{
  if constexpr (std::is_same_v<Policy, static_policy>) {
    auto const parameters = prepare_static(policy, row, shared);
    if (threadIdx.x == 0) { to = parameters; }
  } else if constexpr (std::is_same_v<Policy, any_policy>) {
    if (policy.kind == policy_kind::static_budget) {
      block_prepare(policy.static_budget, row, shared, to);
    } else if (threadIdx.x == 0) {
      to = policy.prepare(row);
    }
  } else {
    if (threadIdx.x == 0) { to = policy.prepare(row); }
  }
}

}  // namespace diffkv::detail
