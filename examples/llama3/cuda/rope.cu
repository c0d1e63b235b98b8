// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! From the product with the query, key and value matrix to rotated q and k, and v.
#include "llama3/cuda/half.hpp"
#include "llama3/cuda/kernels.hpp"
#include "llama3/cuda/launch.cuh"

namespace llama3 {
namespace {
struct split_params {
  float const* qkv;
  float const* bias;
  std::int32_t const* positions;
  float2 const* angles;
  head_counts heads;
  __half *q, *k, *v;
};

//! Where a head of the product goes.
struct head_place {
  __half* to;
  bool rotated;
};

__device__ head_place place_of(split_params const& p, std::int64_t token, int head)
{
  int const num_q = p.heads.num_q_heads, num_kv = p.heads.num_heads, dim = p.heads.head_dim;
  if (head < num_q) { return {p.q + (token * num_q + head) * dim, true}; }
  if (head < num_q + num_kv) { return {p.k + (token * num_kv + head - num_q) * dim, true}; }
  return {p.v + (token * num_kv + head - num_q - num_kv) * dim, false};
}

//! A piece is `Size` pairs of a head: (x[i], x[i + head_dim / 2]).
template <int Size>
__global__ void __launch_bounds__(row_pieces::threads)
  split_and_rotate_kernel(row_pieces pieces, split_params p)
{
  wait_for_previous();
  if (pieces.piece() >= pieces.pieces_per_row) { return; }
  std::int64_t const token = pieces.row();
  int const half           = p.heads.head_dim / 2;
  int const head           = pieces.piece() / (half / Size);
  int const pair           = pieces.piece() % (half / Size) * Size;
  int const column         = head * p.heads.head_dim + pair;

  float const* const from = p.qkv + token * p.heads.qkv_rows() + column;
  auto a                  = load_pack<Size>(from);
  auto b                  = load_pack<Size>(from + half);
  if (p.bias != nullptr) {
    auto const a_bias = load_pack<Size>(p.bias + column);
    auto const b_bias = load_pack<Size>(p.bias + column + half);
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      a.at[i] += a_bias.at[i];
      b.at[i] += b_bias.at[i];
    }
  }
  head_place const place = place_of(p, token, head);
  if (place.rotated) {
    auto const angle = load_pack<Size>(p.angles + std::int64_t{p.positions[token]} * half + pair);
#pragma unroll
    for (int i = 0; i < Size; ++i) {
      float const cosine = angle.at[i].x, sine = angle.at[i].y;
      float const turned = a.at[i] * cosine - b.at[i] * sine;
      b.at[i]            = b.at[i] * cosine + a.at[i] * sine;
      a.at[i]            = turned;
    }
  }
  pack<__half, Size> low, high;
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    low.at[i]  = saturated_half(a.at[i]);
    high.at[i] = saturated_half(b.at[i]);
  }
  store_pack<Size>(low, place.to + pair);
  store_pack<Size>(high, place.to + pair + half);
}
}  // namespace

void split_and_rotate(float const* qkv, float const* bias, std::int32_t const* positions,
                      float2 const* angles, head_counts const& heads, int num_tokens, __half* q,
                      __half* k, __half* v, cudaStream_t stream)
{
  if (heads.head_dim < 2 || heads.head_dim % 2 != 0) {
    throw std::invalid_argument("split_and_rotate: head_dim must be even and positive");
  }
  int const half  = heads.head_dim / 2;
  bool const wide = fits_packs<4>(half, qkv, bias, angles, q, k, v);
  row_pieces const pieces{heads.qkv_rows() / 2 / (wide ? 4 : 1)};
  launch(wide ? split_and_rotate_kernel<4> : split_and_rotate_kernel<1>,
         pieces.num_ctas(num_tokens), pieces.threads, stream, pieces,
         split_params{qkv, bias, positions, angles, heads, q, k, v});
}
}  // namespace llama3
