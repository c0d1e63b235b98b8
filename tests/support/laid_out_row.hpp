// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A row laid out by hand in front of one generation step, so that a test can say who is to leave.
#include <diffkv/host/scores.hpp>
#include <diffkv/host/step.hpp>

#include <algorithm>  // equal
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

//! One row at N - 1 = 99 tokens with a window of 2: position 97 leaves at the next step. Every token
//! has been seen by one query, so that its score is its importance. Several slots hold the same row.
struct laid_out_row {
  using tokens = std::vector<std::pair<int, float>>;  // position, score
  std::unique_ptr<host_cache> cache{};

  //! k8v8 in both tiers: whole numbers within 255 of each other survive the move between them.
  static tier_pages usual_tiers() { return short_tiers(k8v8::spec, 4, k8v8::spec, 4, 32); }

  laid_out_row(tokens const& high, tokens const& low, float leaving, thresholds limits,
               std::uint32_t num_slots = 1, tier_pages const& tiers = usual_tiers())
    : cache{std::make_unique<host_cache>(parts_of(limits, num_slots, tiers))}
  {
    for (std::uint32_t row = 0; row < num_slots; ++row) {
      auto all = high;
      all.insert(all.end(), {{97, leaving}, {98, 0.0f}});
      reserve_row(cache->context(), row,
                  {static_cast<std::uint32_t>(all.size()), static_cast<std::uint32_t>(low.size())});
      put(row, tier::high, all);
      put(row, tier::low, low);
      auto const end                          = static_cast<slot_index>(all.size());
      cache->ref().state.window_slot(row, 97) = end - 2;
      cache->ref().state.window_slot(row, 98) = end - 1;
      cache->ref().layer(row, 0)              = {99, {99, 1, 99}};  // Q = 1
    }
  }

  [[nodiscard]] static host_cache_parts parts_of(thresholds limits, std::uint32_t num_slots,
                                                 tier_pages const& tiers)
  {
    host_cache_parts parts{};
    parts.shape.num_slots   = num_slots;
    parts.shape.head_dim    = tiers.high.head_dim;
    parts.shape.window      = 2;
    parts.shape.max_tokens  = 200;
    parts.shape.score_every = 1;
    parts.tiers             = tiers;
    parts.num_pages         = 20 * num_slots;
    parts.limits            = {limits};
    return parts;
  }
  [[nodiscard]] std::size_t head_dim() const
  {
    return static_cast<std::size_t>(cache->shape().head_dim);
  }
  [[nodiscard]] std::vector<float> vector_of(int position) const
  {
    std::vector<float> x(head_dim(), static_cast<float>(position));
    x[1] += 255.0f;  // scale 1 exactly
    return x;
  }
  void put(std::size_t row, tier t, tokens const& all)
  {
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto const x = vector_of(all[i].first);
      write_token(cache->context(), row, t, static_cast<slot_index>(i), x.data(), x.data(),
                  all[i].second, all[i].first);
    }
  }

  //! What the new tokens bring: [slots, head_dim].
  [[nodiscard]] std::vector<float> new_vectors() const
  {
    return std::vector<float>(cache->shape().num_slots * head_dim(), 7.0f);
  }
  [[nodiscard]] std::vector<std::uint32_t> all_slots() const
  {
    std::vector<std::uint32_t> slots(cache->shape().num_slots);
    for (std::uint32_t s = 0; s < slots.size(); ++s) { slots[s] = s; }
    return slots;
  }

  template <class Policy>
  void step(Policy const& policy)
  {
    auto const slots = all_slots();
    for (std::uint32_t s : slots) { host::scan_candidates(cache->context(), s, 0, policy); }
    REQUIRE(host::step(cache->context(), slots.data(), cache->shape().num_slots, policy) == 0);
    auto const x = new_vectors();
    auto const v = packed<float const>(x.data(), 1, cache->shape().head_dim);
    host::append(cache->context(), slots.data(), cache->shape().num_slots, 0, v, v, v);
    CHECK(page_trouble(cache->ref()).empty());
  }

  //! Position to score of a part, the three newest tokens left out; checks that every token still has
  //! its own vectors.
  [[nodiscard]] std::map<int, float> part(tier t, std::size_t row = 0) const
  {
    std::map<int, float> all;
    auto const keys   = read_keys(cache->context(), row, t);
    auto const values = read_values(cache->context(), row, t);
    auto const dim    = static_cast<std::ptrdiff_t>(head_dim());
    for (slot_index s = 0; s < cache->ref().state.rows[row].tokens.of(t); ++s) {
      int const position = cache->context().row(row).position(t, s);
      if (position >= 98) { continue; }
      all[position] = cache->context().row(row).score(t, s);
      auto const x  = vector_of(position);
      CHECK(std::equal(x.begin(), x.end(), keys.begin() + s * dim));
      CHECK(std::equal(x.begin(), x.end(), values.begin() + s * dim));
    }
    return all;
  }
  [[nodiscard]] std::uint32_t count(tier t) const
  {
    return cache->ref().state.rows[0].tokens.of(t);
  }
};

}  // namespace diffkv::test
