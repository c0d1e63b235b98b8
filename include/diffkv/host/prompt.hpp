// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The life of a request up to its first generated token: admit, plan, coordinate, encode, give back;
//! and its end: release.
//! Read before this: host/claim.hpp.  Read next: host/move_token.hpp.
#include <diffkv/core/vectors.hpp>
#include <diffkv/host/claim.hpp>
#include <diffkv/host/context.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#include <vector>

namespace diffkv::host {

//! A prompt that wants to be admitted.
struct admission {
  std::uint32_t slot      = 0;
  std::int32_t num_tokens = 0;  //!< N of the prompt
};

namespace detail {

inline void expect_free_slot(cache_ref const& cache, admission const& a)
{
  expect_slot(cache.shape, a.slot);
  DIFFKV_EXPECTS(a.num_tokens >= 0 && a.num_tokens <= cache.shape.max_tokens,
                 "num_tokens: a prompt of " + std::to_string(a.num_tokens) +
                   " tokens does not fit a cache of " + std::to_string(cache.shape.max_tokens));
  std::size_t const first = cache.shape.row(a.slot, 0, 0);
  for (std::size_t r = first; r < first + cache.shape.rows_per_slot(); ++r) {
    DIFFKV_EXPECTS(cache.state.rows[r].pages.sum() == 0,
                   "slot: " + std::to_string(a.slot) + " is in use, release it first");
  }
}

inline void reset_slot(cache_ref const& cache, std::uint32_t slot) noexcept
{
  std::size_t const first = cache.shape.row(slot, 0, 0);
  for (std::size_t r = first; r < first + cache.shape.rows_per_slot(); ++r) {
    cache.state.rows[r] = row_state{};
    for (tier t : {tier::high, tier::low}) {
      for (std::uint32_t i = 0; i < cache.state.candidates_per_tier; ++i) {
        cache.state.candidates_of(r, t)[i] = candidate{};
      }
    }
  }
  for (std::uint32_t l = 0; l < cache.shape.num_layers; ++l) {
    cache.layer(slot, l) = layer_state{};
  }
}

}  // namespace detail

//! Claims the pages that each prompt may need at most, for all its rows; all or nothing per prompt.
//! Granted slots then hold pages and no tokens; refused ones are as before.
//! @param batch     [count] different free slots
//! @param policy    says how many prompt queries the importances hold
//! @param refusals  out; either member may be null
//! @return number of prompts refused for want of pages
//! @throws invalid_argument for a slot that is out of range, in use or named twice, or a prompt longer
//!         than shape.max_tokens, before anything is changed
template <class Policy>
std::uint32_t admit(context const& ctx, admission const* batch, std::uint32_t count,
                    Policy const& policy, refusals_ref refusals = {})
{
  cache_ref const& cache   = ctx.cache;
  std::uint32_t const rows = cache.shape.rows_per_slot();
  std::vector<std::uint32_t> demand(std::size_t{count} * rows);
  for (std::uint32_t s = 0; s < count; ++s) {
    detail::expect_free_slot(cache, batch[s]);
    detail::expect_not_named_before([batch](std::uint32_t i) { return batch[i].slot; }, s);
    std::uint32_t const pages =
      cache.tiers.most_pages(static_cast<std::uint32_t>(batch[s].num_tokens));
    for (std::uint32_t r = 0; r < rows; ++r) { demand[std::size_t{s} * rows + r] = pages; }
  }
  batch_claim const got = claim_for_batch(cache.ring, demand, count, rows, refusals);

  for (std::uint32_t s = 0; s < count; ++s) {
    if (got.granted[s] == 0) { continue; }
    std::uint32_t const slot = batch[s].slot;
    detail::reset_slot(cache, slot);
    for (std::uint32_t r = 0; r < rows; ++r) {
      std::size_t const row      = cache.shape.row(slot, 0, 0) + r;
      std::size_t const in_batch = std::size_t{s} * rows + r;
      for (std::uint32_t p = 0; p < demand[in_batch]; ++p) {
        cache.table.entry(row, tier::high, p) = got.ids[got.offsets[in_batch] + p];
      }
      cache.state.rows[row].pages.high = demand[in_batch];
    }
    std::int32_t const n = batch[s].num_tokens;
    for (std::uint32_t l = 0; l < cache.shape.num_layers; ++l) {
      cache.layer(slot, l) = {n, {n, policy.prompt_queries(n), n}};
    }
  }
  return got.refused;
}

//! Plans one row of an admitted prompt, puts its pages in place (high from the left, low from the
//! right, surplus back to the ring), and encodes and stores its tokens, oldest first.
//! @param key, value    the row's vectors of all tokens, not yet conditioned
//! @param importances   [num_tokens] of this head; those of the window do not decide its tier, but are
//!                      the scores with which its tokens leave it
//! @return pages to give back (the caller releases them: rows may run on several threads)
template <class Policy, class T>
std::vector<page_id> store_prompt_row(context const& ctx, std::uint32_t slot, std::uint32_t layer,
                                      std::uint32_t head, Policy const& policy, vectors<T> key,
                                      vectors<T> value, float const* importances)
{
  cache_ref const& cache    = ctx.cache;
  cache_shape const& shape  = cache.shape;
  row_view const row        = ctx.row(shape.row(slot, layer, head));
  row_state& state          = row.state();
  query_span const& queries = cache.layer(slot, layer).queries;
  std::int32_t const n      = queries.prompt_tokens;

  // Plan: the tier of each token.
  prompt_view const view{importances, n, shape.window, cache.limits.of(slot, layer, head),
                         cache.tiers.has_low};
  auto const parameters = policy.prepare(view);
  std::vector<tier> tiers(static_cast<std::size_t>(n));
  tier_counts tokens{};
  for (std::int32_t i = 1; i <= n; ++i) {
    tier const t = prompt_tier(policy, view, parameters, i, queries.count(i));
    tiers[static_cast<std::size_t>(i - 1)] = t;
    tokens.high += t == tier::high ? 1u : 0u;
    tokens.low += t == tier::low ? 1u : 0u;
  }

  // Coordinate: all claimed pages lie at the left end; read them before any is moved.
  std::vector<page_id> claimed(state.pages.high);
  for (std::uint32_t p = 0; p < state.pages.high; ++p) {
    claimed[p]                                = cache.table.entry(row.row, tier::high, p);
    cache.table.entry(row.row, tier::high, p) = no_page;
  }
  state.tokens = tokens;
  state.pages  = {cache.tiers.pages_for(tier::high, tokens.high),
                 cache.tiers.has_low ? cache.tiers.pages_for(tier::low, tokens.low) : 0u};
  auto next    = claimed.begin();
  for (std::uint32_t p = 0; p < state.pages.high; ++p) {
    cache.table.entry(row.row, tier::high, p) = *next++;
  }
  for (std::uint32_t p = 0; p < state.pages.low; ++p) {
    cache.table.entry(row.row, tier::low, p) = *next++;
  }

  // Encode and store.
  std::vector<float> x(static_cast<std::size_t>(shape.head_dim));
  tier_counts stored{};
  for (std::int32_t i = 1; i <= n; ++i) {
    tier const t = tiers[static_cast<std::size_t>(i - 1)];
    if (t == tier::pruned) { continue; }
    slot_index const at  = t == tier::high ? stored.high++ : stored.low++;
    page_view const page = row.page_of(t, at);
    int const token      = row.token_in_page(t, at);
    auto const load      = [&](vectors<T> const& source) {
      T* from = source.at(i - 1, head);
      for (std::int32_t d = 0; d < shape.head_dim; ++d) {
        x[static_cast<std::size_t>(d)] = to_f32(from[d]);
      }
    };
    load(key);
    condition_key(x.data(), cache.key_offset(layer, head), shape.head_dim, cache.conditioned);
    ctx.codec(t).write_key(page.bytes, token, x.data());
    load(value);
    condition_rotation(x.data(), shape.head_dim, cache.conditioned);
    ctx.codec(t).write_value(page.bytes, token, x.data());

    std::int32_t const count = queries.count(i);
    page.set_score(token, count > 0 ? score_of(importances[i - 1], count) : 0.0f);
    page.set_position(token, i - 1);
    if (i > n - shape.window) { cache.state.window_slot(row.row, i - 1) = at; }
  }
  return {next, claimed.end()};
}

//! Stores one layer of an admitted prompt: all heads. A slot that was not admitted is one with a prompt
//! of no tokens: nothing is stored.
//! @param key, value   [num_tokens, num_heads, head_dim] f16, bf16 or f32; any strides
//! @param importances  [num_heads, num_tokens] f32 (host/prefill_attention.hpp makes them)
//! @throws invalid_argument for a slot or layer out of range, or a layer that has no prompt waiting to
//!         be stored (it was stored before), before anything is changed
//! @cost   O(num_tokens * num_heads * head_dim)
template <class Policy, class T, class Executor = sequential>
void store_prompt(context const& ctx, std::uint32_t slot, std::uint32_t layer, Policy const& policy,
                  vectors<T> key, vectors<T> value, float const* importances,
                  Executor const& executor = {})
{
  cache_ref const& cache = ctx.cache;
  detail::expect_slot(cache.shape, slot);
  detail::expect_layer(cache.shape, layer);
  auto const n = static_cast<std::size_t>(cache.layer(slot, layer).queries.prompt_tokens);
  tier_counts const claimed{cache.tiers.most_pages(static_cast<std::uint32_t>(n)), 0};
  for (std::uint32_t head = 0; head < cache.shape.num_heads; ++head) {
    row_state const& row = cache.state.rows[cache.shape.row(slot, layer, head)];
    DIFFKV_EXPECTS(row.tokens.sum() == 0 && row.pages == claimed,
                   "layer: " + std::to_string(layer) + " of slot " + std::to_string(slot) +
                     " has no prompt waiting to be stored");
  }
  std::vector<std::vector<page_id>> surplus(cache.shape.num_heads);
  executor(cache.shape.num_heads, [&](std::size_t head) {
    surplus[head] = store_prompt_row(ctx, slot, layer, static_cast<std::uint32_t>(head), policy,
                                     key, value, importances + head * n);
  });
  for (auto const& ids : surplus) { release(cache.ring, ids.data(), ids.size()); }
}

//! Gives back all pages of the sequences in `slots` and forgets them. Free slots are no error.
//! @throws invalid_argument for a slot out of range, before anything is changed
inline release_report release_slots(context const& ctx, std::uint32_t const* slots,
                                    std::uint32_t count)
{
  cache_ref const& cache = ctx.cache;
  for (std::uint32_t s = 0; s < count; ++s) { detail::expect_slot(cache.shape, slots[s]); }
  release_report report{};
  std::vector<page_id> ids;
  for (std::uint32_t s = 0; s < count; ++s) {
    ids.clear();
    std::size_t const first = cache.shape.row(slots[s], 0, 0);
    for (std::size_t r = first; r < first + cache.shape.rows_per_slot(); ++r) {
      tier_counts const pages = cache.state.rows[r].pages;
      for (tier t : {tier::high, tier::low}) {
        for (std::uint32_t p = 0; p < pages.of(t); ++p) {
          ids.push_back(cache.table.entry(r, t, p));
          cache.table.entry(r, t, p) = no_page;
        }
      }
    }
    release_report const one = release(cache.ring, ids.data(), ids.size());
    report.released += one.released;
    report.foreign += one.foreign;
    report.repeated += one.repeated;
    detail::reset_slot(cache, slots[s]);
  }
  return report;
}

}  // namespace diffkv::host
