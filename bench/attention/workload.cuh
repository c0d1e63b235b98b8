// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache in the middle of a generation, whose layers one decode kernel attends to in turn.
#include "attention/fill.cuh"
#include "attention/kernels.hpp"
#include "bench_inputs.hpp"
#include "device_buffers.cuh"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace bench {

//! Rows of one launch.
struct attention_rows {
  std::uint32_t batch        = 1;
  std::int32_t length        = 4096;  //!< tokens seen by a sequence, pruned ones too
  double high_share          = 1.0;   //!< of them, as are the low ones
  double low_share           = 0.0;
  double spread              = 1.0;    //!< longest over shortest row of a sequence; the total stays
  bool staggered             = false;  //!< sequences stand at other positions than their neighbours
  catch_up_schedule schedule = catch_up_schedule::by_batch;
  //! k of the scores that a case beside this one keeps: both take as many layers in turn, as pages that lie
  //! further apart take longer to read.
  int beside_scores = 0;

  static constexpr std::uint32_t stagger = 4;  //!< so many sequences, then it begins anew
};

inline constexpr std::uint32_t attention_heads = 8;

//! Tokens of head `head`, where the heads of different sequences and layers are in different order.
[[nodiscard]] inline tier_counts tokens_of_row(attention_rows const& rows, std::uint32_t sequence,
                                               std::uint32_t layer, std::uint32_t head)
{
  auto const weight = [&](std::uint32_t i) {
    return std::pow(rows.spread, i / (attention_heads - 1.0));
  };
  double mean = 0.0;
  for (std::uint32_t i = 0; i < attention_heads; ++i) { mean += weight(i) / attention_heads; }
  std::uint32_t const turn = hash_of(sequence, layer);
  double const own         = weight((head * 3 + turn) % attention_heads) / mean * rows.length;
  return {static_cast<std::uint32_t>(std::lround(own * rows.high_share)),
          static_cast<std::uint32_t>(std::lround(own * rows.low_share))};
}

class attention_workload {
 public:
  //! Enough layers that what a launch reads has left the L2 cache when its turn comes again, and that the
  //! scores written meanwhile are more than the cache holds: else some of them never reach memory.
  static constexpr double bytes_in_rotation = 600e6;
  static constexpr double caches_of_scores  = 1.5;
  static constexpr double most_of_memory    = 0.125;  //!< a suite has several workloads at a time

  //! @param other  its pages are used, and filled anew, if they are as many bytes: where pages lie changes
  //!               times by up to 0.7 %
  attention_workload(attention_kernel const& kernel, attention_rows const& rows,
                     attention_workload const* other = nullptr)
    : kernel_{kernel}, stream_{bench_stream()}
  {
    lay_out(rows);
    make_cache(rows, other);
    fill(rows);
    std::size_t const vectors = std::size_t{rows.batch} * shape().num_q_heads();
    query_                    = device_memory<__half>(
      to_halves(normal_numbers(vectors * static_cast<std::size_t>(shape().head_dim), 11)));
    out_ = device_memory<__half>(vectors * static_cast<std::size_t>(shape().head_dim));
    lse_ = device_memory<float>(vectors);
    std::vector<std::uint32_t> slots(rows.batch);
    std::iota(slots.begin(), slots.end(), 0u);
    slots_                        = device_memory<std::uint32_t>(slots);
    workspace_                    = kernel.make_workspace(owned_, shape());
    options_.scale                = 1.0f / std::sqrt(static_cast<float>(shape().head_dim));
    options_.exact_lagged_queries = kernel.exact_lag;
    plan();
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_));
  }
  attention_workload(attention_workload const&)            = delete;
  attention_workload& operator=(attention_workload const&) = delete;
  ~attention_workload()
  {
    cudaStreamSynchronize(stream_);
    for (void* p : owned_) { cudaFree(p); }
  }

  //! The work of all layers. Attention moves the state on, so only the plan made before the first launch
  //! has scores to catch up with; all launches follow that one.
  void plan() const { kernel_.plan(cache_, batch(), workspace_, stream_); }
  void attend(std::uint32_t layer, float* lse = nullptr) const
  {
    kernel_.attend(cache_, layer, options_, workspace_, queries(), outputs(), lse, stream_);
  }

  [[nodiscard]] attention_kernel const& kernel() const noexcept { return kernel_; }
  [[nodiscard]] cache_ref const& cache() const noexcept { return cache_; }
  [[nodiscard]] cache_shape const& shape() const noexcept { return cache_.shape; }
  [[nodiscard]] attention_options const& options() const noexcept { return options_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
  [[nodiscard]] float* lse() const noexcept { return lse_; }
  [[nodiscard]] vectors<__half const> queries() const noexcept
  {
    return packed<__half const>(query_, shape().num_q_heads(), shape().head_dim);
  }
  [[nodiscard]] vectors<__half> outputs() const noexcept
  {
    return packed(out_, shape().num_q_heads(), shape().head_dim);
  }
  //! Codes and metadata of the tokens of one launch, averaged over the layers.
  [[nodiscard]] double bytes() const noexcept { return bytes_; }
  [[nodiscard]] double tokens() const noexcept { return tokens_; }

 private:
  template <class T>
  T* device_memory(std::size_t count)
  {
    void* p = nullptr;
    DIFFKV_CUDA_TRY(cudaMalloc(&p, count * sizeof(T) + 16));
    owned_.push_back(p);
    DIFFKV_CUDA_TRY(cudaMemsetAsync(p, 0xFF, count * sizeof(T), stream_));
    return static_cast<T*>(p);
  }
  template <class T>
  T* device_memory(std::vector<T> const& from)
  {
    T* const to = device_memory<T>(from.size());
    DIFFKV_CUDA_TRY(
      cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream_));
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream_));
    return to;
  }
  [[nodiscard]] batch_ref batch() const noexcept { return {slots_, nullptr, shape().num_slots}; }

  //! Layers, the tokens of all rows, and the pages that they need.
  void lay_out(attention_rows const& rows)
  {
    cache_shape& s      = cache_.shape;
    s.num_slots         = rows.batch;
    s.num_heads         = attention_heads;
    s.group_size        = kernel_.group_size;
    s.head_dim          = kernel_.head_dim;
    s.score_every       = kernel_.score_every;
    s.schedule          = rows.schedule;
    cache_.tiers        = kernel_.tiers;
    auto const bytes_of = [&](tier t) {
      page_geometry const& g = cache_.tiers.of(t);
      return static_cast<double>(g.scores) / g.tokens_per_page;  // what attention reads of a token
    };
    double const tokens = static_cast<double>(rows.batch) * rows.length * s.num_heads;
    double const of_a_layer =
      (rows.high_share * bytes_of(tier::high) + rows.low_share * bytes_of(tier::low)) * tokens;
    double enough         = bytes_in_rotation / of_a_layer;
    int const score_every = std::max(kernel_.score_every, rows.beside_scores);
    if (score_every > 0) {
      double const scores =
        sizeof(float) * (rows.high_share + rows.low_share) * tokens / score_every;
      int device = 0, cache = 0;
      DIFFKV_CUDA_TRY(cudaGetDevice(&device));
      DIFFKV_CUDA_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
      std::size_t free = 0, memory = 0;
      DIFFKV_CUDA_TRY(cudaMemGetInfo(&free, &memory));
      double const most = most_of_memory * static_cast<double>(memory) / of_a_layer;
      enough            = std::max(enough, std::min(most, caches_of_scores * cache / scores));
    }
    // Whole cycles of k layers: each launch of a step catches up in its turn.
    auto const multiple = static_cast<std::uint32_t>(std::max(2, score_every));
    auto const layers   = std::max(1u, static_cast<std::uint32_t>(std::ceil(enough)));
    s.num_layers        = (layers + multiple - 1) / multiple * multiple;

    std::int32_t longest = rows.length;
    for (std::size_t row = 0; row < s.num_rows(); ++row) {
      auto const slot  = static_cast<std::uint32_t>(row / s.rows_per_slot());
      auto const layer = static_cast<std::uint32_t>(row % s.rows_per_slot() / s.num_heads);
      auto const head  = static_cast<std::uint32_t>(row % s.num_heads);
      row_state state{};
      state.tokens      = tokens_of_row(rows, slot, layer, head);
      state.pages       = {cache_.tiers.pages_for(tier::high, state.tokens.high),
                           cache_.tiers.pages_for(tier::low, state.tokens.low)};
      state.append_slot = state.tokens.high - 1;  // the newest token
      bytes_ += bytes_of(tier::high) * state.tokens.high + bytes_of(tier::low) * state.tokens.low;
      tokens_ += state.tokens.sum();
      longest = std::max(longest, static_cast<std::int32_t>(state.tokens.sum()));
      cache_.pool.num_pages += state.pages.sum();
      rows_.push_back(state);
    }
    bytes_ /= s.num_layers;
    tokens_ /= s.num_layers;
    s.max_tokens = longest;
  }

  //! Pages lie anywhere in the pool.
  [[nodiscard]] std::vector<page_id> page_entries() const
  {
    std::vector<std::uint32_t> ids(cache_.pool.num_pages);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), std::mt19937{5});
    std::vector<page_id> entries(rows_.size() * cache_.table.row_entries, no_page);
    page_table_ref const table{entries.data(), cache_.table.row_entries};
    std::size_t next = 0;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (tier t : {tier::high, tier::low}) {
        for (std::uint32_t p = 0; p < rows_[row].pages.of(t); ++p) {
          table.entry(row, t, p) = page_id{ids[next++]};
        }
      }
    }
    return entries;
  }

  void make_cache(attention_rows const& rows, attention_workload const* other)
  {
    cache_shape const& s     = cache_.shape;
    std::size_t const layers = std::size_t{s.num_slots} * s.num_layers;
    cache_.conditioned       = kernel_.conditioned;
    cache_.pool.page_bytes   = cache_.tiers.high.page_bytes;
    std::size_t const bytes  = std::size_t{cache_.pool.num_pages} * cache_.pool.page_bytes;
    bool const shares = other != nullptr && bytes == std::size_t{other->cache_.pool.num_pages} *
                                                       other->cache_.pool.page_bytes;
    cache_.pool.base         = shares ? other->cache_.pool.base : device_memory<std::byte>(bytes);
    cache_.table.row_entries = cache_.tiers.most_pages(static_cast<std::uint32_t>(s.max_tokens));
    cache_.table.entries     = device_memory(page_entries());
    cache_.state.rows        = device_memory(rows_);
    cache_.state.window =
      device_memory<slot_index>(s.num_rows() * static_cast<std::size_t>(s.window));
    cache_.state.window_tokens       = s.window;
    cache_.state.candidates_per_tier = s.candidates_per_tier();
    cache_.state.candidates =
      device_memory<candidate>(s.num_rows() * num_stored_tiers * s.candidates_per_tier());
    // As after many steps: a launch that catches up has k queries to add.
    std::int32_t const generated = 16;
    std::vector<layer_state> states;
    for (std::size_t i = 0; i < layers; ++i) {
      auto const behind    = static_cast<std::int32_t>(i / s.num_layers % attention_rows::stagger);
      std::int32_t const n = s.max_tokens - (rows.staggered ? behind : 0);
      std::int32_t const old = n - generated;  // tokens of the prompt
      states.push_back({n,
                        {old, std::min(64, old),
                         n - 1 - waiting(n, static_cast<std::int32_t>(i % s.num_layers))}});
    }
    cache_.state.layers = device_memory(states);
    cache_.queries      = make_query_ring(cache_, kernel_.exact_lag, [this](std::size_t n, auto x) {
      return device_memory<decltype(x)>(n);
    });
    if (has(kernel_.conditioned, conditioning::centred)) {
      std::vector<float> offsets =
        normal_numbers(std::size_t{s.rows_per_slot()} * static_cast<std::size_t>(s.head_dim), 13);
      cache_.key_offsets = device_memory(offsets);
    }
  }

  //! Queries that wait in a layer of a sequence of n tokens.
  [[nodiscard]] std::int32_t waiting(std::int32_t n, std::int32_t layer) const
  {
    cache_shape const& s    = shape();
    std::int32_t const k    = s.score_every;
    std::int32_t const turn = s.first_decides() ? s.max_tokens : n;
    return k == 0 ? 0 : (turn - 2 + layer) % k + 1;
  }

  void fill(attention_rows const& rows)
  {
    cache_shape const& s = cache_.shape;
    fill_parameters const p{cache_, 17};
    unsigned const pages = static_cast<unsigned>(
      std::clamp<std::size_t>(16384 / s.num_rows(), 1, 64));  // some thousands of CTAs
    fill_pages<<<dim3{static_cast<unsigned>(s.num_rows()), pages}, 256, 0, stream_>>>(p);
    DIFFKV_CUDA_TRY(cudaGetLastError());
    std::size_t const queries = s.num_ring_queries();
    if (queries == 0) { return; }
    fill_ring<<<1024, 256, 0, stream_>>>(p, queries,
                                         std::log(static_cast<float>(rows.length)) + 0.5f);
    DIFFKV_CUDA_TRY(cudaGetLastError());
  }

  attention_kernel kernel_;
  cudaStream_t stream_;
  std::vector<void*> owned_{};
  std::vector<row_state> rows_{};
  cache_ref cache_{};
  attention_options options_{};
  decode_workspace_ref workspace_{};
  __half* query_        = nullptr;
  __half* out_          = nullptr;
  float* lse_           = nullptr;
  std::uint32_t* slots_ = nullptr;
  double bytes_         = 0.0;
  double tokens_        = 0.0;
};

}  // namespace bench
