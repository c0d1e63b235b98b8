// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores from earlier queries, and the tokens that may leave: the second half of a decode launch.
//! Read before this: host/logit.hpp.  Read next: host/decode_attention.hpp.
#include <diffkv/attention/score_update.hpp>
#include <diffkv/host/context.hpp>
#include <diffkv/host/dot.hpp>
#include <diffkv/host/logit.hpp>
#include <diffkv/policy/contract.hpp>

#include <vector>

namespace diffkv::host {

//! Makes the candidates of one row anew: per tier, and per page ordinal mod candidates_per_tier, the
//! eligible token that goes first.
//! @param queries     which queries the scores hold now
//! @param num_tokens  N: the token being decoded included
template <class Policy>
void refresh_candidates(context const& ctx, row_view const& row, Policy const& policy,
                        query_span const& queries, std::int32_t num_tokens)
{
  cache_ref const& cache = ctx.cache;
  for (tier t : {tier::high, tier::low}) {
    std::uint32_t const places = cache.state.candidates_per_tier;
    candidate* best            = cache.state.candidates_of(row.row, t);
    for (std::uint32_t i = 0; i < places; ++i) { best[i] = candidate{}; }
    std::uint32_t const num_tokens_in_tier = row.state().tokens.of(t);
    for (slot_index begin = 0; begin < num_tokens_in_tier;) {
      page_run const run = row.run(t, begin, num_tokens_in_tier - begin);
      candidate& place   = best[begin / cache.tiers.tokens_per_page(t) % places];  // by page
      for (std::uint32_t i = 0; i < run.count; ++i) {
        int const token             = run.token + static_cast<int>(i);
        std::int32_t const position = run.page.position(token);
        std::int32_t const count    = queries.count(position + 1);
        if (!may_leave(t, position, num_tokens - 1, cache.shape.window, count)) { continue; }
        float const importance = importance_of(run.page.score(token), count);
        if (diffkv::detail::is_nan(importance)) { continue; }
        candidate const c{position, begin + i,
                          policy.priority(importance, position + 1, num_tokens)};
        if (c.before(place)) { place = c; }
      }
      begin += run.count;
    }
  }
}

//! Candidates of all rows of one (sequence, layer) from the scores as they are: after a prompt, and
//! before each step where score_every = 0.
//! @throws invalid_argument for a slot or layer out of range
template <class Policy>
void scan_candidates(context const& ctx, std::uint32_t slot, std::uint32_t layer,
                     Policy const& policy)
{
  detail::expect_slot(ctx.cache.shape, slot);
  detail::expect_layer(ctx.cache.shape, layer);
  layer_state const& state = ctx.cache.layer(slot, layer);
  for (std::uint32_t head = 0; head < ctx.cache.shape.num_heads; ++head) {
    refresh_candidates(ctx, ctx.row(ctx.cache.shape.row(slot, layer, head)), policy, state.queries,
                       state.num_tokens);
  }
}

//! A query of the lag ring, as the logits of one tier see it.
struct lagged_query {
  std::vector<float> codes;  //!< [head_dim] q', or its 8-bit codes
  float factor = 0.0f;       //!< logit = factor * codes.k'
  float offset = 0.0f;       //!< scale * q.c
  float lse    = 0.0f;       //!< of the unrounded query, not corrected
};

[[nodiscard]] inline lagged_query make_lagged_query(cache_ref const& cache, std::size_t layer_index,
                                                    std::int32_t position, std::uint32_t q_head,
                                                    lag_rounding rounding,
                                                    attention_options const& options)
{
  auto const dim      = static_cast<std::size_t>(cache.shape.head_dim);
  float const* q      = cache.queries.query(layer_index, position, q_head);
  std::size_t const i = cache.queries.index(layer_index, position, q_head);
  lagged_query lagged{
    {q, q + dim}, options.scale, cache.queries.offset_logits[i], cache.queries.lse[i]};
  if (rounding == lag_rounding::none) { return lagged; }
  float largest = 0.0f;
  for (float x : lagged.codes) { largest = std::fabs(x) > largest ? std::fabs(x) : largest; }
  for (float& x : lagged.codes) { x = int8_query_code(x, largest); }
  lagged.factor = int8_query_factor(options.scale, largest);
  return lagged;
}

//! Adds the probabilities of the due queries to the scores of one row: each query adds the maximum
//! over the q_heads of the group, only to tokens older than itself. Probabilities that are not finite
//! are skipped.
inline void add_scores(context const& ctx, row_view const& row, std::uint32_t slot,
                       std::uint32_t layer, std::uint32_t head, due_queries const& due,
                       attention_options const& options)
{
  cache_ref const& cache              = ctx.cache;
  cache_shape const& shape            = cache.shape;
  constexpr std::uint32_t tile_tokens = 32;
  auto const dim                      = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> keys(tile_tokens * dim);
  for (tier t : {tier::high, tier::low}) {
    if (row.state().tokens.of(t) == 0) { continue; }
    lag_rounding const rounding = options.exact_lagged_queries
                                    ? lag_rounding::none
                                    : default_lag_rounding(cache.tiers.of(t).format.key);
    std::vector<lagged_query> lagged;  // [due, group_size]
    for (std::int32_t j = due.first; j < due.last; ++j) {
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        lagged.push_back(make_lagged_query(cache, shape.layer_of(slot, layer), j,
                                           head * shape.group_size + g, rounding, options));
      }
    }
    std::uint32_t const num_tokens = row.state().tokens.of(t);
    for (slot_index begin = 0; begin < num_tokens;) {
      std::uint32_t const left = num_tokens - begin;
      page_run const run       = row.run(t, begin, left < tile_tokens ? left : tile_tokens);
      begin += run.count;
      ctx.codec(t).read_keys(run.page.bytes, run.token, static_cast<int>(run.count), keys.data());
      for (std::uint32_t i = 0; i < run.count; ++i) {
        int const token             = run.token + static_cast<int>(i);
        float const* const key      = keys.data() + i * dim;
        std::int32_t const position = run.page.position(token);
        float score                 = run.page.score(token);
        lagged_query const* q       = lagged.data();
        for (std::int32_t j = due.first; j < due.last; ++j, q += shape.group_size) {
          if (position >= j || !in_sliding_window(position, j, options)) { continue; }
          float largest = 0.0f;
          for (std::uint32_t g = 0; g < shape.group_size; ++g) {
            float const product = q[g].factor * dot(q[g].codes.data(), key, shape.head_dim);
            float const p       = std::exp(logit_of(product, q[g].offset, options) - q[g].lse);
            largest             = diffkv::detail::is_finite(p) && p > largest ? p : largest;
          }
          score += largest;
        }
        run.page.set_score(token, score);
      }
    }
  }
}

}  // namespace diffkv::host
