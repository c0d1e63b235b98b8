// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Launches the kernels of prompt attention: those for Hopper where the program has them and they
//! can do what is asked, else those for all GPUs.
//! Read before this: prefill/importance_hopper.cuh.  Read next: prefill/prefill.cuh.
#include <diffkv/prefill/importance_hopper.cuh>
#include <diffkv/prefill/prefill_hopper.cuh>
#include <diffkv/prefill/prefill_importance.cuh>
#include <diffkv/prefill/prefill_kernel.cuh>

#include <type_traits>  // is_same_v

namespace diffkv::detail {

//! `any_gpu` is for tests, which compare both on one GPU.
enum class prefill_path { fastest, any_gpu };

//! Whether the program's code of a Hopper kernel for the current device is more than an empty body.
//! @throws cuda_error if that cannot be found out: bits must not depend on a failure that passes
template <class Kernel>
[[nodiscard]] bool has_hopper_body(Kernel kernel)
{
  cudaFuncAttributes attributes{};
  cudaError_t const status = cudaFuncGetAttributes(&attributes, kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    static_cast<void>(cudaGetLastError());  // no code at all: whoever launches another will see
    return false;
  }
  DIFFKV_CUDA_TRY(status);
  return attributes.sharedSizeBytes > 0;
}

[[nodiscard]] inline std::uint32_t multiprocessors()
{
  int device = 0, count = 0;
  DIFFKV_CUDA_TRY(cudaGetDevice(&device));
  DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return static_cast<std::uint32_t>(count);
}

template <class Kernel, class Params>
void launch_prefill(Kernel kernel, launch_shape const& shape, launch_site site,
                    Params const& params)
{
  device_guard const guard{site.stream};
  allow_shared_memory(kernel, shape, site);
  launch(kernel, shape, site, params);
}

//! What the Hopper kernels leave to the others: windows and soft-caps, and scales that turn the
//! order of logits around.
[[nodiscard]] inline bool is_for_hopper(prefill_logits const& logits) noexcept
{
  return logits.window == 0 && logits.cap == 0.0f && logits.scale > 0.0f;
}

//! @return whether it was launched
template <int HeadDim, class T, class Out>
bool attend_on_hopper(prefill_params<T, Out> const& call, launch_site site)
{
  if constexpr ((HeadDim == 64 || HeadDim == 128) && std::is_same_v<T, Out>) {
    using tuning = prefill_tuning_sm90<T, HeadDim>;
    device_guard const guard{site.stream};
    auto const kernel             = prefill_hopper_kernel<T, HeadDim>;
    prefill_batch const& batch    = call.batch;
    std::uint32_t const num_heads = call.num_q_heads / call.group_size;
    prefill_hopper_params<T> params{call};
    if (!is_for_hopper(call.logits) || !has_hopper_body(kernel) ||
        !token_map::make<HeadDim>(params.query, call.query, batch.num_queries, call.num_q_heads,
                                  tuning::queries, 1) ||
        !token_map::make<HeadDim>(params.key, call.key, batch.key_tokens(), num_heads, tuning::keys,
                                  1) ||
        !token_map::make<HeadDim>(params.value, call.value, batch.key_tokens(), num_heads,
                                  tuning::keys, 1)) {
      return false;
    }
    params.cut        = {num_heads, call.group_size, tuning::queries, 2 * HeadDim * sizeof(T)};
    params.workers    = multiprocessors();
    params.max_rounds = max_rounds_for(batch);
    std::uint64_t const items =
      prefill_grid(batch.num_queries, batch.capacity, tuning::queries, call.num_q_heads);
    launch_prefill(kernel,
                   {turns_grid(items, params.workers, params.max_rounds), tuning::threads,
                    tuning::shared_bytes, true},
                   site, params);
    return true;
  } else {
    return false;
  }
}

template <int HeadDim, class T, class Out>
void attend(prefill_path path, prefill_params<T, Out> const& call, launch_site site)
{
  if (path == prefill_path::fastest && attend_on_hopper<HeadDim>(call, site)) { return; }
  using tuning = prefill_tuning_sm80<T, HeadDim>;
  unsigned const grid =
    prefill_grid(call.batch.num_queries, call.batch.capacity, tuning::queries, call.num_q_heads);
  launch_prefill(prefill_attention_kernel<T, Out, HeadDim>,
                 {grid, tuning::threads, tuning::shared_bytes, true}, site, call);
}

//! @return whether it was launched
template <int HeadDim, int Queries, class T>
bool weigh_tokens_on_hopper(importance_params<T> const& call, std::uint32_t heads_per_unit,
                            launch_site site)
{
  using tuning = importance_tuning_sm90<T, HeadDim, Queries>;
  device_guard const guard{site.stream};
  auto const kernel             = importance_hopper_kernel<T, HeadDim, Queries>;
  prefill_batch const& batch    = call.batch;
  std::uint32_t const num_heads = call.num_q_heads / call.group_size;
  auto const step =
    static_cast<std::int32_t>(min_of(std::int64_t{call.counted.every}, batch.num_queries));
  importance_hopper_params<T> params{call};
  if (!is_for_hopper(call.logits) || !has_hopper_body(kernel) ||
      !token_map::make<HeadDim>(params.query, call.query, batch.num_queries, call.num_q_heads,
                                Queries, step) ||
      !token_map::make<HeadDim>(params.key, call.key, batch.key_tokens(), num_heads, tuning::keys,
                                1)) {
    return false;
  }
  params.heads_per_unit = heads_per_unit;
  params.workers        = multiprocessors();
  params.max_rounds     = max_rounds_for(batch);
  params.cut            = {num_heads, ceil_div(call.group_size, heads_per_unit), tuning::keys,
                           static_cast<std::uint32_t>(call.group_size * HeadDim * sizeof(T))};
  std::uint64_t const items =
    prefill_grid(batch.key_tokens(), batch.capacity, tuning::keys, params.cut.units());
  launch_prefill(kernel,
                 {turns_grid(items, params.workers, params.max_rounds), tuning::threads,
                  tuning::shared_bytes, true},
                 site, params);
  return true;
}

template <int HeadDim, class T>
bool weigh_tokens_on_hopper(importance_params<T> const& call, launch_site site)
{
  if constexpr (HeadDim == 64 || HeadDim == 128) {
    importance_queries const& counted = call.counted;
    if (counted.last == 0 && counted.every == 1) {
      return weigh_tokens_on_hopper<HeadDim, 128>(call, 1, site);
    }
    // Where an item has few queries, its keys are worth those of all q_heads.
    bool const has_few_queries = counted.last > 0 && counted.last / counted.every <= 128;
    return weigh_tokens_on_hopper<HeadDim, 64>(call, has_few_queries ? call.group_size : 1, site);
  } else {
    return false;
  }
}

template <int HeadDim, class T>
void weigh_tokens(prefill_path path, importance_params<T> const& call, launch_site site)
{
  if (path == prefill_path::fastest && weigh_tokens_on_hopper<HeadDim>(call, site)) { return; }
  using tuning = importance_tuning_sm80<T, HeadDim>;
  unsigned const grid =
    prefill_grid(call.batch.key_tokens(), call.batch.capacity, tuning::keys, call.num_q_heads);
  launch_prefill(add_importance_kernel<T, HeadDim>,
                 {grid, tuning::threads, tuning::shared_bytes, true}, site, call);
}

}  // namespace diffkv::detail
