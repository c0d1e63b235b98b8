// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompts into pages on the device: plan, coordinate, encode and store, give back.
//! Read before this: compaction/prompt_store.cuh.  Read next: compaction/scan_candidates.cuh.
//!
//! Launches: [prepare] [count] list, then one that stores.
#include <diffkv/compaction/prompt_store.cuh>
#include <diffkv/core/launch.cuh>

#include <limits>

namespace diffkv {

namespace detail {

//! Cuts arrays out of one piece of memory.
class workspace_carver {
 public:
  explicit workspace_carver(void* begin) : begin_{static_cast<std::byte*>(begin)} {}

  template <class T>
  [[nodiscard]] T* take(std::size_t count)
  {
    std::size_t const at = round_up(used_, alignment);
    used_                = at + count * sizeof(T);
    return begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + at);
  }
  [[nodiscard]] std::size_t used() const noexcept { return round_up(used_, alignment); }

 private:
  static constexpr std::size_t alignment = 256;
  std::byte* begin_;
  std::size_t used_ = 0;
};

//! Puts the workspace's arrays into `p`.  @return bytes
template <class Policy>
std::size_t place_plan(plan_params<Policy>& p, void* workspace)
{
  std::size_t const rows = std::size_t{p.batch.capacity} * p.layers.count * p.cache.shape.num_heads;
  workspace_carver from{workspace};
  p.tail       = from.take<std::uint64_t>(1);
  p.rows       = from.take<prompt_row>(rows);
  p.surplus    = from.take<std::uint32_t>(rows);
  p.counts     = from.take<tier_counts>(rows * p.chunks);
  p.pages      = from.take<page_id>(rows * p.max_pages);
  p.lists      = from.take<std::int32_t>(rows * static_cast<std::size_t>(p.max_tokens));
  p.parameters = from.take<typename Policy::row_parameters>(rows);
  return from.used();
}

template <class Policy>
[[nodiscard]] plan_params<Policy> make_plan(cache_ref const& cache, batch_ref const& batch,
                                            layer_range layers, std::int32_t max_tokens,
                                            Policy const& policy)
{
  DIFFKV_EXPECTS(max_tokens > 0 && max_tokens <= cache.shape.max_tokens,
                 "max_tokens: " + std::to_string(max_tokens) + " is not within 1 .. " +
                   std::to_string(cache.shape.max_tokens));
  validate(layers, cache.shape);
  plan_params<Policy> p{cache, batch, layers, policy};
  p.max_tokens = max_tokens;
  p.max_pages  = cache.tiers.most_pages(static_cast<std::uint32_t>(max_tokens));
  p.chunks     = static_cast<std::uint32_t>(ceil_div(max_tokens, plan_tuning_sm90::chunk));
  return p;
}

[[nodiscard]] inline unsigned grid_of(std::uint64_t ctas)
{
  DIFFKV_EXPECTS(ctas <= static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max()),
                 "batch: too many rows and tokens for one launch, store fewer prompts or layers");
  return static_cast<unsigned>(ctas);
}

//! Whether every vector starts at a multiple of 16 bytes.
template <class T>
[[nodiscard]] bool is_whole(vectors<T const> const& side, std::ptrdiff_t layer_stride) noexcept
{
  constexpr auto unit = static_cast<std::ptrdiff_t>(16 / sizeof(T));
  return reinterpret_cast<std::uintptr_t>(side.data) % 16 == 0 && side.token_stride % unit == 0 &&
         side.head_stride % unit == 0 && layer_stride % unit == 0;
}

}  // namespace detail

//! Bytes that store_prompt needs for batches of up to `capacity` prompts of up to `max_tokens` tokens.
template <class Policy>
[[nodiscard]] std::size_t store_prompt_workspace_bytes(cache_ref const& cache,
                                                       std::uint32_t capacity, layer_range layers,
                                                       std::int32_t max_tokens,
                                                       Policy const& policy)
{
  auto plan = detail::make_plan(cache, {nullptr, nullptr, capacity}, layers, max_tokens, policy);
  return detail::place_plan(plan, nullptr);
}

//! Stores some layers of admitted prompts, as host::store_prompt does: plans each row, puts its pages
//! in place (high from the left, low from the right end), encodes and stores its tokens, oldest first,
//! and gives the surplus pages back. All prompt lengths, rows and layers take one path.
//! Rows that have no prompt waiting to be stored, or a longer one than source.max_tokens, stay as they
//! are. What was not stored of a page stays as it was.
//! @tparam Config    static_config (table/static_config.hpp)
//! @param  cache     handles in device memory
//! @param  batch     the prompts' slots, all different
//! @param  source    see prompt_source; vectors may be aligned to an element only, but those whose
//!                   address and strides are multiples of 16 bytes are read faster
//! @param  layers    layers of the cache that `source` holds
//! @param  workspace store_prompt_workspace_bytes, aligned to 256 bytes; free when the work is done
//! @throws invalid_argument before any launch; cuda_error. What lies in device memory is not checked.
//! @stream ordered in `stream`, does not wait, may be captured in a graph; 2 to 4 kernels
//! @cost   O(rows * max_tokens * head_dim), no allocation
template <class Config, class T>
void store_prompt(cache_ref const& cache, batch_ref const& batch, prompt_source<T> const& source,
                  layer_range layers, typename Config::policy_type const& policy, void* workspace,
                  std::size_t workspace_bytes, cudaStream_t stream)
{
  using policy_type = typename Config::policy_type;
  using plan_tuning = detail::plan_tuning_sm90;
  using cta         = detail::encode_cta<Config, T>;
  using tuning      = encode_tuning_sm90;
  expect_config<Config>(cache);
  auto plan = detail::make_plan(cache, batch, layers, source.max_tokens, policy);
  DIFFKV_EXPECTS(source.first_tokens != nullptr || batch.capacity <= 1,
                 "first_tokens: a batch of " + std::to_string(batch.capacity) +
                   " prompts needs the first token of each");
  std::size_t const needed = detail::place_plan(plan, workspace);
  DIFFKV_EXPECTS(workspace_bytes >= needed, "workspace: " + std::to_string(workspace_bytes) +
                                              " bytes, but " + std::to_string(needed) +
                                              " are needed");
  plan.importances             = source.importances;
  plan.importance_layer_stride = source.importance_layer_stride;
  plan.importance_head_stride  = source.importance_head_stride;
  plan.first_tokens            = source.first_tokens;

  std::uint64_t const items = std::uint64_t{batch.capacity} * layers.count;
  std::uint64_t const rows  = items * cache.shape.num_heads;
  if (rows == 0) { return; }
  // Both tiers may end in a block that is not full.
  std::uint64_t const blocks =
    detail::ceil_div(static_cast<std::uint64_t>(source.max_tokens), std::uint64_t{block_tokens}) +
    (Config::layouts::has_low ? 1 : 0);
  // Warps encode one block after the other as soon as there are enough for the whole GPU.
  std::uint64_t const steps = detail::min_of<std::uint64_t>(
    detail::max_of<std::uint64_t>(rows * blocks / (cta::pairs * tuning::full_grid), 1),
    tuning::most_steps);
  std::uint64_t const row_ctas = detail::ceil_div(blocks, steps * cta::pairs);
  unsigned const plan_grid     = detail::grid_of(rows * plan.chunks);
  auto const page_ctas         = detail::page_ctas::of(rows, cache.shape.num_heads, plan.max_pages);
  unsigned const store_grid    = detail::grid_of(items * page_ctas.count() + rows * row_ctas);
  unsigned const row_grid      = detail::grid_of(rows);

  if constexpr (!detail::prepares_nothing<policy_type>) {
    detail::launch(detail::prompt_prepare_kernel<policy_type>, {row_grid, detail::prepare_threads},
                   stream, plan);
  }
  if (plan.chunks > 1) {
    detail::launch(detail::prompt_count_kernel<policy_type>, {plan_grid, plan_tuning::threads},
                   stream, plan);
  }
  detail::launch(detail::prompt_list_kernel<policy_type>, {plan_grid, plan_tuning::threads}, stream,
                 plan);
  bool const whole = detail::is_whole(source.key, source.key_layer_stride) &&
                     detail::is_whole(source.value, source.value_layer_stride);
  detail::planned_prompts const planned{
    cache,     batch,          layers,          static_cast<std::uint32_t>(items),
    page_ctas, plan.max_pages, plan.max_tokens, plan.tail,
    plan.rows, plan.surplus,   plan.pages,      plan.lists};
  detail::store_params<T> const store{planned, source, static_cast<std::uint32_t>(row_ctas),
                                      static_cast<std::uint32_t>(steps), whole};
  detail::launch(detail::prompt_store_kernel<Config, T>, {store_grid, cta::warps * 32}, stream,
                 store);
}

}  // namespace diffkv
