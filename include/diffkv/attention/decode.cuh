// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention over the mixed pages of all rows of a layer, one launch.
//! Read before this: attention/decode_warp.cuh.  Read next: prefill/prefill_batch.hpp.
//!
//! Every warp reads its share of the pages of the layer, tile by tile through slots of shared memory
//! that it fills by itself, and keeps the sums of the row at hand in registers. A row that lies in one
//! warp is written at once. Else its parts are merged in the order of the pages: those of a CTA by all of
//! its warps when they are done, those of several CTAs by the CTA that comes last.
#include <diffkv/attention/decode_plan.cuh>
#include <diffkv/attention/decode_warp.cuh>
#include <diffkv/core/launch.cuh>

namespace diffkv {
namespace detail {

template <class Traits, class T, class Out>
DIFFKV_KERNEL void __launch_bounds__(Traits::warps * 32, 1)
  decode_attention_kernel(__grid_constant__ decode_params<Traits, T, Out> const p)
{
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ decode_cta<Traits> cta;
  std::uint32_t const warp  = kept(threadIdx.x / 32);
  std::uint32_t const warps = blockDim.x / 32;
  // Nothing starts before the plan's kernel has ended (wait_for_previous_alone), so the plan, and
  // what is written before it, the page table and most pages, may be read before the kernel in
  // front has ended; queries, and pages where `append` writes, may not.
  warp_range const range     = load_uncached(p.ranges[blockIdx.x * warps + warp]);
  planned_layer const totals = load_uncached(*p.totals);
  decode_place<Traits> const place{&cta, shared, warp, warps};
  decode_warp<Traits, T, Out> self{p, place, fragment_lane::of_thread()};
  if (self.at.lane < 2) { cta.parts[2 * warp + self.at.lane].index = row_part::none; }
  __syncwarp();
  if (range.num_pages > 0) {
    self.read_pages(range, totals);
  } else {
    wait_for_previous();
  }
  if (totals.empty_rows > 0) { self.store_empty_rows(totals.num_rows); }
  row_merge<Traits, T, Out>{p, place, self.at.lane}.run(totals);
}

//! Whether vectors of `v`, and every n-th element of them, are aligned to n elements.
template <class T>
[[nodiscard]] bool has_whole_units(vectors<T> const& v, std::size_t n) noexcept
{
  auto const stride = static_cast<std::ptrdiff_t>(n);
  return reinterpret_cast<std::uintptr_t>(v.data) % (n * sizeof(T)) == 0 &&
         v.token_stride % stride == 0 && v.head_stride % stride == 0;
}

//! Static shared memory of a CTA; what the system reserves is not in the device's limit.
template <class Traits>
inline constexpr std::uint32_t static_bytes =
  round_up(static_cast<std::uint32_t>(sizeof(decode_cta<Traits>)), 128u);

//! @throws invalid_argument naming what does not fit
template <class Traits>
void expect_decodable(cache_ref const& cache, std::uint32_t layer, attention_options const& options,
                      decode_workspace_ref const& work)
{
  using variant            = typename Traits::variant;
  cache_shape const& shape = cache.shape;
  DIFFKV_EXPECTS(layer < shape.num_layers, "layer: " + std::to_string(layer) + " is not below " +
                                             std::to_string(shape.num_layers));
  DIFFKV_EXPECTS(layer >= work.layers.first && layer - work.layers.first < work.layers.count,
                 "layer: " + std::to_string(layer) + " is not among the workspace's " +
                   std::to_string(work.layers.count) + " from " +
                   std::to_string(work.layers.first) + " on");
  DIFFKV_EXPECTS(shape.group_size == static_cast<std::uint32_t>(Traits::group_size),
                 "cache: group_size " + std::to_string(shape.group_size) +
                   " differs from the variant's " + std::to_string(Traits::group_size));
  DIFFKV_EXPECTS(Traits::score_every == 0 || shape.score_every == Traits::score_every,
                 "cache: score_every " + std::to_string(shape.score_every) +
                   " differs from the variant's " + std::to_string(Traits::score_every));
  DIFFKV_EXPECTS(Traits::score_every == 0 || cache.queries.places == shape.ring_queries(),
                 "cache: the lag ring has " + std::to_string(cache.queries.places) +
                   " places, not score_every + 1");
  DIFFKV_EXPECTS(
    Traits::score_every == 0 ||
      (cache.queries.rounding == lag_rounding::int8) == Traits::codes_in_ring,
    std::string{"cache: its lag ring must hold "} +
      (Traits::codes_in_ring ? "8-bit codes" : "f32 (cache_options::exact_lagged_queries)") +
      " for this variant");
  DIFFKV_EXPECTS(
    variant::soft_cap == (options.soft_cap > 0.0f),
    "options: soft_cap must be greater than 0 with a variant that has one, and 0 else");
  DIFFKV_EXPECTS(variant::sliding_window || options.sliding_window <= 0,
                 "options: sliding_window must be 0 with a variant that has none");
  DIFFKV_EXPECTS(!Traits::has_scores || options.exact_lagged_queries == variant::exact_lag,
                 std::string{"options: exact_lagged_queries must be "} +
                   (variant::exact_lag ? "true" : "false") + ", as the variant's");
  DIFFKV_EXPECTS(
    work.grid.warps >= 1 && work.grid.warps <= static_cast<std::uint32_t>(Traits::warps),
    "workspace: its grid has " + std::to_string(work.grid.warps) + " warps a CTA, not 1 .. " +
      std::to_string(Traits::warps));
  DIFFKV_EXPECTS(work.grid.passes == static_cast<std::uint32_t>(Traits::passes),
                 "workspace: its grid has " + std::to_string(work.grid.passes) +
                   " passes, the variant " + std::to_string(Traits::passes));
  DIFFKV_EXPECTS(work.totals != nullptr &&
                   work.partial_floats == static_cast<std::uint32_t>(Traits::part_floats) &&
                   work.grid.num_warps() <= most_warps &&
                   work.num_rows == work.capacity * shape.num_heads * work.grid.passes,
                 "workspace: it was not made for this cache and variant");
}

}  // namespace detail

//! The grid that fills the current device: one CTA a multiprocessor, as many warps as its shared memory
//! has room for. On the host; make the device of the stream current.
//! @throws cuda_error; invalid_argument if not even one warp fits
//! @stream touches none
//! @cost   a few questions to the runtime
template <class Config, class Variant>
[[nodiscard]] decode_grid default_decode_grid()
{
  using traits = detail::decode_traits<Config, Variant>;
  int device   = 0;
  int ctas     = 0;
  int bytes    = 0;
  DIFFKV_CUDA_TRY(cudaGetDevice(&device));
  DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device));
  DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  auto const free = static_cast<std::uint32_t>(bytes) - detail::static_bytes<traits>;
  std::uint32_t const warps =
    detail::min_of(static_cast<std::uint32_t>(traits::warps), free / traits::warp_bytes);
  DIFFKV_EXPECTS(warps > 0, "device: a warp of decode attention needs " +
                              std::to_string(traits::warp_bytes) + " bytes of shared memory");
  return {static_cast<std::uint32_t>(ctas), warps, static_cast<std::uint32_t>(traits::passes)};
}

//! Bytes of the plan of a step and of the scratch of its launches.
//! @param capacity  sequences of a batch, at most
//! @param layers    that are planned together
//! @param grid      default_decode_grid(), or one of fewer CTAs or warps
//! @throws as decode_workspace_bytes without template parameters
template <class Config, class Variant>
[[nodiscard]] std::size_t decode_workspace_bytes(cache_shape const& shape, std::uint32_t capacity,
                                                 layer_range layers, decode_grid grid)
{
  using traits = detail::decode_traits<Config, Variant>;
  return decode_workspace_bytes(shape, capacity, layers, grid,
                                static_cast<std::uint32_t>(traits::part_floats));
}

//! Lays out `memory`; nothing is written.
//! @throws as make_decode_workspace without template parameters
template <class Config, class Variant>
[[nodiscard]] decode_workspace_ref make_decode_workspace(void* memory, std::size_t bytes,
                                                         cache_shape const& shape,
                                                         std::uint32_t capacity, layer_range layers,
                                                         decode_grid grid)
{
  using traits = detail::decode_traits<Config, Variant>;
  return make_decode_workspace(memory, bytes, shape, capacity, layers, grid,
                               static_cast<std::uint32_t>(traits::part_floats));
}

//! Decode attention of one layer for the batch that `plan_decode` saw, as host::decode_attention; with
//! Variant::score_every = k > 0 also the score path: the conditioned query and its log-sum-exp go into
//! the lag ring, and rows that catch up get the scores of the due queries and new candidates.
//! @tparam Config    static_config of the cache; its policy orders the candidates
//! @tparam Variant   decode_variant; its group_size is the cache's, its score_every 0 or the cache's
//! @tparam T, Out    elements of query and out: float, __half, __nv_bfloat16
//! @param cache      handles in device memory
//! @param layer      of those planned
//! @param policy     as `step` was given it; what it points at lies in device memory
//! @param options    `splits` is not read, the plan splits; `exact_lagged_queries` must be the variant's,
//!                   and the cache's where all its keys are codes
//! @param work       the plan of this step; one launch at a time
//! @param query      [batch, num_q_heads, head_dim], rotary embedding applied, not conditioned; device
//!                   memory, read faster where address and strides are multiples of 16 bytes
//! @param out        [batch, num_q_heads, head_dim], device memory; 0 for a row without tokens
//! @param lse        [batch, num_q_heads] f32 natural logarithm, device memory, or null; -inf for a row
//!                   without tokens
//! @pre    `append` of this layer stored the token of each sequence; sequences that `step` refused give
//!         attention over what they have and record nothing
//! @pre    where scores are kept, at most one launch per layer and plan: a second one adds them again
//! @pre    since the plan was made nobody but `append` and this operation has written to pages of the batch,
//!         and nobody to key offsets: they may be read before the kernel in front has ended, all but the
//!         pages that the step's tokens go to
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   reads each page once per 16 q_heads (8 at head_dim 256) of a head; no allocation
//! @error  per element within docs/numerics.md; the same bits from run to run and for any placement of
//!         pages, with the same plan
template <class Config, class Variant, class T, class Out>
void decode_attention(cache_ref const& cache, std::uint32_t layer,
                      typename Config::policy_type const& policy, attention_options const& options,
                      decode_workspace_ref const& work, vectors<T> query, vectors<Out> out,
                      float* lse, cudaStream_t stream)
{
  using traits = detail::decode_traits<Config, Variant>;
  expect_config<Config>(cache);
  detail::expect_decodable<traits>(cache, layer, options, work);
  if (work.capacity == 0) { return; }
  std::size_t const l = work.index_of(layer);
  detail::decode_params<traits, T, Out> const params{
    work.ranges + l * work.grid.num_warps(),
    work.totals + l,
    work.rows + l * work.num_rows,
    work.sequences + l * work.capacity,
    cache.pool.base,
    cache.table,
    query,
    cache.key_offset(layer, 0),
    options,
    work.grid.num_warps(),
    layer,
    detail::divider::by(cache.shape.num_heads),
    detail::has_whole_units(query, 16 / sizeof(T)),
    detail::has_whole_units(out, 4),
    reinterpret_cast<std::uintptr_t>(cache.key_offset(layer, 0)) % 16 == 0,
    out,
    lse,
    work.partials,
    work.arrivals,
    {traits::high_tile::cut, traits::low_tile::cut},
    policy,
    cache};
  auto* const kernel         = detail::decode_attention_kernel<traits, T, Out>;
  std::uint32_t const shared = traits::shared_bytes(work.grid.warps);
  device_guard const guard{stream};
  detail::launch_shape const shape{work.grid.ctas, work.grid.warps * 32, shared, true};
  detail::allow_shared_memory(kernel, shape, stream);
  detail::launch(kernel, shape, stream, params);
}

}  // namespace diffkv
