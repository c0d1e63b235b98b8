// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prompt attention over 16-bit keys and values, and the importance of each token.
//! Read before this: prefill/prefill_launch.cuh.  Read next: host/page_codec.hpp.
//!
//! Three operations, so that an engine with its own attention can take the other two:
//! `prefill_attention` gives out and lse, `add_importance` adds what the queries of a launch give
//! to each token, and `finish_importance` makes importances of the sums. A prompt that comes in
//! chunks calls the first two for each chunk, and the last one with the last chunk or every time.
//! No weight is stored: what importance needs is computed again from queries, keys and lse.
//! Programs with code for sm_90a have kernels of their own for Hopper GPUs (prefill_launch.cuh).
#include <diffkv/prefill/prefill_launch.cuh>

namespace diffkv {
namespace detail {

template <class T, int HeadDim>
constexpr void expect_prefill_types() noexcept
{
  static_assert(is_16_bit_v<T>, "prompt attention takes __half or __nv_bfloat16");
  static_assert(HeadDim == 64 || HeadDim == 80 || HeadDim == 96 || HeadDim == 112 ||
                  HeadDim == 128 || HeadDim == 256,
                "HeadDim must be 64, 80, 96, 112, 128 or 256");
}

//! @throws invalid_argument unless each vector is there and starts at a multiple of 16 bytes
template <class T>
void expect_whole_vectors(vectors<T> const& v, std::int64_t tokens, char const* name)
{
  constexpr auto unit = static_cast<std::ptrdiff_t>(16 / sizeof(T));
  DIFFKV_EXPECTS(v.data != nullptr || tokens == 0, std::string{name} + ": is null");
  DIFFKV_EXPECTS(reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.token_stride % unit == 0 &&
                   v.head_stride % unit == 0,
                 std::string{name} + ": its address and strides must be multiples of 16 bytes");
}

//! `prefill_attention` on a path of the caller's choice.
template <int HeadDim, class T, class Out>
void prefill_attention(prefill_path path, prefill_shape const& shape, prefill_batch const& batch,
                       attention_options const& options, vectors<T const> query,
                       vectors<T const> key, vectors<T const> value, vectors<Out> out, float* lse,
                       launch_site site)
{
  expect_prefill_types<T, HeadDim>();
  validate(shape, batch);
  expect_whole_vectors(query, batch.num_queries, "query");
  expect_whole_vectors(key, batch.num_queries, "key");
  expect_whole_vectors(value, batch.num_queries, "value");
  expect_whole_vectors(out, batch.num_queries, "out");
  if (batch.capacity == 0 || batch.num_queries == 0) { return; }
  attend<HeadDim>(path,
                  prefill_params<T, Out>{batch, prefill_logits::of(options), shape.num_q_heads(),
                                         shape.group_size, query, key, value, out, lse},
                  site);
}

//! `add_importance` on a path of the caller's choice.
template <int HeadDim, class T>
void add_importance(prefill_path path, prefill_shape const& shape, prefill_batch const& batch,
                    attention_options const& options, importance_queries const& counted,
                    vectors<T const> query, vectors<T const> key, float const* lse, float* sums,
                    launch_site site)
{
  expect_prefill_types<T, HeadDim>();
  validate(shape, batch);
  validate(counted);
  expect_whole_vectors(query, batch.num_queries, "query");
  expect_whole_vectors(key, batch.num_queries, "key");
  DIFFKV_EXPECTS(lse != nullptr || batch.num_queries == 0, "lse: is null");
  DIFFKV_EXPECTS(sums != nullptr || batch.num_queries == 0, "sums: is null");
  if (batch.capacity == 0 || batch.num_queries == 0) { return; }
  weigh_tokens<HeadDim>(
    path,
    importance_params<T>{batch, prefill_logits::of(options), counted, shape.num_q_heads(),
                         shape.group_size, query, key, lse, sums},
    site);
}

}  // namespace detail

//! Causal attention of the queries of a batch over the keys and values of their sequences, as
//! host::prefill_attention: each query sees the tokens up to its own position.
//! @tparam HeadDim     64, 80, 96, 112, 128 or 256
//! @tparam T, Out      elements: __half or __nv_bfloat16; Out also float
//! @param  batch       whole prompts or chunks; may be empty, sequences without queries are passed
//!                     over
//! @param  options     `splits` and `exact_lagged_queries` are not read
//! @param  query       [batch.num_queries, num_q_heads, HeadDim], rotary embedding applied
//! @param  key, value  [batch.key_tokens(), num_heads, HeadDim]
//! @param  out         [batch.num_queries, num_q_heads, HeadDim]; only queries of the batch are
//!                     written
//! @param  lse         [num_q_heads, batch.num_queries] f32 natural logarithm, or null
//! @pre    addresses and strides of all vectors are multiples of 16 bytes
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   O(queries * keys * num_q_heads * HeadDim) on the tensor cores, several times less time with code
//!         for sm_90a (docs/prefill_attention.md); no allocation, no plan
//! @error  within docs/numerics.md; a query's bits depend neither on the batch nor on the chunks, unless
//!         a value is not finite in a block of keys that not all queries of its tile see as a whole
template <int HeadDim, class T, class Out>
void prefill_attention(prefill_shape const& shape, prefill_batch const& batch,
                       attention_options const& options, vectors<T const> query,
                       vectors<T const> key, vectors<T const> value, vectors<Out> out, float* lse,
                       cudaStream_t stream)
{
  detail::prefill_attention<HeadDim>(detail::prefill_path::fastest, shape, batch, options, query,
                                     key, value, out, lse, stream);
}

//! Adds to `sums` what the queries of a batch give to each earlier token of their sequences: its
//! probability exp(logit - lse). A token's own query does not count, nor do queries that `counted`
//! leaves out, nor probabilities that are not finite. Sums of tokens that are new with this launch
//! start here, those of earlier tokens go on, so nobody clears them.
//! @tparam HeadDim, T  as prefill_attention
//! @param  options     those of attention: they say which logits lse was made from
//! @param  query, key  as prefill_attention
//! @param  lse         [num_q_heads, batch.num_queries] f32 of these queries over all keys that they
//!                     see, device memory
//! @param  sums        [num_q_heads, batch.key_tokens()] f32, device memory; of tokens outside the
//!                     batch not touched
//! @pre    addresses and strides of all vectors are multiples of 16 bytes
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   half the products of attention for the queries that count, none for the others; no
//!         allocation
//! @error  within docs/numerics.md; the same bits from run to run and in any batch, with the same
//!         chunks
template <int HeadDim, class T>
void add_importance(prefill_shape const& shape, prefill_batch const& batch,
                    attention_options const& options, importance_queries const& counted,
                    vectors<T const> query, vectors<T const> key, float const* lse, float* sums,
                    cudaStream_t stream)
{
  detail::add_importance<HeadDim>(detail::prefill_path::fastest, shape, batch, options, counted,
                                  query, key, lse, sums, stream);
}

//! The importance of each token of the sequences whose prompt is complete with this batch: the
//! largest sum of the q_heads of its head, divided by the number of queries that count. Other
//! sequences' stay as they are.
//! @param  counted      as add_importance was given it
//! @param  sums         [num_q_heads, batch.key_tokens()] f32 of add_importance, device memory
//! @param  importances  [num_heads, batch.key_tokens()] f32, device memory; 0 for a token that no query
//!                      counts for
//! @throws invalid_argument naming the argument, before any launch; cuda_error
//! @stream ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost   reads the sums once; no allocation
inline void finish_importance(prefill_shape const& shape, prefill_batch const& batch,
                              importance_queries const& counted, float const* sums,
                              float* importances, cudaStream_t stream)
{
  detail::validate(shape, batch);
  detail::validate(counted);
  DIFFKV_EXPECTS(sums != nullptr || batch.num_queries == 0, "sums: is null");
  DIFFKV_EXPECTS(importances != nullptr || batch.num_queries == 0, "importances: is null");
  if (batch.capacity == 0 || batch.num_queries == 0) { return; }
  constexpr int threads = detail::finish_threads;
  detail::finish_params const params{batch, counted,    shape.num_heads, shape.group_size,
                                     sums,  importances};
  unsigned const grid =
    detail::prefill_grid(batch.key_tokens(), batch.capacity, threads, shape.num_heads);
  detail::launch(detail::finish_importance_kernel<threads>,
                 {grid, static_cast<unsigned>(threads), 0, true}, stream, params);
}

}  // namespace diffkv
