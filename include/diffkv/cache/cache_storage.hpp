// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The memory of a cache, and the handles over it.
//! Read before this: cache/cache_options.hpp.  Read next: cache/sequence_usage.hpp.
#include <diffkv/cache/cache_options.hpp>
#include <diffkv/core/memory.hpp>  // buffer
#include <diffkv/pool/free_ring.hpp>
#include <diffkv/pool/page_pool.hpp>

namespace diffkv {

//! Owns every array that a cache_ref points at. Where the memory is not host accessible the arrays are
//! not initialised: cache/device_kv_cache.cuh copies the state of a host storage over them.
template <class MemoryResource = host_resource>
class cache_storage {
 public:
  //! @param options  every default resolved (detail::checked)
  //! @param ring     of options.num_pages pages, all free
  //! @throws what the resource throws
  cache_storage(cache_options const& options, free_ring<MemoryResource> ring,
                MemoryResource resource)
    : shape_{options.shape},
      tiers_{tiers_of(options)},
      conditioned_{options.conditioned},
      row_limits_{options.limits_per_slot || !options.row_limits.empty()},
      limits_per_slot_{options.limits_per_slot},
      row_entries_{tiers_.most_pages(static_cast<std::uint32_t>(options.shape.max_tokens))},
      window_tokens_{detail::min_of(shape_.window, shape_.max_tokens)},
      pool_(options.num_pages, options.page_bytes, resource),
      ring_{std::move(ring)},
      entries_(shape_.num_rows() * row_entries_, resource),
      rows_(shape_.num_rows(), resource),
      window_(shape_.num_rows() * static_cast<std::size_t>(window_tokens_), resource),
      candidates_(shape_.num_rows() * num_stored_tiers * shape_.candidates_per_tier(), resource),
      layers_(std::size_t{shape_.num_slots} * shape_.num_layers, resource),
      rounding_{ring_rounding(options.high.key, options.low.key, options.exact_lagged_queries)},
      queries_(rounding_ == lag_rounding::none ? ring_elements() : 0, resource),
      query_codes_(rounding_ == lag_rounding::int8 ? ring_elements() : 0, resource),
      largest_(rounding_ == lag_rounding::int8 ? shape_.num_ring_queries() : 0, resource),
      query_lse_(shape_.num_ring_queries(), resource),
      offset_logits_(shape_.num_ring_queries(), resource),
      limits_(num_limits(), resource),
      key_offsets_(options.key_offsets.size(), resource)
  {
    if constexpr (MemoryResource::is_host_accessible) { initialise(options); }
  }

  [[nodiscard]] cache_ref ref() noexcept
  {
    cache_ref r{};
    r.shape       = shape_;
    r.tiers       = tiers_;
    r.pool        = pool_.ref();
    r.ring        = ring_.ref();
    r.table       = {entries_.data(), row_entries_};
    r.state       = {rows_.data(),   window_.data(), candidates_.data(),
                     layers_.data(), window_tokens_, shape_.candidates_per_tier()};
    r.queries     = {queries_.data(),       query_lse_.data(),    offset_logits_.data(),
                     query_codes_.data(),   largest_.data(),      rounding_,
                     shape_.ring_queries(), shape_.num_q_heads(), shape_.head_dim};
    r.limits.data = limits_.data();
    if (row_limits_) {
      r.limits.layer_stride = static_cast<std::ptrdiff_t>(shape_.num_heads);
      r.limits.head_stride  = 1;
      r.limits.slot_stride =
        limits_per_slot_ ? static_cast<std::ptrdiff_t>(shape_.rows_per_slot()) : 0;
    }
    r.conditioned = conditioned_;
    r.key_offsets = key_offsets_.data();
    return r;
  }

  //! Thresholds of one row, on the host.  @pre made with limits_per_slot
  [[nodiscard]] thresholds& limits_of(std::size_t row) noexcept { return limits_[row]; }

  //! Calls f(array of this, array of other) for all but the pages and the ring.
  template <class Other, class F>
  void for_each_state_array(Other& other, F&& f)
  {
    f(entries_, other.entries_);
    f(rows_, other.rows_);
    f(window_, other.window_);
    f(candidates_, other.candidates_);
    f(layers_, other.layers_);
    f(queries_, other.queries_);
    f(query_codes_, other.query_codes_);
    f(largest_, other.largest_);
    f(query_lse_, other.query_lse_);
    f(offset_logits_, other.offset_logits_);
    f(limits_, other.limits_);
    f(key_offsets_, other.key_offsets_);
  }

 private:
  template <class>
  friend class cache_storage;

  [[nodiscard]] std::size_t ring_elements() const noexcept
  {
    return shape_.num_ring_queries() * static_cast<std::size_t>(shape_.head_dim);
  }
  [[nodiscard]] std::size_t num_limits() const noexcept
  {
    if (limits_per_slot_) { return shape_.num_rows(); }
    return row_limits_ ? shape_.rows_per_slot() : 1;
  }
  void initialise(cache_options const& options)
  {
    for (std::size_t i = 0; i < entries_.size(); ++i) { entries_[i] = no_page; }
    for (std::size_t i = 0; i < limits_.size(); ++i) {
      bool const shared = options.row_limits.empty();
      limits_[i]        = shared ? options.limits : options.row_limits[i % shape_.rows_per_slot()];
    }
    for (std::size_t i = 0; i < key_offsets_.size(); ++i) {
      key_offsets_[i] = options.key_offsets[i];
    }
  }

  cache_shape shape_;
  tier_pages tiers_;
  conditioning conditioned_;
  bool row_limits_;
  bool limits_per_slot_;
  std::uint32_t row_entries_;
  std::int32_t window_tokens_;  // places for a window; the longest sequence needs no more
  page_pool<MemoryResource> pool_;
  free_ring<MemoryResource> ring_;
  buffer<page_id, MemoryResource> entries_;
  buffer<row_state, MemoryResource> rows_;
  buffer<slot_index, MemoryResource> window_;
  buffer<candidate, MemoryResource> candidates_;
  buffer<layer_state, MemoryResource> layers_;
  lag_rounding rounding_;
  buffer<float, MemoryResource> queries_;  // one of these two, by rounding_
  buffer<std::int8_t, MemoryResource> query_codes_;
  buffer<float, MemoryResource> largest_;
  buffer<float, MemoryResource> query_lse_;
  buffer<float, MemoryResource> offset_logits_;
  buffer<thresholds, MemoryResource> limits_;
  buffer<float, MemoryResource> key_offsets_;
};

}  // namespace diffkv
