// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Caches on the device in the middle of a generation, filled by a kernel: rows of several pages in
//! both tiers, scores such that a chosen share of the rows demotes a token at each step.
#include "device_buffers.cuh"
#include "graph_time.hpp"

#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/policy/paper.hpp>

#include <cstring>
#include <memory>

#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace bench {

using namespace diffkv;

struct step_shape {
  std::uint32_t batch      = 1;
  std::uint32_t num_layers = 32;
  std::uint32_t num_heads  = 8;
  std::uint32_t group_size = 4;
  std::int32_t score_every = 4;
};

inline constexpr std::int32_t tokens_seen      = 1000;  //!< N of every sequence at first
inline constexpr std::int32_t queries_in_score = 64;    //!< so many, for every token
inline constexpr std::uint32_t pages_per_row   = 8;  //!< in the pool: about five of them are held
inline constexpr float demoting_share          = 0.38f;

//! What a bench cache is made of; pages lie anywhere in the pool.
struct step_fill {
  cache_ref cache;

  [[nodiscard]] static DIFFKV_HOST_DEVICE std::uint32_t hash(std::uint32_t a,
                                                             std::uint32_t b) noexcept
  {
    std::uint32_t h = a * 2654435761u ^ b * 2246822519u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    h *= 3266489917u;
    return h ^ h >> 16;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE tier_counts tokens(std::uint32_t row) const noexcept
  {
    auto const window = static_cast<std::uint32_t>(cache.shape.window);
    return {window + 20 + hash(row, 1) % 70, 20 + hash(row, 2) % 90};
  }
  //! The i-th of all pages, in an order that scatters them.
  [[nodiscard]] DIFFKV_HOST_DEVICE page_id scattered(std::uint64_t i) const noexcept
  {
    constexpr std::uint64_t prime = 1'000'000'007u;  // shares no factor with a smaller number
    return page_id{static_cast<std::uint32_t>(i * prime % cache.pool.num_pages)};
  }
  //! Position of a token: the window's are the last ones, all others are older.
  [[nodiscard]] DIFFKV_HOST_DEVICE std::int32_t position(tier t, slot_index slot,
                                                         std::uint32_t high) const noexcept
  {
    std::uint32_t const first = high - static_cast<std::uint32_t>(cache.shape.window);
    if (t == tier::high && slot >= first) {
      return tokens_seen - cache.shape.window + static_cast<std::int32_t>(slot - first);
    }
    return static_cast<std::int32_t>(slot * 7 + (t == tier::high ? 0 : 3));
  }
  //! Importance in units of 1 / N: the leaving token goes low if it is below 1, nobody else moves.
  [[nodiscard]] DIFFKV_HOST_DEVICE float score(std::uint32_t row,
                                               std::int32_t position) const noexcept
  {
    bool const window = position >= tokens_seen - cache.shape.window;
    float const u =
      static_cast<float>(hash(row, static_cast<std::uint32_t>(position)) >> 8) * 0x1.0p-24f;
    float const in_units = window && u < demoting_share ? 0.5f : 2.0f;
    return in_units * static_cast<float>(queries_in_score) / static_cast<float>(tokens_seen);
  }
};

//! A CTA per row: pages, tables, states, candidates, scores, positions, and arbitrary codes.
static __global__ void fill_rows(step_fill const fill)
{
  cache_ref const& cache = fill.cache;
  auto const row         = blockIdx.x;
  row_view const view{&cache, row};
  tier_counts const tokens = fill.tokens(row);
  tier_counts const pages{cache.tiers.pages_for(tier::high, tokens.high),
                          cache.tiers.pages_for(tier::low, tokens.low)};
  std::uint64_t const first = std::uint64_t{row} * pages_per_row;
  for (std::uint32_t e = threadIdx.x; e < cache.table.row_entries; e += blockDim.x) {
    cache.table.entries[std::size_t{row} * cache.table.row_entries + e] = no_page;
  }
  __syncthreads();
  if (threadIdx.x < pages.high) {
    cache.table.entry(row, tier::high, threadIdx.x) = fill.scattered(first + threadIdx.x);
  }
  if (threadIdx.x < pages.low) {
    cache.table.entry(row, tier::low, threadIdx.x) =
      fill.scattered(first + pages.high + threadIdx.x);
  }
  if (threadIdx.x == 0) { cache.state.rows[row] = {tokens, pages, no_slot}; }
  __syncthreads();
  for (std::uint32_t p = 0; p < pages_per_row; ++p) {  // those in the ring as well
    auto* const words =
      reinterpret_cast<std::uint32_t*>(cache.pool.page(fill.scattered(first + p)));
    for (std::uint32_t i = threadIdx.x; i < cache.pool.page_bytes / 4; i += blockDim.x) {
      words[i] = step_fill::hash(i, row) & 0x3BFF'3BFFu;  // as f16: numbers from 0 to 1
    }
  }
  __syncthreads();
  for (tier t : {tier::high, tier::low}) {
    for (slot_index s = threadIdx.x; s < tokens.of(t); s += blockDim.x) {
      std::int32_t const position = fill.position(t, s, tokens.high);
      page_view const page        = view.page_of(t, s);
      page.set_score(view.token_in_page(t, s), fill.score(row, position));
      page.set_position(view.token_in_page(t, s), position);
      if (position >= tokens_seen - cache.shape.window) {
        cache.state.window_slot(row, position) = s;
      }
      std::uint32_t const ordinal = s / cache.tiers.tokens_per_page(t);
      if (ordinal < cache.state.candidates_per_tier && s % cache.tiers.tokens_per_page(t) == 3 &&
          position < tokens_seen - cache.shape.window) {
        cache.state.candidates_of(row, t)[ordinal] = {position, s, static_cast<float>(s)};
      }
    }
  }
  std::uint32_t const in_slot = row % cache.shape.rows_per_slot();
  if (threadIdx.x == 0 && in_slot % cache.shape.num_heads == 0) {
    constexpr std::int32_t far                                                      = 1 << 22;
    cache.layer(row / cache.shape.rows_per_slot(), in_slot / cache.shape.num_heads) = {
      tokens_seen, {far, queries_in_score, far}};
  }
  // What no row holds is free: the last pages of each row, in the order of the rows.
  std::uint32_t const held = pages.high + pages.low;
  for (std::uint32_t p = held + threadIdx.x; p < pages_per_row; p += blockDim.x) {
    auto const at      = atomicAdd(reinterpret_cast<unsigned long long*>(cache.ring.tail), 1ull);
    cache.ring.ids[at] = fill.scattered(first + p);
  }
}

//! A thread per row: where steps have put new tokens, the labels of those that were there before.
static __global__ void relabel_rows(step_fill const fill)
{
  cache_ref const& cache  = fill.cache;
  std::uint32_t const row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= cache.shape.num_rows()) { return; }
  row_view const view{&cache, row};
  tier_counts const tokens  = fill.tokens(row);
  std::uint32_t const layer = row % cache.shape.rows_per_slot() / cache.shape.num_heads;
  std::int32_t const end    = cache.layer(row / cache.shape.rows_per_slot(), layer).num_tokens;
  for (std::int32_t position = tokens_seen; position < end; ++position) {
    slot_index const s = cache.state.window_slot(row, position);
    if (s >= tokens.high) { continue; }
    std::int32_t const before = fill.position(tier::high, s, tokens.high);
    page_view const page      = view.page_of(tier::high, s);
    page.set_score(view.token_in_page(tier::high, s), fill.score(row, before));
    page.set_position(view.token_in_page(tier::high, s), before);
  }
}

//! Device memory that lives as long as the program's bench.
template <class T>
T* device_memory(std::vector<void*>& owned, std::size_t count)
{
  void* p = nullptr;
  DIFFKV_CUDA_TRY(cudaMalloc(&p, count * sizeof(T)));
  DIFFKV_CUDA_TRY(cudaMemset(p, 0xFF, count * sizeof(T)));
  owned.push_back(p);
  return static_cast<T*>(p);
}

//! One cache, and what it takes to put it back to where it began.
template <class Config>
class step_cache {
 public:
  step_cache(step_shape const& shape, cudaStream_t stream) : stream_{stream}
  {
    cache_shape s{};
    s.num_slots        = shape.batch;
    s.num_layers       = shape.num_layers;
    s.num_heads        = shape.num_heads;
    s.group_size       = shape.group_size;
    s.head_dim         = Config::layouts::head_dim;
    s.max_tokens       = 4096;
    s.score_every      = shape.score_every;
    parts_.shape       = s;
    parts_.tiers       = Config::layouts::pages;
    parts_.num_pages   = static_cast<std::uint32_t>(s.num_rows()) * pages_per_row;
    parts_.conditioned = Config::conditioned;
    parts_.limits      = {{1.0f, 0.0f}};
    std::size_t const offsets =
      has(Config::conditioned, conditioning::centred)
        ? std::size_t{s.rows_per_slot()} * static_cast<std::size_t>(s.head_dim)
        : 0;
    parts_.key_offsets.assign(offsets, 0.25f);
    std::size_t const layers = std::size_t{s.num_slots} * s.num_layers;
    cache_ref& r             = cache_;
    r.shape                  = s;
    r.tiers                  = parts_.tiers;
    r.conditioned            = parts_.conditioned;
    r.pool.num_pages         = parts_.num_pages;
    r.pool.page_bytes        = Config::layouts::page_bytes;
    r.pool.base =
      device_memory<std::byte>(owned_, std::size_t{r.pool.num_pages} * r.pool.page_bytes);
    r.ring.ids          = device_memory<page_id>(owned_, parts_.num_pages);
    r.ring.head         = device_memory<std::uint64_t>(owned_, 2);
    r.ring.tail         = r.ring.head + 1;
    r.ring.capacity     = parts_.num_pages;
    r.table.row_entries = parts_.tiers.most_pages(static_cast<std::uint32_t>(s.max_tokens));
    r.table.entries     = device_memory<page_id>(owned_, s.num_rows() * r.table.row_entries);
    r.state.rows        = device_memory<row_state>(owned_, s.num_rows());
    r.state.window =
      device_memory<slot_index>(owned_, s.num_rows() * static_cast<std::size_t>(s.window));
    r.state.candidates_per_tier = s.candidates_per_tier();
    r.state.window_tokens       = s.window;
    r.state.candidates =
      device_memory<candidate>(owned_, s.num_rows() * num_stored_tiers * s.candidates_per_tier());
    r.state.layers = device_memory<layer_state>(owned_, layers);
    r.queries      = make_query_ring(
           r, false, [this](std::size_t n, auto x) { return device_memory<decltype(x)>(owned_, n); });
    auto* const limits = device_memory<thresholds>(owned_, 1);
    DIFFKV_CUDA_TRY(
      cudaMemcpy(limits, parts_.limits.data(), sizeof(thresholds), cudaMemcpyHostToDevice));
    r.limits.data = limits;
    if (offsets > 0) {
      auto* const c = device_memory<float>(owned_, offsets);
      DIFFKV_CUDA_TRY(
        cudaMemcpy(c, parts_.key_offsets.data(), offsets * sizeof(float), cudaMemcpyHostToDevice));
      r.key_offsets = c;
    }
    std::vector<std::uint32_t> slots(shape.batch);
    for (std::uint32_t i = 0; i < shape.batch; ++i) { slots[i] = i; }
    slots_ = device_memory<std::uint32_t>(owned_, shape.batch);
    count_ = device_memory<std::uint32_t>(owned_, 1);
    DIFFKV_CUDA_TRY(cudaMemcpy(slots_, slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
    DIFFKV_CUDA_TRY(cudaMemcpy(count_, &shape.batch, 4, cudaMemcpyHostToDevice));
    workspace_bytes_ = step_workspace_bytes(s, shape.batch);
    workspace_       = device_memory<std::byte>(owned_, workspace_bytes_);
    refused_         = device_memory<std::uint32_t>(owned_, 1);
    fill();
    for (auto const& [data, bytes] : changing()) {
      saved_.push_back(device_memory<std::byte>(owned_, bytes));
      DIFFKV_CUDA_TRY(
        cudaMemcpyAsync(saved_.back(), data, bytes, cudaMemcpyDeviceToDevice, stream_));
    }
  }
  step_cache(step_cache const&)            = delete;
  step_cache& operator=(step_cache const&) = delete;
  ~step_cache()
  {
    cudaStreamSynchronize(stream_);
    for (void* p : owned_) { cudaFree(p); }
  }

  //! Back to where it began. Codes of demoted tokens stay where they went, behind the low part.
  void rewind()
  {
    auto const rows = static_cast<unsigned>(cache_.shape.num_rows());
    relabel_rows<<<(rows + 127) / 128, 128, 0, stream_>>>({cache_});
    DIFFKV_CUDA_TRY(cudaGetLastError());
    auto const arrays = changing();
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      DIFFKV_CUDA_TRY(cudaMemcpyAsync(arrays[i].first, saved_[i], arrays[i].second,
                                      cudaMemcpyDeviceToDevice, stream_));
    }
  }

  [[nodiscard]] cache_ref const& ref() const noexcept { return cache_; }
  [[nodiscard]] test::host_cache_parts const& parts() const noexcept { return parts_; }
  [[nodiscard]] batch_ref batch() const noexcept
  {
    return {slots_, count_, cache_.shape.num_slots};
  }
  void step()
  {
    diffkv::step<Config>(cache_, batch(), paper_policy{}, workspace_, workspace_bytes_,
                         {refused_, nullptr}, stream_);
  }
  //! @param inputs  [num_layers, heads of K, V and q] vectors of the batch, f16
  void append(__half const* inputs, bool with_queries)
  {
    cache_shape const& s = cache_.shape;
    std::size_t const kv =
      std::size_t{s.num_slots} * s.num_heads * static_cast<unsigned>(s.head_dim);
    for (std::uint32_t layer = 0; layer < s.num_layers; ++layer) {
      __half const* const from = inputs + layer * (2 + s.group_size) * kv;
      diffkv::append<Config>(
        cache_, batch(), layer, packed(from, s.num_heads, s.head_dim),
        packed(from + kv, s.num_heads, s.head_dim),
        packed(with_queries ? from + 2 * kv : nullptr, s.num_q_heads(), s.head_dim), stream_);
    }
  }
  //! Elements that `append` reads.
  [[nodiscard]] std::size_t input_elements() const noexcept
  {
    cache_shape const& s = cache_.shape;
    return std::size_t{s.num_layers} * (2 + s.group_size) * s.num_slots * s.num_heads *
           static_cast<unsigned>(s.head_dim);
  }
  [[nodiscard]] std::uint32_t refused() const
  {
    std::uint32_t n = 0;
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_));
    DIFFKV_CUDA_TRY(cudaMemcpy(&n, refused_, 4, cudaMemcpyDeviceToHost));
    return n;
  }
  //! All arrays copied to host memory.
  [[nodiscard]] std::unique_ptr<test::host_cache> to_host() const
  {
    auto host = std::make_unique<test::host_cache>(parts_);
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_));
    test::detail::for_each_array(host->ref(), cache_, [](void* to, void* from, std::size_t bytes) {
      DIFFKV_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
    });
    return host;
  }

 private:
  void fill()
  {
    std::size_t const candidates =
      cache_.shape.num_rows() * num_stored_tiers * cache_.state.candidates_per_tier;
    DIFFKV_CUDA_TRY(cudaMemsetAsync(cache_.ring.head, 0, 16, stream_));
    DIFFKV_CUDA_TRY(
      cudaMemsetAsync(cache_.state.candidates, 0xFF, candidates * sizeof(candidate), stream_));
    fill_rows<<<static_cast<unsigned>(cache_.shape.num_rows()), 128, 0, stream_>>>({cache_});
    DIFFKV_CUDA_TRY(cudaGetLastError());
  }
  //! What steps change, the pool aside.
  [[nodiscard]] std::vector<std::pair<void*, std::size_t>> changing() const
  {
    cache_shape const& s   = cache_.shape;
    std::size_t const rows = s.num_rows();
    return {{cache_.ring.head, 16},
            {cache_.table.entries, rows * cache_.table.row_entries * sizeof(page_id)},
            {cache_.state.rows, rows * sizeof(row_state)},
            {cache_.state.window, rows * static_cast<std::size_t>(s.window) * sizeof(slot_index)},
            {cache_.state.layers, std::size_t{s.num_slots} * s.num_layers * sizeof(layer_state)}};
  }

  cudaStream_t stream_;
  std::vector<std::byte*> saved_{};
  std::vector<void*> owned_{};
  test::host_cache_parts parts_{};
  cache_ref cache_{};
  std::uint32_t* slots_        = nullptr;
  std::uint32_t* count_        = nullptr;
  std::byte* workspace_        = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::uint32_t* refused_      = nullptr;
};

}  // namespace bench
