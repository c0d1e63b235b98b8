// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode attention over the mixed pages of a row: softmax(q.K^T * scale).V over exactly the tokens
//! kept, in the values that their codes stand for.
//! Read before this: host/scores.hpp.  Read next: host/prefill_attention.hpp.
#include <diffkv/attention/softmax_state.hpp>
#include <diffkv/host/scores.hpp>

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

//! Stored tokens of a row that lie in one page, one after the other.
struct tile {
  tier of{};
  page_view page{};
  int token           = 0;  //!< the first, counted within the page
  std::uint32_t count = 0;
};

//! The tile that begins at stored token `begin` (high slots, then low slots) and ends before `last`.
[[nodiscard]] inline tile tile_at(row_view const& row, std::uint32_t begin, std::uint32_t last,
                                  std::uint32_t most_tokens) noexcept
{
  std::uint32_t const num_high = row.state().tokens.high;
  bool const is_high           = begin < num_high;
  tier const t                 = is_high ? tier::high : tier::low;
  slot_index const slot        = is_high ? begin : begin - num_high;
  int const token              = row.token_in_page(t, slot);
  std::uint32_t const in_page =
    row.cache->tiers.tokens_per_page(t) - static_cast<std::uint32_t>(token);
  std::uint32_t count = is_high && last > num_high ? num_high - begin : last - begin;
  count               = count < in_page ? count : in_page;
  return {t, row.page_of(t, slot), token, count < most_tokens ? count : most_tokens};
}

//! Attention of one row over its stored tokens first .. last - 1 (high slots, then low slots), tile by
//! tile: one running maximum and sum per q_head. No token gives 0 and lse = -inf.
[[nodiscard]] inline row_result attend_part(context const& ctx, row_view const& row,
                                            row_queries const& queries,
                                            attention_options const& options, std::uint32_t first,
                                            std::uint32_t last)
{
  constexpr std::uint32_t tile_tokens = 64;
  cache_shape const& shape            = ctx.cache.shape;
  auto const dim                      = static_cast<std::size_t>(shape.head_dim);
  row_result result{std::vector<float>(shape.group_size * dim), {}};
  std::vector<softmax_state> softmax(shape.group_size);
  std::vector<float> logits(std::size_t{tile_tokens} * shape.group_size);
  std::vector<float> x(dim);

  for (std::uint32_t begin = first; begin < last;) {
    tile const part         = tile_at(row, begin, last, tile_tokens);
    page_codec const& codec = ctx.codec(part.of);
    begin += part.count;
    for (std::uint32_t i = 0; i < part.count; ++i) {
      int const token = part.token + static_cast<int>(i);
      bool const seen = in_sliding_window(part.page.position(token), queries.position, options);
      codec.read_key(part.page.bytes, token, x.data());
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        float const product =
          options.scale * dot(queries.q.data() + g * dim, x.data(), shape.head_dim);
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
    for (std::uint32_t i = 0; i < part.count; ++i) {
      codec.read_value(part.page.bytes, part.token + static_cast<int>(i), x.data());
      for (std::uint32_t g = 0; g < shape.group_size; ++g) {
        float const logit = logits[g * tile_tokens + i];
        if (logit == minus_infinity) { continue; }  // outside the window: its value may be anything
        add_scaled(result.out.data() + g * dim, softmax[g].add(logit), x.data(), shape.head_dim);
      }
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

//! The whole row in `options.splits` parts, merged.
[[nodiscard]] inline row_result attend_row(context const& ctx, row_view const& row,
                                           row_queries const& queries,
                                           attention_options const& options)
{
  auto const dim             = static_cast<std::size_t>(ctx.cache.shape.head_dim);
  std::uint64_t const tokens = row.state().tokens.sum();
  auto const splits          = static_cast<std::uint64_t>(options.splits);
  row_result result{};
  for (std::uint64_t part = 0; part < splits; ++part) {
    row_result one =
      attend_part(ctx, row, queries, options, static_cast<std::uint32_t>(tokens * part / splits),
                  static_cast<std::uint32_t>(tokens * (part + 1) / splits));
    if (part == 0) {
      result = std::move(one);
      continue;
    }
    for (std::size_t g = 0; g < result.lse.size(); ++g) {
      merge(result.out.data() + g * dim, result.lse[g], one.out.data() + g * dim, one.lse[g],
            ctx.cache.shape.head_dim);
    }
  }
  return result;
}

//! Decode attention of one layer for the sequences in `slots`; with `record` also the score path:
//! log-sum-exp into the lag ring, scores of the due queries, new candidates at a catch-up.
//! @param slots   [count] different slots; the query's position is that of the slot's last token
//! @param query   [count, num_q_heads, head_dim], rotary embedding applied, not conditioned
//! @param out     [count, num_q_heads, head_dim]; a slot without tokens gives 0
//! @param lse     [count, num_q_heads] f32 natural logarithm, or null; -inf for a slot without tokens
//! @param record  false: only attention; true needs that `append` stored this token and query
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

  executor(std::size_t{count} * shape.num_heads, [&](std::size_t index) {
    auto const s              = static_cast<std::uint32_t>(index / shape.num_heads);
    auto const head           = static_cast<std::uint32_t>(index % shape.num_heads);
    row_view const row        = ctx.row(shape.row(slots[s], layer, head));
    layer_state const state   = cache.layer(slots[s], layer);
    float const* const centre = cache.key_offset(layer, head);

    row_queries queries{std::vector<float>(shape.group_size * dim), {}, state.num_tokens - 1};
    for (std::uint32_t g = 0; g < shape.group_size; ++g) {
      T* const from = query.at(s, head * shape.group_size + g);
      float* q      = queries.q.data() + g * dim;
      for (std::size_t d = 0; d < dim; ++d) { q[d] = to_f32(from[d]); }
      bool const centred = has(cache.conditioned, conditioning::centred);
      queries.offset.push_back(centred ? options.scale * dot(q, centre, shape.head_dim) : 0.0f);
      condition_rotation(q, shape.head_dim, cache.conditioned);
    }

    row_result result = attend_row(ctx, row, queries, options);

    for (std::uint32_t g = 0; g < shape.group_size; ++g) {
      std::uint32_t const q_head = head * shape.group_size + g;
      if (keep_scores && state.num_tokens > 0) {
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

    due_queries const due = queries_due(queries.position, layer, shape.score_every, state.queries);
    if (!keep_scores || !due.catches_up || state.num_tokens == 0) { return; }
    add_scores(ctx, row, slots[s], layer, head, due, options);
    query_span after = state.queries;
    after.last_query = diffkv::detail::max_of(after.last_query, due.last);
    refresh_candidates(ctx, row, policy, after, state.num_tokens);
  });

  for (std::uint32_t s = 0; keep_scores && s < count; ++s) {
    layer_state& state = cache.layer(slots[s], layer);
    due_queries const due =
      queries_due(state.num_tokens - 1, layer, shape.score_every, state.queries);
    if (due.catches_up && state.num_tokens > 0) {
      state.queries.last_query = diffkv::detail::max_of(state.queries.last_query, due.last);
    }
  }
}

}  // namespace diffkv::host
