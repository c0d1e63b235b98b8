// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The new token of one layer goes into the slots that `step` reserved: a warp per vector, small stores.
//! Read before this: compaction/step.cuh.  Read next: attention/softmax_state.hpp.
#include <diffkv/compaction/joint_token.cuh>
#include <diffkv/core/launch.cuh>
#include <diffkv/core/vectors.hpp>
#include <diffkv/page/token_quads.cuh>
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/row_view.hpp>
#include <diffkv/table/static_config.hpp>

namespace diffkv {

//! Measured on an H200: one warp a vector beats half a warp and two vectors a warp, as there is too
//! little work for the longer way of each warp to be hidden.
struct append_tuning_sm90 {
  static constexpr unsigned warps              = 4;  //!< of a CTA
  static constexpr unsigned warps_with_queries = 8;
};

namespace detail {

template <class T>
struct append_params {
  cache_ref cache;
  batch_ref batch;
  std::uint32_t layer;
  std::uint32_t vectors_per_head;  //!< K, V and the queries of the group, where they are asked for
  vectors<T> key, value, query;
  bool whole_quads;  //!< every vector may be read four elements at a time
};

//! One vector of the new token.
struct append_work {
  std::uint32_t sequence;  //!< index into the batch
  std::uint32_t head;
  std::uint32_t part;  //!< 0: key, 1: value, 2 + g: query g of the group

  template <class T>
  [[nodiscard]] static __device__ append_work of_this_warp(append_params<T> const& p)
  {
    std::uint32_t const w = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    std::uint32_t const i = w / p.vectors_per_head;
    return {i / p.cache.shape.num_heads, i % p.cache.shape.num_heads, w % p.vectors_per_head};
  }
};

//! Where a token goes: all that is read of what `step` has left.
struct append_target {
  bool served           = false;       //!< else it was refused, or lies behind the batch's end
  page_id page          = page_id{0};  //!< where it was asked for
  int token             = 0;           //!< within the page
  std::uint32_t slot    = 0;           //!< of the sequence
  std::int32_t position = 0;

  template <class Layout>
  [[nodiscard]] static __device__ append_target of(cache_ref const& cache, batch_ref const& batch,
                                                   std::uint32_t layer, append_work const& work,
                                                   bool wants_page)
  {
    constexpr auto tokens_per_page = static_cast<std::uint32_t>(Layout::tokens_per_page);
    append_target target{};
    if (work.sequence >= batch.capacity) { return target; }
    // Read beside the count: there are `capacity` of them.
    target.slot = batch.slots[work.sequence];
    if (work.sequence >= batch.size()) { return target; }
    // What `step` has left. It waited for whoever made the batch, which is old by now.
    std::size_t const row = cache.shape.row(target.slot, layer, work.head);
    target.position       = load_uncached(cache.layer(target.slot, layer).num_tokens) - 1;
    slot_index const at   = load_uncached(cache.state.rows[row].append_slot);
    target.served         = at != no_slot;
    if (target.served && wants_page) {
      target.page  = load_uncached(cache.table.entry(row, tier::high, at / tokens_per_page));
      target.token = static_cast<int>(at % tokens_per_page);
    }
    return target;
  }
  template <class Layout>
  [[nodiscard]] __device__ std::byte* bytes(cache_ref const& cache) const
  {
    return cache.pool.base + std::size_t{Layout::page_bytes} * static_cast<std::uint32_t>(page);
  }
  //! Place of a query of the token in the lag ring.
  [[nodiscard]] __device__ std::size_t query(cache_ref const& cache, std::uint32_t layer,
                                             std::uint32_t q_head) const
  {
    return cache.queries.index(cache.shape.layer_of(slot, layer), position, q_head);
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

//! Where a lane puts its part of one side of a token. Known before the vector is.
//! @tparam Side  token_key or token_value
template <class Layout, class Side>
class append_side {
  static constexpr bool is_key = std::is_same_v<Side, token_key<Layout>>;

 public:
  append_side() = default;
  __device__ append_side(int token, int lane) noexcept : token_{token}
  {
    if constexpr (is_joint_high_v<Layout>) {
      // A quad is half a share: one word of the key, or one byte of each of two words of the value.
      auto const share         = joint_place<Layout>::of(token, lane / 2);
      std::uint32_t const half = lane % 2 * 8;
      codes_ = half + (is_key ? share.key + 4 * share.second : share.value + share.byte);
      label_ = joint_place<Layout>::label(token, lane % 2 + (is_key ? 0 : joint_lane::owners));
    }
  }
  //! @param label  score of a key, position of a value
  //! @threads one warp
  __device__ void store(std::byte* page, warp_vector<Layout::head_dim> const& v, float clip,
                        std::uint32_t label, int lane) const noexcept
  {
    if constexpr (is_joint_high_v<Layout>) {
      auto const coded         = encode<Side::bits, 1>(v, clip, lane);
      std::uint32_t const four = coded.quads[0];
      if constexpr (is_key) {
        store_at(page, codes_, four);
      } else {
        std::uint32_t const pairs = four | four >> 4;
        store_at(page, codes_, static_cast<std::uint8_t>(pairs));
        store_at(page, codes_ + 4, static_cast<std::uint8_t>(pairs >> 16));
      }
      if (lane < 2) { store_at(page, label_, lane == 0 ? to_word(coded.groups[0]) : label); }
    } else {
      constexpr page_geometry g = Layout::geometry;
      auto const others         = Side::neighbours_of(page, token_, lane);
      Side::store_token(page, token_, encode<Side::bits, Side::spec.groups>(v, clip, lane), others,
                        lane);
      if (lane == 0) { store_at(page, is_key ? g.score(token_) : g.position(token_), label); }
    }
  }

 private:
  int token_           = 0;
  std::uint32_t codes_ = 0;
  std::uint32_t label_ = 0;
};

//! A conditioned query into the lag ring, as host::keep_query.
//! @param i  query_ring_ref::index
template <int HeadDim>
__device__ void store_query(query_ring_ref const& ring, std::size_t i,
                            warp_vector<HeadDim> const& v, int lane) noexcept
{
  using vector     = warp_vector<HeadDim>;
  bool const codes = ring.rounding == lag_rounding::int8;
  float largest    = 0.0f;
  if (codes) {
    auto const include = [&](float x) { largest = is_nan(largest) || x <= largest ? largest : x; };
#pragma unroll
    for (int n = 0; n < vector::quads_per_lane; ++n) {
      if (!vector::has(lane, n)) { continue; }
#pragma unroll
      for (int e = 0; e < 4; ++e) { include(fabsf(v.x[n][e])); }
    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      include(__shfl_xor_sync(0xFFFF'FFFFu, largest, mask));
    }
    if (lane == 0) { ring.largest[i] = largest; }
  }
#pragma unroll
  for (int n = 0; n < vector::quads_per_lane; ++n) {
    if (!vector::has(lane, n)) { continue; }
    auto const& x   = v.x[n];
    int const quad  = vector::quad(lane, n);
    auto const code = [&](float q) {
      return static_cast<signed char>(int8_query_code(q, largest));
    };
    if (codes) {
      reinterpret_cast<char4*>(ring.codes_of(i))[quad] =
        char4{code(x[0]), code(x[1]), code(x[2]), code(x[3])};
    } else {
      reinterpret_cast<float4*>(ring.query(i))[quad] = float4{x[0], x[1], x[2], x[3]};
    }
  }
}

//! A type, as nvcc 13.0 writes wrong stubs for kernels with parameters of an enumeration.
template <class Layout, conditioning Conditioned>
struct append_config {
  using layout                  = Layout;
  static constexpr bool centred = has(Conditioned, conditioning::centred);
  static constexpr bool rotated = has(Conditioned, conditioning::rotated);
};

template <class Config, class T>
DIFFKV_KERNEL void __launch_bounds__(append_tuning_sm90::warps_with_queries * 32)
  append_kernel(__grid_constant__ append_params<T> const p)
{
  using layout           = typename Config::layout;
  using vector           = warp_vector<layout::head_dim>;
  cache_ref const& cache = p.cache;
  int const lane         = static_cast<int>(threadIdx.x % 32);
  auto const work        = append_work::of_this_warp(p);

  // What no kernel in front writes.
  bool const is_key          = work.part == 0;
  bool const is_query        = work.part >= 2;
  std::uint32_t const q_head = work.head * cache.shape.group_size + work.part - 2;
  T* const source            = is_key     ? p.key.at(work.sequence, work.head)
                               : is_query ? p.query.at(work.sequence, q_head)
                                          : p.value.at(work.sequence, work.head);
  format_spec const& format  = cache.tiers.high.format;
  float const clip           = is_key ? format.key.clip : format.value.clip;
  vector offset{};
  if constexpr (Config::centred) {
    if (is_key) {
      offset =
        load_vector<layout::head_dim>(cache.key_offset(p.layer, work.head), p.whole_quads, lane);
    }
  }
  append_target target{};
  append_side<layout, token_key<layout>> as_key;
  append_side<layout, token_value<layout>> as_value;
  auto const find_target = [&] {
    target = append_target::of<layout>(cache, p.batch, p.layer, work, !is_query);
    __builtin_assume(target.token >= 0);
    if (is_key) {
      as_key = {target.token, lane};
    } else if (!is_query) {
      as_value = {target.token, lane};
    }
  };
  // Layer 0 comes right behind the step. Later layers start when append(0) has seen the step's end,
  // so they may read what the step left, and let the next layer do so, before they wait for their
  // vectors.
  bool const early = p.layer > 0;
  if (early) {
    let_next_start();
    find_target();
  }
  wait_for_previous();
  if (!early) { find_target(); }
  if (!target.served) { return; }

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
    as_key.store(target.bytes<layout>(cache), v, clip, 0, lane);
  } else if (!is_query) {
    as_value.store(target.bytes<layout>(cache), v, clip,
                   static_cast<std::uint32_t>(target.position), lane);
  } else {
    store_query(cache.queries, target.query(cache, p.layer, q_head), v, lane);
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

//! Encodes the new token of one layer into the slots that `step` reserved: equals host::append.
//! Sequences that were refused are skipped. An attention kernel that writes the conditioned query of
//! this step to the lag ring by itself, as it has it at hand, needs no query here; with another one,
//! `append` puts the same bits there.
//! @tparam Config      static_config; its policy is not used
//! @param cache        handles in device memory
//! @param batch        the batch that `step` was given
//! @param key, value   [batch, num_heads, head_dim], rotary embedding applied, device
//! @param query        [batch, num_q_heads, head_dim], device, or null (`vectors<T>{}` of the type of key):
//!                     the lag ring is left alone. Not read where score_every = 0
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
  bool const has_queries = cache.shape.score_every > 0 && query.data != nullptr;
  detail::append_params<T> params{cache, batch, layer, 2u, key, value, query, false};
  params.vectors_per_head += has_queries ? cache.shape.group_size : 0u;
  params.whole_quads = detail::has_whole_quads(key) && detail::has_whole_quads(value) &&
                       (!has_queries || detail::has_whole_quads(query)) &&
                       detail::has_whole_quads(vectors<float const>{cache.key_offsets, 0, 0});
  std::uint64_t const vectors_in_all =
    std::uint64_t{batch.capacity} * cache.shape.num_heads * params.vectors_per_head;
  unsigned const warps =
    has_queries ? append_tuning_sm90::warps_with_queries : append_tuning_sm90::warps;
  std::uint64_t const grid = detail::ceil_div<std::uint64_t>(vectors_in_all, warps);
  DIFFKV_EXPECTS(grid <= 0x7FFF'FFFFu, "batch: " + std::to_string(batch.capacity) +
                                         " sequences are more than one launch can take");
  using config = detail::append_config<typename Config::layouts::high, Config::conditioned>;
  detail::launch(detail::append_kernel<config, T>,
                 {static_cast<unsigned>(grid), warps * 32, 0, true}, stream, params);
}

}  // namespace diffkv
