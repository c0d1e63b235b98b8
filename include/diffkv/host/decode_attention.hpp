// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention over the mixed pages of a row: softmax(q.K^T * scale).V over exactly the tokens
//! kept, in the values that their codes stand for.
//! Read before this: host/scores.hpp.  Read next: host/decode_plan.hpp.
#include <diffkv/attention/softmax_state.hpp>
#include <diffkv/core/vectors.hpp>
#include <diffkv/host/scores.hpp>

#include <optional>
#include <vector>

namespace diffkv::host {

//! The q_heads of one row: conditioned queries, and what they give.
struct row_queries {
  std::vector<float> q;       //!< [group_size, head_dim] q'
  std::vector<float> offset;  //!< [group_size] scale * q.c
  std::int32_t position = 0;  //!< t: tokens behind it do not exist, the sliding window ends at it
};

struct row_result {
  std::vector<float> out;  //!< [group_size, head_dim], still in the conditioned domain
  std::vector<float> lse;  //!< [group_size], over the conditioned logits
};

//! The run of tokens that begins at stored token `begin` (high slots, then low slots).
struct tile {
  tier of{};
  page_run run{};
};

[[nodiscard]] inline tile tile_at(row_view const& row, std::uint32_t begin, std::uint32_t last,
                                  std::uint32_t most) noexcept
{
  std::uint32_t const num_high = row.state().tokens.high;
  tier const t                 = begin < num_high ? tier::high : tier::low;
  std::uint32_t const end      = t == tier::high && num_high < last ? num_high : last;
  most                         = most < end - begin ? most : end - begin;
  return {t, row.run(t, t == tier::high ? begin : begin - num_high, most)};
}

//! Attention of one row over its stored tokens first .. last - 1 (high slots, then low slots), tile by
//! tile: one running maximum and sum per q_head. No token gives 0 and lse = -inf.
[[nodiscard]] inline row_result attend_part(context const& ctx, row_view const& row,
                                            row_queries const& queries,
                                            attention_options const& options, std::uint32_t first,
                                            std::uint32_t last, row_scorer const* scorer = nullptr)
{
  constexpr std::uint32_t tile_tokens = 32;
  cache_shape const& shape            = ctx.cache.shape;
  auto const dim                      = static_cast<std::size_t>(shape.head_dim);
  row_result result{std::vector<float>(shape.group_size * dim), {}};
  std::vector<softmax_state> softmax(shape.group_size);
  std::vector<float> logits(std::size_t{tile_tokens} * shape.group_size);
  std::vector<float> x(tile_tokens * dim);  // keys, then values

  for (std::uint32_t begin = first; begin < last;) {
    auto const [t, part]    = tile_at(row, begin, last, tile_tokens);
    page_codec const& codec = ctx.codec(t);
    auto const count        = static_cast<int>(part.count);
    begin += part.count;
    codec.read_keys(part.page.bytes, part.token, count, x.data());
    if (scorer != nullptr) { scorer->add(t, part, x.data()); }
    for (std::uint32_t i = 0; i < part.count; ++i) {
      bool const seen = in_sliding_window(part.page.position(part.token + static_cast<int>(i)),
                                          queries.position, options);
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        float const product =
          options.scale * dot(queries.q.data() + g * dim, x.data() + i * dim, shape.head_dim);
        logits[g * tile_tokens + i] =
          seen ? logit_of(product, queries.offset[g], options) : minus_infinity;
      }
    }
    for (std::uint32_t g = 0; g < shape.group_size; ++g) {
      float factor = 1.0f;
      for (std::uint32_t i = 0; i < part.count; ++i) {
        factor *= softmax[g].raise(logits[g * tile_tokens + i]);
      }
      for (std::size_t d = 0; d < dim; ++d) { result.out[g * dim + d] *= factor; }
    }
    codec.read_values(part.page.bytes, part.token, count, x.data());
    for (std::uint32_t g = 0; g < shape.group_size; ++g) {
      float* const weights = logits.data() + g * tile_tokens;  // in place of the logits
      for (std::uint32_t i = 0; i < part.count; ++i) {
        // Outside the window: its value may be anything.
        weights[i] = weights[i] == minus_infinity ? left_out : softmax[g].add(weights[i]);
      }
      add_weighted(result.out.data() + g * dim, weights, x.data(), count, shape.head_dim);
    }
  }
  for (std::uint32_t g = 0; g < shape.group_size; ++g) {
    result.lse.push_back(softmax[g].log_sum_exp());
    for (std::size_t d = 0; softmax[g].sum != 0.0f && d < dim; ++d) {
      result.out[g * dim + d] /= softmax[g].sum;
    }
  }
  return result;
}

//! Conditions the queries of one row.
//! @param query  [count, num_q_heads, head_dim]; `index` is the sequence's place in the batch
template <class T>
[[nodiscard]] row_queries condition_queries(context const& ctx, std::size_t index,
                                            std::uint32_t slot, std::uint32_t layer,
                                            std::uint32_t head, attention_options const& options,
                                            vectors<T> query)
{
  cache_ref const& cache    = ctx.cache;
  cache_shape const& shape  = cache.shape;
  auto const dim            = static_cast<std::size_t>(shape.head_dim);
  float const* const centre = cache.key_offset(layer, head);
  bool const centred        = has(cache.conditioned, conditioning::centred);
  row_queries queries{
    std::vector<float>(shape.group_size * dim), {}, cache.layer(slot, layer).num_tokens - 1};
  for (std::uint32_t g = 0; g < shape.group_size; ++g) {
    T* const from = query.at(static_cast<std::ptrdiff_t>(index), head * shape.group_size + g);
    float* q      = queries.q.data() + g * dim;
    for (std::size_t d = 0; d < dim; ++d) { q[d] = to_f32(from[d]); }
    queries.offset.push_back(centred ? options.scale * dot(q, centre, shape.head_dim) : 0.0f);
    condition_rotation(q, shape.head_dim, cache.conditioned);
  }
  return queries;
}

//! Part `part` of `splits` of a row; the parts together are its stored tokens.
[[nodiscard]] inline row_result attend_split(context const& ctx, row_view const& row,
                                             row_queries const& queries,
                                             attention_options const& options, std::uint64_t part,
                                             std::uint64_t splits,
                                             row_scorer const* scorer = nullptr)
{
  std::uint64_t const tokens = row.state().tokens.sum();
  return attend_part(ctx, row, queries, options, static_cast<std::uint32_t>(tokens * part / splits),
                     static_cast<std::uint32_t>(tokens * (part + 1) / splits), scorer);
}

//! The whole row from its parts.
[[nodiscard]] inline row_result merge_parts(row_result* parts, std::size_t num_parts,
                                            std::int32_t head_dim)
{
  row_result result = std::move(parts[0]);
  auto const dim    = static_cast<std::size_t>(head_dim);
  for (std::size_t part = 1; part < num_parts; ++part) {
    for (std::size_t g = 0; g < result.lse.size(); ++g) {
      merge(result.out.data() + g * dim, result.lse[g], parts[part].out.data() + g * dim,
            parts[part].lse[g], head_dim);
    }
  }
  return result;
}

//! Decode attention of one layer for the sequences in `slots`; with `record` also the score path:
//! log-sum-exp into the lag ring, scores of the due queries, new candidates at a catch-up.
//! @param slots   [count] different slots; the query's position is that of the slot's last token. The first
//!                one decides when all catch up (catch_up_schedule): the whole batch in one call gives the
//!                scores that the device gives it
//! @param query   [count, num_q_heads, head_dim], rotary embedding applied, not conditioned
//! @param out     [count, num_q_heads, head_dim]; a slot without tokens gives 0
//! @param lse     [count, num_q_heads] f32 natural logarithm, or null; -inf for a slot without tokens
//! @param record  false: only attention. true: the score path of sequences that the step has given a place,
//!                whose token and query `append` has stored
//! @throws invalid_argument for a slot or layer out of range or splits < 1, before anything is written
//! @cost   O(tokens kept * num_q_heads * head_dim) per sequence
//! @error  per element within docs/numerics.md
template <class Policy, class T, class Out, class Executor = sequential>
void decode_attention(context const& ctx, std::uint32_t const* slots, std::uint32_t count,
                      std::uint32_t layer, Policy const& policy, attention_options const& options,
                      vectors<T> query, vectors<Out> out, float* lse, bool record,
                      Executor const& executor = {})
{
  cache_ref const& cache   = ctx.cache;
  cache_shape const& shape = cache.shape;
  detail::expect_layer(shape, layer);
  for (std::uint32_t s = 0; s < count; ++s) { detail::expect_slot(shape, slots[s]); }
  DIFFKV_EXPECTS(options.splits >= 1,
                 "splits: " + std::to_string(options.splits) + " must be at least 1");
  auto const dim         = static_cast<std::size_t>(shape.head_dim);
  bool const keep_scores = record && shape.score_every > 0;
  DIFFKV_EXPECTS(
    !keep_scores || !options.exact_lagged_queries || cache.queries.rounding == lag_rounding::none,
    "options: exact_lagged_queries must be false where the lag ring holds 8-bit codes "
    "(cache_options::exact_lagged_queries)");

  std::size_t const num_rows = std::size_t{count} * shape.num_heads;
  auto const row_at          = [&](std::size_t index) {
    return ctx.row(shape.row(slots[index / shape.num_heads], layer,
                                      static_cast<std::uint32_t>(index % shape.num_heads)));
  };
  std::size_t longest = 1;
  for (std::size_t index = 0; index < num_rows; ++index) {
    longest = diffkv::detail::max_of<std::size_t>(longest, row_at(index).state().tokens.sum());
  }
  // More parts than tokens would be empty ones.
  std::size_t const splits =
    diffkv::detail::min_of(static_cast<std::size_t>(options.splits), longest);
  // Whether the step gave the sequence a place for its token, as it does for all of its rows.
  auto const is_stored = [&](std::size_t s) {
    return cache.state.rows[shape.row(slots[s], layer, 0)].append_slot != no_slot;
  };
  catch_up_turn const turn = detail::turn_in(cache, slots, count, layer);
  auto const due_in        = [&](std::size_t s) {
    layer_state const& state = cache.layer(slots[s], layer);
    if (!keep_scores || state.num_tokens == 0 || !is_stored(s)) { return due_queries{}; }
    return turn.queries_due(state);
  };
  std::vector<row_queries> queries_of(num_rows);
  std::vector<std::optional<row_scorer>> scorers(num_rows);
  std::vector<row_result> parts(num_rows * splits);
  for (std::size_t index = 0; index < num_rows; ++index) {  // less work than handing it out
    std::size_t const s   = index / shape.num_heads;
    auto const head       = static_cast<std::uint32_t>(index % shape.num_heads);
    due_queries const due = due_in(s);
    queries_of[index]     = condition_queries(ctx, s, slots[s], layer, head, options, query);
    if (due.first < due.last) {
      scorers[index].emplace(cache, shape.layer_of(slots[s], layer), head, due, options);
    }
  }
  executor(num_rows * splits, [&](std::size_t i) {
    std::size_t const index = i / splits;
    parts[i] = attend_split(ctx, row_at(index), queries_of[index], options, i % splits, splits,
                            scorers[index] ? &*scorers[index] : nullptr);
  });
  auto const finish = [&](std::size_t index) {
    auto const s               = static_cast<std::uint32_t>(index / shape.num_heads);
    auto const head            = static_cast<std::uint32_t>(index % shape.num_heads);
    row_view const row         = row_at(index);
    layer_state const state    = cache.layer(slots[s], layer);
    row_queries const& queries = queries_of[index];
    row_result result          = merge_parts(parts.data() + index * splits, splits, shape.head_dim);

    for (std::uint32_t g = 0; g < shape.group_size; ++g) {
      std::uint32_t const q_head = head * shape.group_size + g;
      if (keep_scores && state.num_tokens > 0 && is_stored(s)) {
        std::size_t const i =
          cache.queries.index(shape.layer_of(slots[s], layer), queries.position, q_head);
        cache.queries.lse[i]           = result.lse[g];
        cache.queries.offset_logits[i] = queries.offset[g];
      }
      if (lse != nullptr) {
        float const correction = options.soft_cap > 0.0f ? 0.0f : queries.offset[g];
        lse[std::size_t{s} * shape.num_q_heads() + q_head] = result.lse[g] + correction;
      }
      float* const o = result.out.data() + g * dim;
      condition_rotation(o, shape.head_dim, cache.conditioned);
      Out* const to = out.at(s, q_head);
      for (std::size_t d = 0; d < dim; ++d) { from_f32(o[d], to[d]); }
    }

    due_queries const due = due_in(s);
    if (!due.catches_up) { return; }
    query_span after = state.queries;
    after.last_query = diffkv::detail::max_of(after.last_query, due.last);
    refresh_candidates(ctx, row, policy, after, state.num_tokens);
  };
  bool catches_up = false;
  for (std::uint32_t s = 0; s < count; ++s) { catches_up = catches_up || due_in(s).catches_up; }
  if (catches_up) {
    executor(num_rows, finish);
  } else {
    for (std::size_t index = 0; index < num_rows; ++index) { finish(index); }
  }

  for (std::uint32_t s = 0; s < count; ++s) {
    due_queries const due = due_in(s);
    if (!due.catches_up) { continue; }
    std::int32_t& last_query = cache.layer(slots[s], layer).queries.last_query;
    last_query               = diffkv::detail::max_of(last_query, due.last);
  }
}

}  // namespace diffkv::host
