// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompts into pages on the device: plan, coordinate, encode and store, give back.
//! Read before this: compaction/prompt_plan.cuh.  Read next: compaction/scan_candidates.cuh.
//!
//! Launches: [prepare] [count] list, then one that stores. In the last one a CTA per (prompt, layer)
//! puts pages in place and gives the surplus back, and a warp per 16 tokens of one row and tier encodes.
//! Both read the pages of a row from the plan's copy, so neither waits for the other.
#include <diffkv/compaction/encode_block.cuh>
#include <diffkv/compaction/prompt_plan.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/page/page_view.hpp>
#include <diffkv/pool/held_pages.cuh>
#include <diffkv/table/static_config.hpp>

#include <limits>

namespace diffkv {

//! Measured on an H200: 32 warps an SM for plain 16-bit vectors, 24 where they are rotated.
template <class T, int HeadDim, conditioning Conditioned>
struct encode_tuning_sm90 {
  static constexpr unsigned warps  = 4;  //!< of a CTA
  static constexpr unsigned blocks = warps / 2;
  static constexpr bool is_small   = sizeof(T) == 2 && HeadDim <= 128;
  static constexpr unsigned ctas   = !is_small ? 1 : Conditioned == conditioning::none ? 8 : 6;
};

namespace detail {

template <class T>
struct store_params {
  cache_ref cache;
  batch_ref batch;
  layer_range layers;
  prompt_source<T> source;
  std::uint32_t items;     //!< (prompt, layer), each with a CTA for its pages
  std::uint32_t row_ctas;  //!< CTAs that encode a row
  std::uint32_t max_pages;
  bool whole;  //!< vectors may be read 16 bytes at a time
  std::uint64_t const* tail;
  prompt_row const* rows;
  std::uint32_t const* surplus;
  page_id const* pages;
  std::int32_t const* lists;
};

//! Sum of values[0 .. count).  @threads one CTA; result valid in all threads
template <unsigned Threads>
[[nodiscard]] __device__ std::uint64_t block_sum(std::uint32_t const* values, std::uint32_t count)
{
  __shared__ std::uint64_t of_warp[Threads / 32];
  std::uint64_t sum = 0;
  for (std::uint32_t i = threadIdx.x; i < count; i += Threads) { sum += values[i]; }
  for (int o = 16; o > 0; o /= 2) { sum += __shfl_xor_sync(0xFFFF'FFFFu, sum, o); }
  if (threadIdx.x % 32 == 0) { of_warp[threadIdx.x / 32] = sum; }
  __syncthreads();
  sum = 0;
  for (unsigned w = 0; w < Threads / 32; ++w) { sum += of_warp[w]; }
  return sum;
}

//! Pages of the rows of one (prompt, layer): high stay at the left end, low go to the right end, the
//! rest goes back to the ring behind that of all rows before.  @threads one CTA
template <unsigned Threads, class T>
__device__ void place_pages(store_params<T> const& p, std::uint32_t item)
{
  cache_ref const& cache    = p.cache;
  std::uint32_t const first = item * cache.shape.num_heads;
  std::uint64_t place       = *p.tail + block_sum<Threads>(p.surplus, first);
  for (std::uint32_t h = 0; h < cache.shape.num_heads; ++h) {
    prompt_row const plan = p.rows[first + h];
    if (plan.num_tokens == 0) { continue; }
    std::size_t const row         = row_place::of(cache, p.batch, p.layers, first + h).row;
    page_id const* const pages    = p.pages + std::size_t{first + h} * p.max_pages;
    std::uint32_t const first_low = cache.table.row_entries - plan.pages.low;
    for (std::uint32_t i = threadIdx.x; i < plan.pages.low; i += Threads) {
      cache.table.entry(row, tier::low, i) = pages[plan.pages.high + i];
    }
    for (std::uint32_t i = plan.pages.high + threadIdx.x; i < plan.claimed; i += Threads) {
      if (i < first_low) { cache.table.entry(row, tier::high, i) = no_page; }
      if (i < plan.pages.sum()) { continue; }
      static_cast<void>(strike_off(cache.ring, pages[i]));
      cache.ring.cell(place + i - plan.pages.sum()) = pages[i];
    }
    if (threadIdx.x == 0) {
      cache.state.rows[row].tokens = plan.tokens;
      cache.state.rows[row].pages  = plan.pages;
    }
    place += plan.claimed - plan.pages.sum();
  }
  if (item == p.items - 1 && threadIdx.x == 0) { *cache.ring.tail = place; }
}

//! 16 tokens (or the last few) of one tier of one row, and which side of them a warp encodes.
struct token_block {
  prompt_row plan{};
  std::uint32_t r              = 0;
  std::uint32_t sequence       = 0;
  std::uint32_t layer_in_range = 0;
  std::uint32_t head           = 0;
  std::uint32_t index          = 0;  //!< block of the tier
  int count                    = 0;  //!< tokens that there are
  std::int32_t token = 0;  //!< of lane l: the (l mod 16)-th; absent ones stand for the last
};

//! What a warp needs of shared memory: codes on their way to another lane, or vectors that are
//! conditioned by a whole warp.
template <class Layout, conditioning Conditioned>
inline constexpr int shared_bytes_per_warp =
  is_staged<Layout::head_dim, Conditioned>
    ? block_tokens* Layout::head_dim* static_cast<int>(sizeof(float))
    : max_of(block_rows<Layout, true>::shared_bytes, block_rows<Layout, false>::shared_bytes);

//! Encodes one side of a block and stores it.
//! @param shared  of this warp alone
//! @threads one warp
template <class Layout, bool IsKey, conditioning Conditioned, class T>
__device__ __forceinline__ void store_side(store_params<T> const& p, token_block const& block,
                                           std::byte* page, int block_in_page, float const* offset,
                                           float clip, std::byte* shared, int lane)
{
  vectors<T const> const& side = IsKey ? p.source.key : p.source.value;
  std::int64_t const first =
    p.source.first_tokens == nullptr ? 0 : p.source.first_tokens[block.sequence];
  T const* const begin =
    side.at(first, block.head) +
    block.layer_in_range * (IsKey ? p.source.key_layer_stride : p.source.value_layer_stride);
  auto const vector_at = [&, stride = side.token_stride](int i) {
    return begin + __shfl_sync(0xFFFF'FFFFu, block.token, i) * stride;
  };
  if constexpr (is_staged<Layout::head_dim, Conditioned>) {
    block_image<Layout, IsKey> image;
    auto* const staged = reinterpret_cast<float*>(shared);
    stage_block<Layout::head_dim, Conditioned, T>(staged, vector_at, offset, lane);
    encode_staged(
      image, [=](int i) { return static_cast<float const*>(staged) + i * Layout::head_dim; }, clip,
      lane);
    image.store(page, block_in_page, block.count, lane);
  } else if constexpr (block_rows<Layout, IsKey>::is_possible) {
    block_rows<Layout, IsKey> rows{shared};
    encode_rows<block_rows<Layout, IsKey>, Conditioned, T>(rows, vector_at, p.whole, offset, clip,
                                                           lane);
    rows.store(page, block_in_page, block.count, lane);
  } else {
    block_image<Layout, IsKey> image;
    encode_image<block_image<Layout, IsKey>, Conditioned, T>(image, vector_at, p.whole, offset,
                                                             clip, lane);
    image.store(page, block_in_page, block.count, lane);
  }
}

//! @threads one warp
template <class Config, tier Tier, class T>
__device__ __forceinline__ void store_block(store_params<T> const& p, token_block const& block,
                                            bool is_key, std::byte* shared, int lane)
{
  using layout       = typename Config::layouts::template of<Tier>;
  constexpr auto set = Config::conditioned;
  constexpr auto blocks_per_page =
    static_cast<std::uint32_t>(layout::tokens_per_page / block_tokens);
  cache_ref const& cache = p.cache;
  std::uint32_t const ordinal =
    block.index / blocks_per_page + (Tier == tier::low ? block.plan.pages.high : 0u);
  page_id const id = p.pages[std::size_t{block.r} * p.max_pages + ordinal];
  std::byte* const page =
    cache.pool.base + std::size_t{layout::page_bytes} * static_cast<std::uint32_t>(id);
  auto const block_in_page  = static_cast<int>(block.index % blocks_per_page);
  std::uint32_t const layer = p.layers.first + block.layer_in_range;
  format_spec const& format = cache.tiers.of(Tier).format;

  constexpr page_geometry geometry = layout::geometry;
  page_view const view{page, &geometry};
  int const in_page = block_in_page * block_tokens + lane;
  if (!is_key) {
    store_side<layout, false, rotation_of(set)>(p, block, page, block_in_page, nullptr,
                                                format.value.clip, shared, lane);
    if (lane < block.count) { view.set_position(in_page, block.token); }
    return;
  }
  float importance = 0.0f;
  query_span queries{};
  if (lane < block.count) {  // asked before the long work
    std::int64_t const first =
      p.source.first_tokens == nullptr ? 0 : p.source.first_tokens[block.sequence];
    importance =
      p.source.importances[block.layer_in_range * p.source.importance_layer_stride +
                           block.head * p.source.importance_head_stride + first + block.token];
    queries = cache.layer(p.batch.slots[block.sequence], layer).queries;
  }
  float const* offset = nullptr;
  if constexpr (has(set, conditioning::centred)) { offset = cache.key_offset(layer, block.head); }
  store_side<layout, true, set>(p, block, page, block_in_page, offset, format.key.clip, shared,
                                lane);
  if (lane < block.count) {
    std::int32_t const seen = queries.count(block.token + 1);
    // A NaN is stored as it is: the host's product keeps its bits, the device's would not.
    view.set_score(in_page, seen <= 0            ? 0.0f
                            : is_nan(importance) ? importance
                                                 : score_of(importance, seen));
  }
}

//! Last launch. Its first CTAs see to pages, the others encode, heads of a token beside each other.
//! Warps come in pairs, one for the keys of a block and one for its values.
template <class Config, class T>
DIFFKV_KERNEL void __launch_bounds__(
  encode_tuning_sm90<T, Config::layouts::head_dim, Config::conditioned>::warps * 32,
  encode_tuning_sm90<T, Config::layouts::head_dim, Config::conditioned>::ctas)
  prompt_store_kernel(__grid_constant__ store_params<T> const p)
{
  using layouts = typename Config::layouts;
  using tuning  = encode_tuning_sm90<T, layouts::head_dim, Config::conditioned>;
  constexpr int per_warp =
    max_of(shared_bytes_per_warp<typename layouts::high, Config::conditioned>,
           shared_bytes_per_warp<typename layouts::low, Config::conditioned>);
  alignas(16) __shared__ std::byte shared[tuning::warps * per_warp];
  if (blockIdx.x < p.items) {
    place_pages<tuning::warps * 32>(p, blockIdx.x);
    return;
  }
  std::uint32_t const heads = p.cache.shape.num_heads;
  std::uint32_t const cta   = blockIdx.x - p.items;
  std::uint32_t const item  = cta / (heads * p.row_ctas);
  std::uint32_t const warp  = threadIdx.x / 32;
  auto const lane           = static_cast<int>(threadIdx.x % 32);

  token_block block{};
  block.head                  = cta % heads;
  block.r                     = item * heads + block.head;
  block.plan                  = p.rows[block.r];
  std::uint32_t const index   = cta / heads % p.row_ctas * tuning::blocks + warp / 2;
  std::uint32_t const of_high = ceil_div(block.plan.tokens.high, std::uint32_t{block_tokens});
  bool const is_high          = index < of_high;
  std::uint32_t const tokens  = is_high ? block.plan.tokens.high : block.plan.tokens.low;
  block.index                 = is_high ? index : index - of_high;
  if (block.index * block_tokens >= tokens) { return; }
  block.sequence       = item / p.layers.count;
  block.layer_in_range = item % p.layers.count;
  block.count = static_cast<int>(min(tokens - block.index * block_tokens, unsigned{block_tokens}));
  std::int32_t const max_tokens = p.source.max_tokens;
  auto const in_list            = static_cast<std::int32_t>(block.index) * block_tokens +
                       min(lane % block_tokens, block.count - 1);
  block.token           = p.lists[std::size_t{block.r} * static_cast<unsigned>(max_tokens) +
                        static_cast<unsigned>(is_high ? in_list : max_tokens - 1 - in_list)];
  std::byte* const mine = shared + warp * per_warp;
  if (is_high) {
    store_block<Config, tier::high>(p, block, warp % 2 == 0, mine, lane);
  } else if constexpr (layouts::has_low) {
    store_block<Config, tier::low>(p, block, warp % 2 == 0, mine, lane);
  }
}

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
  using tuning      = encode_tuning_sm90<T, Config::layouts::head_dim, Config::conditioned>;
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
  std::uint64_t const row_ctas = detail::ceil_div(blocks, std::uint64_t{tuning::blocks});
  unsigned const plan_grid     = detail::grid_of(rows * plan.chunks);
  unsigned const store_grid    = detail::grid_of(items + rows * row_ctas);
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
  detail::store_params<T> const store{cache,
                                      batch,
                                      layers,
                                      source,
                                      static_cast<std::uint32_t>(items),
                                      static_cast<std::uint32_t>(row_ctas),
                                      plan.max_pages,
                                      whole,
                                      plan.tail,
                                      plan.rows,
                                      plan.surplus,
                                      plan.pages,
                                      plan.lists};
  detail::launch(detail::prompt_store_kernel<Config, T>, {store_grid, tuning::warps * 32}, stream,
                 store);
}

}  // namespace diffkv
