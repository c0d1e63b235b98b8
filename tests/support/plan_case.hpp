// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache in the middle of a generation as a work plan sees it: lengths, states and a table in which
//! every entry names itself. Pages hold nothing.
#include <diffkv/attention/decode_workspace.hpp>

#include <cstring>  // memset
#include <vector>

#include "support/host_cache.hpp"

namespace diffkv::test {

struct plan_extents {
  std::uint32_t slots = 1, layers = 1, heads = 1;
  std::int32_t max_tokens = 400, score_every = 4;
  catch_up_schedule schedule = catch_up_schedule::by_batch;
};

[[nodiscard]] inline host_cache_parts plan_parts(plan_extents const& e, tier_pages const& tiers)
{
  host_cache_parts parts;
  parts.shape     = {e.slots,      e.layers, e.heads,       1,         tiers.high.head_dim,
                     e.max_tokens, 1,        e.score_every, e.schedule};
  parts.tiers     = tiers;
  parts.num_pages = 1;
  return parts;
}

//! Rows of any lengths: one in `empty` has no token, some are full. Some sequences have no tokens at all,
//! some were refused by the step.
inline void fill_rows(cache_ref const& cache, random& r, int empty)
{
  cache_shape const& shape = cache.shape;
  for (std::uint32_t slot = 0; slot < shape.num_slots; ++slot) {
    bool const idle    = r.one_in(9);
    bool const refused = r.one_in(5);
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      std::int32_t const n      = idle ? 0 : r.between(1, shape.max_tokens);
      std::int32_t const prompt = r.between(0, n);
      // Any, or as many queries wait as the lag ring holds, or fewer.
      std::int32_t const last =
        r.one_in(3) ? r.between(0, n)
                    : diffkv::detail::max_of(0, n - 1 - r.between(0, shape.score_every));
      cache.layer(slot, layer) = {n, {prompt, r.between(0, prompt), last}};
      for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
        row_state& row = cache.state.rows[shape.row(slot, layer, head)];
        row            = {};
        if (idle) { continue; }
        auto const most          = static_cast<std::uint32_t>(n);
        std::uint32_t const high = r.one_in(empty) ? 0 : r.one_in(8) ? most : r.below(most + 1);
        std::uint32_t const low  = cache.tiers.has_low && high > 0 ? r.below(most - high + 1) : 0;
        row.tokens               = {high, low};
        // More than the tokens need: a plan goes by the tokens.
        row.pages       = {cache.tiers.pages_for(tier::high, high) + r.below(2),
                           cache.tiers.pages_for(tier::low, low) + r.below(2)};
        row.append_slot = refused || high == 0 ? no_slot : r.below(high);
      }
    }
  }
  std::size_t const entries = shape.num_rows() * cache.table.row_entries;
  for (std::size_t e = 0; e < entries; ++e) {
    cache.table.entries[e] = page_id{static_cast<std::uint32_t>(e)};
  }
}

//! All rows become as long as `tokens`, none of them refused; sequences stay at different positions.
inline void make_rows_equal(cache_ref const& cache, tier_counts const& tokens)
{
  tier_counts const pages{cache.tiers.pages_for(tier::high, tokens.high),
                          cache.tiers.pages_for(tier::low, tokens.low)};
  for (std::size_t row = 0; row < cache.shape.num_rows(); ++row) {
    cache.state.rows[row] = {tokens, pages, tokens.high > 0 ? tokens.high - 1 : no_slot};
  }
  for (std::uint32_t slot = 0; slot < cache.shape.num_slots; ++slot) {
    for (std::uint32_t layer = 0; layer < cache.shape.num_layers; ++layer) {
      std::int32_t& num_tokens = cache.layer(slot, layer).num_tokens;
      num_tokens               = diffkv::detail::max_of(num_tokens, 1);
    }
  }
}

//! Host memory of a workspace; every byte of it is `poison` at first.
class host_workspace {
 public:
  static constexpr int poison                   = 0xA5;
  static constexpr std::uint32_t partial_floats = 5;

  host_workspace(cache_shape const& shape, std::uint32_t capacity, layer_range layers,
                 decode_grid grid)
    : bytes_{decode_workspace_bytes(shape, capacity, layers, grid, partial_floats)},
      memory_(bytes_ + workspace_alignment),
      begin_{memory_.data() +
             (workspace_alignment -
              reinterpret_cast<std::uintptr_t>(memory_.data()) % workspace_alignment)},
      ref_{make_decode_workspace(begin_, bytes_, shape, capacity, layers, grid, partial_floats)}
  {
    std::memset(begin_, poison, bytes_);
  }
  host_workspace(host_workspace const&)            = delete;
  host_workspace& operator=(host_workspace const&) = delete;

  [[nodiscard]] decode_workspace_ref const& ref() const noexcept { return ref_; }
  [[nodiscard]] std::byte* data() const noexcept { return begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* begin_;
  decode_workspace_ref ref_;
};

}  // namespace diffkv::test
