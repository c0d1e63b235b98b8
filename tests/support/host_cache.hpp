// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache put together by hand: any tokens per page, thresholds per slot, rows filled as a test
//! wants them. `kv_cache` allows none of this.
#include <diffkv/host/claim.hpp>
#include <diffkv/host/context.hpp>

#include <cstring>  // memset
#include <string>
#include <vector>

#include "support/random.hpp"

namespace diffkv::test {

//! Pages of `format` that hold only `tokens` tokens: boundaries are met early. The segments stay
//! those of a page that would hold more.
[[nodiscard]] inline page_geometry short_pages(format_spec format, int head_dim, int tokens)
{
  int const blocks = (tokens + block_tokens - 1) / block_tokens;
  int const bytes =
    diffkv::detail::round_up(blocks * bytes_per_block(format, head_dim), page_alignment);
  page_geometry g   = make_page_geometry(format, head_dim, static_cast<std::uint32_t>(bytes));
  g.tokens_per_page = tokens;
  return g;
}

//! Two tiers of short pages in one page size.
[[nodiscard]] inline tier_pages short_tiers(format_spec high, int high_tokens, format_spec low,
                                            int low_tokens, int head_dim)
{
  page_geometry h = short_pages(high, head_dim, high_tokens);
  page_geometry l = short_pages(low, head_dim, low_tokens);
  h.page_bytes = l.page_bytes = diffkv::detail::max_of(h.page_bytes, l.page_bytes);
  return make_tier_pages(h, l);
}

struct host_cache_parts {
  cache_shape shape{};
  tier_pages tiers{};
  std::uint32_t num_pages  = 0;
  conditioning conditioned = conditioning::none;
  std::vector<float> key_offsets{};  //!< [num_layers, num_heads, head_dim] where centred
  //! [1], or one per row: [num_slots, num_layers, num_heads].
  std::vector<thresholds> limits{thresholds{}};
  bool exact_lagged_queries = false;  //!< as cache_options
};

//! Owns what a cache_ref points at. Every byte of the pool is 0xFF at first, so that what nobody
//! wrote reads as NaN.
class host_cache {
 public:
  explicit host_cache(host_cache_parts parts)
    : parts_{std::move(parts)},
      pool_(parts_.num_pages, parts_.tiers.high.page_bytes),
      ring_(parts_.num_pages, true),
      row_entries_{parts_.tiers.most_pages(static_cast<std::uint32_t>(shape().max_tokens))},
      entries_(shape().num_rows() * row_entries_, no_page),
      rows_(shape().num_rows()),
      // A stale slot must not be read before it is written.
      window_(shape().num_rows() * static_cast<std::size_t>(shape().window), no_slot),
      candidates_(shape().num_rows() * num_stored_tiers * shape().candidates_per_tier()),
      layers_(std::size_t{shape().num_slots} * shape().num_layers),
      lse_(shape().num_ring_queries()),
      offset_logits_(lse_.size()),
      rounding_{ring_rounding(parts_.tiers.high.format.key, parts_.tiers.low.format.key,
                              parts_.exact_lagged_queries)},
      queries_(rounding_ == lag_rounding::none ? ring_elements() : 0),
      query_codes_(rounding_ == lag_rounding::int8 ? ring_elements() : 0),
      largest_(rounding_ == lag_rounding::int8 ? lse_.size() : 0),
      context_{handles()}
  {
    std::memset(pool_.ref().base, 0xFF, pool_.size_bytes());
  }
  host_cache(host_cache const&)            = delete;
  host_cache& operator=(host_cache const&) = delete;

  [[nodiscard]] cache_shape const& shape() const noexcept { return parts_.shape; }
  [[nodiscard]] host::context const& context() const noexcept { return context_; }
  [[nodiscard]] cache_ref const& ref() const noexcept { return context_.cache; }
  //! From now on pages are handed out in another order.  @pre all pages are free
  void shuffle_pages(random& r) { shuffle(ref().ring.ids, ref().ring.capacity, r); }

 private:
  [[nodiscard]] std::size_t ring_elements() const
  {
    return lse_.size() * static_cast<std::size_t>(shape().head_dim);
  }
  [[nodiscard]] cache_ref handles()
  {
    cache_ref r{};
    r.shape       = shape();
    r.tiers       = parts_.tiers;
    r.pool        = pool_.ref();
    r.ring        = ring_.ref();
    r.table       = {entries_.data(), row_entries_};
    r.state       = {rows_.data(),   window_.data(), candidates_.data(),
                     layers_.data(), shape().window, shape().candidates_per_tier()};
    r.queries     = {queries_.data(),        lse_.data(),           offset_logits_.data(),
                     query_codes_.data(),    largest_.data(),       rounding_,
                     shape().ring_queries(), shape().num_q_heads(), shape().head_dim};
    r.limits.data = parts_.limits.data();
    if (parts_.limits.size() > 1) {
      r.limits.slot_stride  = static_cast<std::ptrdiff_t>(shape().rows_per_slot());
      r.limits.layer_stride = static_cast<std::ptrdiff_t>(shape().num_heads);
      r.limits.head_stride  = 1;
    }
    r.conditioned = parts_.conditioned;
    r.key_offsets = parts_.key_offsets.empty() ? nullptr : parts_.key_offsets.data();
    return r;
  }

  host_cache_parts parts_;
  page_pool<> pool_;
  free_ring<> ring_;
  std::uint32_t row_entries_;
  std::vector<page_id> entries_;
  std::vector<row_state> rows_;
  std::vector<slot_index> window_;
  std::vector<candidate> candidates_;
  std::vector<layer_state> layers_;
  std::vector<float> lse_;
  std::vector<float> offset_logits_;
  lag_rounding rounding_;
  std::vector<float> queries_;
  std::vector<std::int8_t> query_codes_;
  std::vector<float> largest_;
  host::context context_;
};

//! A query of one lag ring into another one like it.
inline void copy_query(query_ring_ref const& from, query_ring_ref const& to, std::size_t i)
{
  auto const dim = static_cast<std::size_t>(from.head_dim);
  if (from.rounding == lag_rounding::int8) {
    std::copy_n(from.codes_of(i), dim, to.codes_of(i));
    to.largest[i] = from.largest[i];
  } else {
    std::copy_n(from.query(i), dim, to.query(i));
  }
}

//! Pages for a row that is to hold `tokens`, claimed and put in place. The tokens are not written.
inline void reserve_row(host::context const& ctx, std::size_t row, tier_counts tokens)
{
  cache_ref const& cache = ctx.cache;
  row_state& state       = cache.state.rows[row];
  state.tokens           = tokens;
  state.pages            = {cache.tiers.pages_for(tier::high, tokens.high),
                            cache.tiers.pages_for(tier::low, tokens.low)};
  std::uint32_t const n  = state.pages.sum();
  std::vector<page_id> ids(n);
  std::uint8_t granted = 0;
  host::claim(cache.ring, {&n, 1, 1, nullptr, ids.data(), &granted, {}});
  DIFFKV_EXPECTS(granted == 1, "the test's pool is too small");
  for (std::uint32_t p = 0; p < n; ++p) {
    bool const high = p < state.pages.high;
    cache.table.entry(row, high ? tier::high : tier::low, high ? p : p - state.pages.high) = ids[p];
  }
}

//! Writes one token of a row: vectors as they are (not conditioned here), score and position.
inline void write_token(host::context const& ctx, std::size_t row, tier t, slot_index slot,
                        float const* key, float const* value, float score, std::int32_t position)
{
  row_view const view  = ctx.row(row);
  page_view const page = view.page_of(t, slot);
  int const token      = view.token_in_page(t, slot);
  ctx.codec(t).write_key(page.bytes, token, key);
  ctx.codec(t).write_value(page.bytes, token, value);
  page.set_score(token, score);
  page.set_position(token, position);
}

//! One tier's decoded vectors of a row, [tokens, head_dim].
[[nodiscard]] inline std::vector<float> read_keys(host::context const& ctx, std::size_t row, tier t)
{
  row_view const view   = ctx.row(row);
  auto const dim        = static_cast<std::size_t>(ctx.cache.shape.head_dim);
  std::uint32_t const n = view.state().tokens.of(t);
  std::vector<float> all(n * dim);
  for (slot_index s = 0; s < n; ++s) {
    ctx.codec(t).read_key(view.page_of(t, s).bytes, view.token_in_page(t, s), all.data() + s * dim);
  }
  return all;
}
[[nodiscard]] inline std::vector<float> read_values(host::context const& ctx, std::size_t row,
                                                    tier t)
{
  row_view const view   = ctx.row(row);
  auto const dim        = static_cast<std::size_t>(ctx.cache.shape.head_dim);
  std::uint32_t const n = view.state().tokens.of(t);
  std::vector<float> all(n * dim);
  for (slot_index s = 0; s < n; ++s) {
    ctx.codec(t).read_value(view.page_of(t, s).bytes, view.token_in_page(t, s),
                            all.data() + s * dim);
  }
  return all;
}

//! What is wrong with the pages of a cache; empty if each is free or owned by one row, and no table
//! entry outside the rows' own names a page.
[[nodiscard]] inline std::string page_trouble(cache_ref const& cache)
{
  std::vector<int> seen(cache.ring.capacity, 0);
  auto const count = [&](page_id id) {
    auto const p = static_cast<std::uint32_t>(id);
    if (p >= cache.ring.capacity) { return false; }
    ++seen[p];
    return true;
  };
  for (std::uint64_t i = *cache.ring.head; i < *cache.ring.tail; ++i) {
    if (!count(cache.ring.cell(i))) { return "the ring holds an id that is no page"; }
  }
  for (std::size_t r = 0; r < cache.shape.num_rows(); ++r) {
    tier_counts const pages = cache.state.rows[r].pages;
    if (pages.sum() > cache.table.row_entries) { return "a row holds more pages than entries"; }
    for (std::uint32_t e = 0; e < cache.table.row_entries; ++e) {
      bool const owned = e < pages.high || e >= cache.table.row_entries - pages.low;
      page_id const id = cache.table.entries[r * cache.table.row_entries + e];
      if (owned && !count(id)) { return "a row owns an id that is no page"; }
      if (!owned && id != no_page) { return "an entry outside the row's own names a page"; }
    }
  }
  for (std::uint32_t p = 0; p < cache.ring.capacity; ++p) {
    if (seen[p] != 1) {
      return "page " + std::to_string(p) + " is held " + std::to_string(seen[p]) + " times";
    }
  }
  return {};
}

}  // namespace diffkv::test
