// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Scores from earlier queries, and the tokens that may leave: the score path of a decode launch.
//! Read before this: host/lagged_query.hpp.  Read next: host/decode_attention.hpp.
#include <diffkv/attention/score_update.hpp>
#include <diffkv/attention/softmax_state.hpp>  // minus_infinity
#include <diffkv/host/context.hpp>
#include <diffkv/host/dot.hpp>
#include <diffkv/host/lagged_query.hpp>
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

namespace detail {

//! Whose turn it is in a launch of the sequences in `slots`.
[[nodiscard]] inline catch_up_turn turn_in(cache_ref const& cache, std::uint32_t const* slots,
                                           std::uint32_t count, std::uint32_t layer)
{
  bool const first_decides = cache.shape.first_decides() && count > 0;
  return {layer, cache.shape.score_every,
          first_decides ? cache.layer(slots[0], layer).num_tokens : 0};
}

}  // namespace detail

//! The score path of one row: adds the probabilities of the due queries while attention has the keys at
//! hand. Each query adds the maximum over the q_heads of the group, only to tokens older than itself.
//! A q_head whose log-sum-exp is no number is left out, and a maximum that is none adds nothing.
class row_scorer {
 public:
  row_scorer(cache_ref const& cache, std::size_t layer_index, std::uint32_t head,
             due_queries const& due, attention_options const& options)
    : shape_{cache.shape},
      due_{due},
      options_{options},
      high_{queries_for(cache, layer_index, head, cache.tiers.high.format.key)},
      low_{queries_for(cache, layer_index, head, cache.tiers.low.format.key)}
  {}

  //! Scores the tokens of a run.  @param keys  [run.count, head_dim] their decoded keys
  void add(tier t, page_run const& run, float const* keys) const noexcept
  {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      int const token             = run.token + static_cast<int>(i);
      std::int32_t const position = run.page.position(token);
      float score                 = run.page.score(token);
      lagged_query const* q       = (t == tier::high ? high_ : low_).data();
      for (std::int32_t j = due_.first; j < due_.last; ++j, q += shape_.group_size) {
        if (position >= j || !in_sliding_window(position, j, options_)) { continue; }
        score += largest_probability(q, keys + static_cast<std::ptrdiff_t>(i) * shape_.head_dim);
      }
      run.page.set_score(token, score);
    }
  }

 private:
  //! [due, group_size]
  [[nodiscard]] std::vector<lagged_query> queries_for(cache_ref const& cache,
                                                      std::size_t layer_index, std::uint32_t head,
                                                      code_spec key) const
  {
    lag_rounding const rounding =
      options_.exact_lagged_queries ? lag_rounding::none : default_lag_rounding(key);
    std::vector<lagged_query> lagged;
    for (std::int32_t j = due_.first; j < due_.last; ++j) {
      for (std::uint32_t g = 0; g < shape_.group_size; ++g) {
        std::size_t const i = cache.queries.index(layer_index, j, head * shape_.group_size + g);
        lagged.push_back(make_lagged_query(cache.queries, i, rounding, options_));
      }
    }
    return lagged;
  }
  //! Over the q_heads of one query.
  [[nodiscard]] float largest_probability(lagged_query const* q, float const* key) const noexcept
  {
    float largest = minus_infinity;  // exponent
    for (std::uint32_t g = 0; g < shape_.group_size; ++g) {
      if (!diffkv::detail::is_finite(q[g].lse)) { continue; }
      float const product = q[g].factor * dot(q[g].codes.data(), key, shape_.head_dim);
      float const x       = logit_of(product, q[g].offset, options_) - q[g].lse;
      largest             = x > largest ? x : largest;
    }
    float const p = std::exp(largest);
    return diffkv::detail::is_finite(p) ? p : 0.0f;
  }

  cache_shape shape_;
  due_queries due_;
  attention_options options_;
  std::vector<lagged_query> high_;
  std::vector<lagged_query> low_;
};

}  // namespace diffkv::host
