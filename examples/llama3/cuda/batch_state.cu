// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/batch_state.hpp"
#include "llama3/cuda/launch.cuh"

namespace llama3 {
namespace {

constexpr int threads = 128;

[[nodiscard]] std::int64_t ctas_for(std::uint32_t count)
{
  return (std::int64_t{count} + threads - 1) / threads;
}

[[nodiscard]] __device__ std::uint32_t thread_number()
{
  return blockIdx.x * static_cast<unsigned>(threads) + threadIdx.x;
}

//! Where nothing was to choose: steps that were launched ahead look this token up.
[[nodiscard]] __device__ token_id id_or_0(token_id chosen) { return chosen < 0 ? 0 : chosen; }

__global__ void __launch_bounds__(threads)
  load_batch_kernel(diffkv::batch_ref batch, slot_states states, batch_rows rows)
{
  wait_for_previous();
  std::uint32_t const b = thread_number();
  if (b >= batch.capacity) { return; }
  bool const is_row           = b < batch.size();
  std::uint32_t const slot    = is_row ? batch.slots[b] : 0;
  std::int32_t const position = is_row ? states.positions[slot] : 0;
  rows.ids[b]                 = is_row ? states.tokens[slot] : 0;
  rows.positions[b]           = position;
  rows.next_positions[b]      = position + 1;
  rows.options[b]             = is_row ? states.options[slot] : sampling{};
}

__global__ void __launch_bounds__(threads)
  store_batch_kernel(diffkv::batch_ref batch, token_id const* chosen, diffkv::refusals_ref refusals,
                     std::uint64_t const* free_pages, slot_states states, step_reports reports)
{
  wait_for_previous();
  std::uint32_t const place = *reports.step % reports.depth;
  std::uint32_t const count = *refusals.count;
  for (std::uint32_t b = threadIdx.x; b < batch.size(); b += threads) {
    bool refused = false;
    for (std::uint32_t i = 0; i < count; ++i) { refused = refused || refusals.sequences[i] == b; }
    std::uint32_t const slot = batch.slots[b];
    if (!refused) {
      states.tokens[slot] = id_or_0(chosen[b]);
      ++states.positions[slot];
    }
    reports.tokens[std::size_t{place} * reports.capacity + b] =
      refused ? step_reports::refused : chosen[b];
  }
  __syncthreads();  // all have read the number
  if (threadIdx.x == 0) {
    reports.free_pages[place] = *free_pages;
    ++*reports.step;
  }
}

__global__ void __launch_bounds__(threads)
  begin_states_kernel(std::uint32_t const* slots, std::uint32_t count, token_id const* chosen,
                      std::int32_t const* positions, sampling const* options, slot_states states)
{
  wait_for_previous();
  std::uint32_t const i = thread_number();
  if (i >= count) { return; }
  std::uint32_t const slot = slots[i];
  states.tokens[slot]      = id_or_0(chosen[i]);
  states.positions[slot]   = positions[i];
  states.options[slot]     = options[i];
}

//! The token comes as a parameter: there is no host memory that would have to outlive the launch.
__global__ void __launch_bounds__(threads)
  set_token_kernel(std::uint32_t slot, token_id id, slot_states states)
{
  wait_for_previous();
  if (thread_number() == 0) { states.tokens[slot] = id; }
}

}  // namespace

void load_batch(diffkv::batch_ref const& batch, slot_states const& states, batch_rows const& rows,
                cudaStream_t stream)
{
  launch(load_batch_kernel, ctas_for(batch.capacity), threads, stream, batch, states, rows);
}

void store_batch(diffkv::batch_ref const& batch, token_id const* chosen,
                 diffkv::refusals_ref const& refusals, std::uint64_t const* free_pages,
                 slot_states const& states, step_reports const& reports, cudaStream_t stream)
{
  launch(store_batch_kernel, 1, threads, stream, batch, chosen, refusals, free_pages, states,
         reports);
}

void begin_states(std::uint32_t const* slots, int count, token_id const* chosen,
                  std::int32_t const* positions, sampling const* options, slot_states const& states,
                  cudaStream_t stream)
{
  auto const n = static_cast<std::uint32_t>(count);
  launch(begin_states_kernel, ctas_for(n), threads, stream, slots, n, chosen, positions, options,
         states);
}

void set_token(std::uint32_t slot, token_id id, slot_states const& states, cudaStream_t stream)
{
  launch(set_token_kernel, 1, threads, stream, slot, id, states);
}

}  // namespace llama3
