// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The new token of one layer goes into the slots that `step` reserved: a warp per vector, small stores.
//! Read before this: compaction/step.cuh.  Read next: attention/softmax_state.hpp.
#include <diffkv/core/launch.cuh>
#include <diffkv/core/vectors.hpp>
#include <diffkv/page/token_quads.cuh>
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/row_view.hpp>
#include <diffkv/table/static_config.hpp>

namespace diffkv {

//! Measured on an H200: one warp a vector beats half a warp and two vectors a warp.
struct append_tuning_sm90 {
  static constexpr unsigned warps = 8;  //!< of a CTA
};

namespace detail {

template <class T>
struct append_params {
  cache_ref cache;
  batch_ref batch;
  std::uint32_t layer;
  std::uint32_t vectors_per_head;  //!< K, V and the queries of the group, where scores are wanted
  vectors<T> key, value, query;
  bool whole_quads;  //!< every vector may be read four elements at a time
};

//! One vector of the new token.
struct append_work {
  std::uint32_t sequence;  //!< index into the batch
  std::uint32_t head;
  std::uint32_t part;  //!< 0: key, 1: value, 2 + g: query g of the group
};

//! Where a vector goes: all that is read of what `step` has left.
struct append_target {
  std::byte* page       = nullptr;  //!< of a key or value
  float* query          = nullptr;  //!< place in the lag ring, of a query
  int token             = 0;        //!< within the page
  std::int32_t position = 0;

  //! Neither page nor query: the sequence was refused, or lies behind the batch's end.
  template <class Layout>
  [[nodiscard]] static __device__ append_target of(cache_ref const& cache, batch_ref const& batch,
                                                   std::uint32_t layer, append_work const& work)
  {
    constexpr auto tokens_per_page = static_cast<std::uint32_t>(Layout::tokens_per_page);
    append_target target{};
    if (work.sequence >= batch.capacity) { return target; }
    // Read beside the count: there are `capacity` of them.
    std::uint32_t const slot = batch.slots[work.sequence];
    if (work.sequence >= batch.size()) { return target; }
    std::size_t const row = cache.shape.row(slot, layer, work.head);
    target.position       = cache.layer(slot, layer).num_tokens - 1;
    slot_index const at   = cache.state.rows[row].append_slot;
    if (at == no_slot) { return target; }
    if (work.part >= 2) {
      target.query = cache.queries.query(cache.shape.layer_of(slot, layer), target.position,
                                         work.head * cache.shape.group_size + work.part - 2);
    } else {
      page_id const page = cache.table.entry(row, tier::high, at / tokens_per_page);
      target.page =
        cache.pool.base + std::size_t{Layout::page_bytes} * static_cast<std::uint32_t>(page);
      target.token = static_cast<int>(at % tokens_per_page);
    }
    return target;
  }
};

//! Four elements from an address that is aligned to one of them, or to all four.
template <class T>
__device__ void load_quad(T const* from, bool whole, float (&x)[4]) noexcept
{
  struct alignas(4 * sizeof(T)) quad {
    T element[4];
  };
  quad q;
  if (whole) {
    q = *reinterpret_cast<quad const*>(from);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) { q.element[e] = from[e]; }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) { x[e] = to_f32(q.element[e]); }
}

template <int HeadDim, class T>
[[nodiscard]] __device__ warp_vector<HeadDim> load_vector(T const* from, bool whole_quads,
                                                          int lane) noexcept
{
  using vector = warp_vector<HeadDim>;
  vector v;
#pragma unroll
  for (int i = 0; i < vector::quads_per_lane; ++i) {
    if (vector::has(lane, i)) { load_quad(from + 4 * vector::quad(lane, i), whole_quads, v.x[i]); }
  }
  return v;
}

//! Encodes one side of the new token into its page.
template <class Side>
__device__ void append_side(std::byte* page, int token, warp_vector<Side::head_dim> const& v,
                            float clip, int lane) noexcept
{
  auto const others = Side::neighbours_of(page, token, lane);
  Side::store_token(page, token, encode<Side::bits, Side::spec.groups>(v, clip, lane), others,
                    lane);
}

//! A type, as nvcc 13.0 writes wrong stubs for kernels with parameters of an enumeration.
template <class Layout, conditioning Conditioned>
struct append_config {
  using layout                  = Layout;
  static constexpr bool centred = has(Conditioned, conditioning::centred);
  static constexpr bool rotated = has(Conditioned, conditioning::rotated);
};

template <class Config, class T>
DIFFKV_KERNEL void __launch_bounds__(append_tuning_sm90::warps * 32)
  append_kernel(__grid_constant__ append_params<T> const p)
{
  using layout            = typename Config::layout;
  using vector            = warp_vector<layout::head_dim>;
  constexpr auto geometry = layout::geometry;
  cache_ref const& cache  = p.cache;
  int const lane          = static_cast<int>(threadIdx.x % 32);
  std::uint32_t const w   = blockIdx.x * append_tuning_sm90::warps + threadIdx.x / 32;
  std::uint32_t const i   = w / p.vectors_per_head;
  append_work const work{i / cache.shape.num_heads, i % cache.shape.num_heads,
                         w % p.vectors_per_head};

  // What no kernel in front writes.
  bool const is_key          = work.part == 0;
  std::uint32_t const q_head = work.head * cache.shape.group_size + work.part - 2;
  T* const source            = is_key           ? p.key.at(work.sequence, work.head)
                               : work.part == 1 ? p.value.at(work.sequence, work.head)
                                                : p.query.at(work.sequence, q_head);
  format_spec const& format  = cache.tiers.high.format;
  float const clip           = is_key ? format.key.clip : format.value.clip;
  vector offset{};
  if constexpr (Config::centred) {
    if (is_key) {
      offset =
        load_vector<layout::head_dim>(cache.key_offset(p.layer, work.head), p.whole_quads, lane);
    }
  }
  // Layer 0 comes right behind the step. Later layers start when append(0) has seen the step's end,
  // so they may read what the step left, and let the next layer do so, before they wait for their
  // vectors.
  append_target target{};
  bool const early = p.layer > 0;
  if (early) {
    let_next_start();
    target = append_target::of<layout>(cache, p.batch, p.layer, work);
  }
  wait_for_previous();
  if (!early) { target = append_target::of<layout>(cache, p.batch, p.layer, work); }
  if (target.page == nullptr && target.query == nullptr) { return; }

  vector v = load_vector<layout::head_dim>(source, p.whole_quads, lane);
  if constexpr (Config::centred) {
    if (is_key) {
#pragma unroll
      for (int n = 0; n < vector::quads_per_lane; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { v.x[n][e] = sub_rn(v.x[n][e], offset.x[n][e]); }
      }
    }
  }
  if constexpr (Config::rotated) { rotate(v, lane); }
  if (is_key) {
    append_side<token_key<layout>>(target.page, target.token, v, clip, lane);
    if (lane == 0) { store_at(target.page, geometry.score(target.token), 0.0f); }
  } else if (work.part == 1) {
    append_side<token_value<layout>>(target.page, target.token, v, clip, lane);
    if (lane == 0) { store_at(target.page, geometry.position(target.token), target.position); }
  } else {
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
      float4 const four{v.x[n][0], v.x[n][1], v.x[n][2], v.x[n][3]};
      reinterpret_cast<float4*>(target.query)[vector::quad(lane, n)] = four;
    }
  }
}

//! Whether every vector of `v` may be read four elements at a time.
template <class T>
[[nodiscard]] bool has_whole_quads(vectors<T> const& v) noexcept
{
  return reinterpret_cast<std::uintptr_t>(v.data) % (4 * sizeof(T)) == 0 &&
         v.token_stride % 4 == 0 && v.head_stride % 4 == 0;
}

}  // namespace detail

//! Encodes the new token of one layer into the slots that `step` reserved, and puts its query into the
//! lag ring: equals host::append. Sequences that were refused are skipped.
//! @tparam Config      static_config; its policy is not used
//! @param cache        handles in device memory
//! @param batch        the batch that `step` was given
//! @param key, value   [batch, num_heads, head_dim], rotary embedding applied, device
//! @param query        [batch, num_q_heads, head_dim], device; not read where score_every = 0
//! @pre     after each step layer 0 is appended before the other layers, in the same stream
//! @throws  invalid_argument for a layer out of range or handles of another configuration, before any
//!          launch; cuda_error
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; one kernel
//! @cost    O(batch * heads * head_dim), no allocation
template <class Config, class T>
void append(cache_ref const& cache, batch_ref const& batch, std::uint32_t layer, vectors<T> key,
            vectors<T> value, vectors<T> query, cudaStream_t stream)
{
  expect_config<Config>(cache);
  DIFFKV_EXPECTS(
    layer < cache.shape.num_layers,
    "layer: " + std::to_string(layer) + " is not below " + std::to_string(cache.shape.num_layers));
  bool const keeps_queries = cache.shape.score_every > 0;
  detail::append_params<T> params{cache, batch, layer, 2u, key, value, query, false};
  params.vectors_per_head += keeps_queries ? cache.shape.group_size : 0u;
  params.whole_quads = detail::has_whole_quads(key) && detail::has_whole_quads(value) &&
                       (!keeps_queries || detail::has_whole_quads(query)) &&
                       detail::has_whole_quads(vectors<float const>{cache.key_offsets, 0, 0});
  std::uint64_t const vectors_in_all =
    std::uint64_t{batch.capacity} * cache.shape.num_heads * params.vectors_per_head;
  constexpr std::uint64_t warps = append_tuning_sm90::warps;
  std::uint64_t const grid      = detail::ceil_div(vectors_in_all, warps);
  DIFFKV_EXPECTS(grid <= 0x7FFF'FFFFu, "batch: " + std::to_string(batch.capacity) +
                                         " sequences are more than one launch can take");
  using config = detail::append_config<typename Config::layouts::high, Config::conditioned>;
  detail::launch(detail::append_kernel<config, T>,
                 {static_cast<unsigned>(grid), append_tuning_sm90::warps * 32, 0, true}, stream,
                 params);
}

}  // namespace diffkv
