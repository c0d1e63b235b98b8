// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of the write path: decide, claim, requantise and move, reserve; then append.
//! Read before this: host/move_token.hpp.  Read next: host/dot.hpp.
#include <diffkv/compaction/step_plan.hpp>
#include <diffkv/core/vectors.hpp>
#include <diffkv/host/claim.hpp>
#include <diffkv/host/context.hpp>
#include <diffkv/host/lagged_query.hpp>
#include <diffkv/host/move_token.hpp>

#include <vector>

namespace diffkv::host {

//! Carries out the plan of one row. `ids` are the pages claimed for it: high before low.
inline void apply_row_step(context const& ctx, row_view const& row, row_step const& plan,
                           page_id const* ids, std::int32_t position)
{
  cache_ref const& cache = ctx.cache;
  row_state& state       = row.state();
  if (plan.fill_from != no_slot) { copy_token(ctx, row, tier::low, plan.fill_from, plan.fill_to); }
  auto const add_page = [&](tier t, tier other, page_source source) {
    if (source == page_source::none) { return; }
    auto& mine   = t == tier::high ? state.pages.high : state.pages.low;
    auto& theirs = t == tier::high ? state.pages.low : state.pages.high;
    page_id id   = no_page;
    if (source == page_source::ring) {
      id = *ids++;
    } else {
      page_id& spare = cache.table.entry(row.row, other, --theirs);
      id             = spare;
      spare          = no_page;
    }
    cache.table.entry(row.row, t, mine++) = id;
  };
  add_page(tier::high, tier::low, plan.high_page);
  add_page(tier::low, tier::high, plan.low_page);
  if (plan.demote_from != no_slot) { demote_token(ctx, row, plan.demote_from, plan.demote_to); }
  state.tokens                               = plan.tokens_after;
  state.append_slot                          = plan.append_slot;
  cache.state.window_slot(row.row, position) = plan.append_slot;
}

//! Makes room for one more token in every row of the sequences in `slots`, before the layers run.
//! A sequence whose demand cannot be met is refused as a whole: nothing of it changes, its append
//! slots are none, and the scheduler finds it in `refusals`.
//! @param slots     [count] different admitted slots, in the order in which they are served
//! @param refusals  out; either member may be null
//! @return number of sequences refused
//! @throws invalid_argument for a slot out of range or named twice, or a sequence that is at
//!         shape.max_tokens already or whose prompt is not stored, before anything is changed
template <class Policy>
std::uint32_t step(context const& ctx, std::uint32_t const* slots, std::uint32_t count,
                   Policy const& policy, refusals_ref refusals = {})
{
  cache_ref const& cache   = ctx.cache;
  cache_shape const& shape = cache.shape;
  std::uint32_t const rows = shape.rows_per_slot();
  for (std::uint32_t s = 0; s < count; ++s) {
    detail::expect_slot(shape, slots[s]);
    detail::expect_not_named_before([slots](std::uint32_t i) { return slots[i]; }, s);
    DIFFKV_EXPECTS(cache.layer(slots[s], 0).num_tokens < shape.max_tokens,
                   "slot: sequence " + std::to_string(slots[s]) + " is at max_tokens, " +
                     std::to_string(shape.max_tokens));
    // A stored prompt keeps its window, so a row without tokens is one that was not stored.
    for (std::uint32_t r = 0; r < rows; ++r) {
      DIFFKV_EXPECTS(cache.state.rows[shape.row(slots[s], 0, 0) + r].tokens.sum() > 0 ||
                       cache.layer(slots[s], r / shape.num_heads).num_tokens == 0,
                     "slot: the prompt of sequence " + std::to_string(slots[s]) +
                       " is not stored in layer " + std::to_string(r / shape.num_heads));
    }
  }

  std::vector<row_step> plans(std::size_t{count} * rows);
  std::vector<std::uint32_t> demand(plans.size());
  for (std::uint32_t s = 0; s < count; ++s) {
    for (std::uint32_t r = 0; r < rows; ++r) {
      std::uint32_t const layer = r / shape.num_heads;
      std::uint32_t const head  = r % shape.num_heads;
      layer_state const& state  = cache.layer(slots[s], layer);
      std::size_t const i       = std::size_t{s} * rows + r;
      plans[i]  = plan_row_step(policy, ctx.row(shape.row(slots[s], layer, head)), state.queries,
                                state.num_tokens + 1, cache.limits.of(slots[s], layer, head));
      demand[i] = plans[i].demand();
    }
  }

  batch_claim const got = claim_for_batch(cache.ring, demand, count, rows, refusals);

  for (std::uint32_t s = 0; s < count; ++s) {
    std::size_t const first = shape.row(slots[s], 0, 0);
    for (std::uint32_t r = 0; r < rows; ++r) {
      if (got.granted[s] == 0) {
        cache.state.rows[first + r].append_slot = no_slot;
        continue;
      }
      std::size_t const i = std::size_t{s} * rows + r;
      apply_row_step(ctx, ctx.row(first + r), plans[i], got.ids.data() + got.offsets[i],
                     cache.layer(slots[s], r / shape.num_heads).num_tokens);
    }
    for (std::uint32_t l = 0; got.granted[s] != 0 && l < shape.num_layers; ++l) {
      ++cache.layer(slots[s], l).num_tokens;
    }
  }
  return got.refused;
}

//! Encodes the new token of one layer into the slots that `step` reserved, and puts its query into the
//! lag ring. Sequences that were refused are skipped.
//! @param slots       [count]
//! @param key, value  [count, num_heads, head_dim], rotary embedding applied
//! @param query       [count, num_q_heads, head_dim], or null: the lag ring is left alone. Not read
//!                    where score_every = 0
//! @throws invalid_argument for a slot or layer out of range, before anything is changed
template <class T>
void append(context const& ctx, std::uint32_t const* slots, std::uint32_t count,
            std::uint32_t layer, vectors<T> key, vectors<T> value, vectors<T> query)
{
  cache_ref const& cache   = ctx.cache;
  cache_shape const& shape = cache.shape;
  diffkv::host::detail::expect_layer(shape, layer);
  for (std::uint32_t s = 0; s < count; ++s) { detail::expect_slot(shape, slots[s]); }
  bool const has_queries = shape.score_every > 0 && query.data != nullptr;
  std::vector<float> x(static_cast<std::size_t>(shape.head_dim));
  auto const load = [&](T const* from) {
    for (std::int32_t d = 0; d < shape.head_dim; ++d) {
      x[static_cast<std::size_t>(d)] = to_f32(from[d]);
    }
  };
  for (std::uint32_t s = 0; s < count; ++s) {
    std::int32_t const position = cache.layer(slots[s], layer).num_tokens - 1;
    for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
      row_view const row    = ctx.row(shape.row(slots[s], layer, head));
      slot_index const slot = row.state().append_slot;
      if (slot == no_slot) { continue; }
      page_view const page = row.page_of(tier::high, slot);
      int const token      = row.token_in_page(tier::high, slot);
      load(key.at(s, head));
      condition_key(x.data(), cache.key_offset(layer, head), shape.head_dim, cache.conditioned);
      ctx.high.write_key(page.bytes, token, x.data());
      load(value.at(s, head));
      condition_rotation(x.data(), shape.head_dim, cache.conditioned);
      ctx.high.write_value(page.bytes, token, x.data());
      page.set_score(token, 0.0f);
      page.set_position(token, position);

      for (std::uint32_t g = 0; has_queries && g < shape.group_size; ++g) {
        std::uint32_t const q_head = head * shape.group_size + g;
        load(query.at(s, q_head));
        condition_rotation(x.data(), shape.head_dim, cache.conditioned);
        std::size_t const i =
          cache.queries.index(shape.layer_of(slots[s], layer), position, q_head);
        keep_query(cache.queries, i, x.data());
      }
    }
  }
}

}  // namespace diffkv::host
