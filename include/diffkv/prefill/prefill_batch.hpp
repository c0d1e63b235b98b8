// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The prompts, or chunks of prompts, of one launch, and which of their queries importance counts.
//! Read before this: attention/decode.cuh.  Read next: prefill/prefill_part.cuh.
#include <diffkv/core/error.hpp>         // DIFFKV_EXPECTS
#include <diffkv/detail/arithmetic.hpp>  // ceil_div, min_of

#include <cstdint>
#include <string>

namespace diffkv {

//! Heads of prompt attention; head_dim is a template parameter.
struct prefill_shape {
  std::uint32_t num_heads  = 1;
  std::uint32_t group_size = 1;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t num_q_heads() const noexcept
  {
    return num_heads * group_size;
  }
};

//! Sequences of one launch, each with some consecutive tokens of its prompt: all of them, or the
//! next chunk. The arrays lie in device memory, so that a captured graph serves other batches.
//! Sequence s has n = first_queries[s + 1] - first_queries[s] queries, which lie one after the
//! other in query and out; they stand at the positions positions[s] .. positions[s] + n - 1. Its
//! token i is token first_keys[s] + i of key, value, sums and importances: all tokens up to the
//! last query's are there.
//! @pre  positions[s] + n <= prompt_tokens[s]; no two sequences share tokens of keys
struct prefill_batch {
  std::uint32_t capacity            = 0;  //!< sequences; those without queries are passed over
  std::int64_t const* first_queries = nullptr;  //!< [capacity + 1], ascending
  std::int32_t const* positions  = nullptr;  //!< [capacity]; null: 0, whole prompts or first chunks
  std::int64_t const* first_keys = nullptr;  //!< [capacity]; null: first_queries
  std::int32_t const* prompt_tokens =
    nullptr;                     //!< [capacity]; null: each prompt ends with this launch
  std::int64_t num_queries = 0;  //!< tokens of query and out; at least those of the batch
  //! Tokens that key, value, sums and importances have room for, and the stride of the last two: the same in
  //! all launches of a prompt. 0, without first_keys alone: num_queries. When a graph is captured, these two
  //! and `capacity` are bounds that its replays stay within.
  std::int64_t num_keys = 0;

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int64_t key_tokens() const noexcept
  {
    return num_keys > 0 ? num_keys : num_queries;
  }
};

//! Which queries of a prompt importance counts; all of them by default (the paper).
struct importance_queries {
  std::int32_t last  = 0;  //!< > 0: only the last so many of the prompt (the artifact: 64)
  std::int32_t every = 1;  //!< > 1: a sample, every n-th, counted back from the prompt's last one

  //! Queries that count for the token at `position` of a prompt: those later than it.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t count(
    std::int32_t prompt_tokens, std::int32_t position) const noexcept
  {
    std::int32_t const later = prompt_tokens - 1 - position;
    std::int32_t const among = last > 0 ? detail::min_of(last, later) : later;
    return among > 0 ? (among - 1) / every + 1 : 0;
  }
};
static_assert(importance_queries{}.count(10, 0) == 9 && importance_queries{}.count(10, 9) == 0);
static_assert(importance_queries{64, 1}.count(100, 0) == 64);
static_assert(importance_queries{64, 1}.count(100, 90) == 9);
static_assert(importance_queries{0, 8}.count(17, 0) == 2 &&
              importance_queries{0, 8}.count(18, 0) == 3);

namespace detail {

//! The queries of one launch that count, at the positions first, first + every, ...
struct query_sample {
  std::int32_t first = 0;
  std::int32_t every = 1;
  std::int32_t count = 0;

  //! @param num_queries  of the sequence in this launch, the first one at `position`
  [[nodiscard]] DIFFKV_HOST_DEVICE static constexpr query_sample of(
    importance_queries const& which, std::int32_t prompt_tokens, std::int32_t position,
    std::int32_t num_queries) noexcept
  {
    std::int32_t const after = prompt_tokens - position - num_queries;
    if (num_queries <= 0 || after < 0) { return {}; }
    std::int32_t const every = min_of(which.every, prompt_tokens);
    std::int32_t const from  = prompt_tokens - position;
    std::int32_t const last  = which.last > 0 ? min_of(which.last, from) : from;
    // Numbered back from the prompt's last query, those of this launch are newest .. end - 1.
    std::int32_t const newest = ceil_div(after, every);
    std::int32_t const end    = ceil_div(last, every);
    if (end <= newest) { return {}; }
    return {prompt_tokens - 1 - every * (end - 1), every, end - newest};
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t position(std::int32_t i) const noexcept
  {
    return first + every * i;
  }
  //! The first of them that is later than `position`; may be `count` or more.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t first_after(
    std::int32_t position) const noexcept
  {
    return position < first ? 0 : (position - first) / every + 1;
  }
};
static_assert(query_sample::of({}, 10, 0, 10).count == 10);
static_assert(query_sample::of({0, 4}, 10, 0, 10).first == 1);    // 1, 5, 9
static_assert(query_sample::of({0, 4}, 10, 2, 5).first == 5);     // of 2 .. 6
static_assert(query_sample::of({64, 1}, 100, 0, 36).count == 0);  // the last 64 come later
static_assert(query_sample::of({64, 1}, 100, 30, 20).first == 36);
static_assert(query_sample::of({0, 4}, 10, 0, 10).first_after(5) == 2);
static_assert(query_sample::of({9, 2147483647}, 10, 0, 10).first == 9);

//! @throws invalid_argument naming what cannot be; what lies in device memory is not looked at
inline void validate(prefill_shape const& shape, prefill_batch const& batch)
{
  DIFFKV_EXPECTS(shape.num_heads > 0 && shape.group_size > 0,
                 "shape: at least one head and one q_head per head are needed");
  DIFFKV_EXPECTS(batch.num_queries >= 0 && batch.num_keys >= 0,
                 "batch: num_queries and num_keys must not be negative");
  DIFFKV_EXPECTS(
    batch.first_queries != nullptr || batch.capacity == 0,
    "batch: first_queries is null, but there are " + std::to_string(batch.capacity) + " sequences");
  DIFFKV_EXPECTS(batch.first_keys != nullptr || batch.positions == nullptr,
                 "batch: first_keys is needed where positions are given");
  DIFFKV_EXPECTS(batch.first_keys == nullptr || batch.num_keys > 0 || batch.capacity == 0,
                 "batch: num_keys is needed where first_keys are given");
  DIFFKV_EXPECTS(batch.first_keys != nullptr || batch.key_tokens() >= batch.num_queries,
                 "batch: num_keys must not be less than num_queries without first_keys");
}

//! @throws as above
inline void validate(importance_queries const& which)
{
  DIFFKV_EXPECTS(which.last >= 0,
                 "queries: last must be 0 (all) or more, is " + std::to_string(which.last));
  DIFFKV_EXPECTS(which.every >= 1,
                 "queries: every must be 1 (all) or more, is " + std::to_string(which.every));
}

}  // namespace detail
}  // namespace diffkv
