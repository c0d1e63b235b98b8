// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Kernels that treat each element of a matrix alike: embed, gather, add a bias, SwiGLU.
#include "llama3/cuda/half.hpp"
#include "llama3/cuda/kernels.hpp"
#include "llama3/cuda/launch.cuh"

namespace llama3 {
namespace {
template <int Size>
__global__ void __launch_bounds__(row_pieces::threads)
  embed_kernel(row_pieces pieces, __half const* table, token_id const* ids, int width,
               float* hidden)
{
  wait_for_previous();
  if (pieces.piece() >= pieces.pieces_per_row) { return; }
  int const column = pieces.piece() * Size;
  auto const from  = load_pack<Size>(table + std::int64_t{ids[pieces.row()]} * width + column);
  pack<float, Size> to;
#pragma unroll
  for (int i = 0; i < Size; ++i) { to.at[i] = __half2float(from.at[i]); }
  store_pack<Size>(to, hidden + pieces.row() * width + column);
}

template <int Size>
__global__ void __launch_bounds__(row_pieces::threads)
  gather_kernel(row_pieces pieces, float const* from, std::int32_t const* rows, int width,
                float* to)
{
  wait_for_previous();
  if (pieces.piece() >= pieces.pieces_per_row) { return; }
  int const column = pieces.piece() * Size;
  store_pack<Size>(load_pack<Size>(from + std::int64_t{rows[pieces.row()]} * width + column),
                   to + pieces.row() * width + column);
}

template <int Size>
__global__ void __launch_bounds__(row_pieces::threads)
  add_bias_kernel(row_pieces pieces, float* x, float const* bias, int width)
{
  wait_for_previous();
  if (pieces.piece() >= pieces.pieces_per_row) { return; }
  int const column = pieces.piece() * Size;
  float* const at  = x + pieces.row() * width + column;
  auto sum         = load_pack<Size>(at);
  auto const added = load_pack<Size>(bias + column);
#pragma unroll
  for (int i = 0; i < Size; ++i) { sum.at[i] += added.at[i]; }
  store_pack<Size>(sum, at);
}

//! Short forms of exp and of division will do: both err by far less than f16 rounds. A divisor that
//! is infinite or close to it gives 0, as it should, but for an infinite dividend. NaN stays.
__device__ float gated(float gate, float up)
{
  constexpr float lowest = -100.0f;  // gives 0
  float const x          = gate < lowest ? lowest : gate;
  return __fdividef(x, 1.0f + __expf(-x)) * up;
}

template <int Size>
__global__ void __launch_bounds__(row_pieces::threads)
  swiglu_kernel(row_pieces pieces, __half const* gate_up, float const* bias, int intermediate,
                __half* out)
{
  wait_for_previous();
  if (pieces.piece() >= pieces.pieces_per_row) { return; }
  int const column         = pieces.piece() * Size;
  __half const* const from = gate_up + pieces.row() * 2 * intermediate + column;
  auto const gate          = load_pack<Size>(from);
  auto const up            = load_pack<Size>(from + intermediate);
  pack<float, Size> gate_bias{}, up_bias{};
  if (bias != nullptr) {
    gate_bias = load_pack<Size>(bias + column);
    up_bias   = load_pack<Size>(bias + intermediate + column);
  }
  pack<__half, Size> to;
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    to.at[i] = saturated_half(
      gated(__half2float(gate.at[i]) + gate_bias.at[i], __half2float(up.at[i]) + up_bias.at[i]));
  }
  store_pack<Size>(to, out + pieces.row() * intermediate + column);
}
}  // namespace

void embed(__half const* table, token_id const* ids, int num_tokens, int width, float* hidden,
           cudaStream_t stream)
{
  bool const wide = fits_packs<4>(width, table, hidden);
  row_pieces const pieces{wide ? width / 4 : width};
  launch(wide ? embed_kernel<4> : embed_kernel<1>, pieces.num_ctas(num_tokens), pieces.threads,
         stream, pieces, table, ids, width, hidden);
}

void gather_rows(float const* from, std::int32_t const* rows, int count, int width, float* to,
                 cudaStream_t stream)
{
  bool const wide = fits_packs<4>(width, from, to);
  row_pieces const pieces{wide ? width / 4 : width};
  launch(wide ? gather_kernel<4> : gather_kernel<1>, pieces.num_ctas(count), pieces.threads, stream,
         pieces, from, rows, width, to);
}

void add_bias(float* x, float const* bias, int num_tokens, int width, cudaStream_t stream)
{
  bool const wide = fits_packs<4>(width, x, bias);
  row_pieces const pieces{wide ? width / 4 : width};
  launch(wide ? add_bias_kernel<4> : add_bias_kernel<1>, pieces.num_ctas(num_tokens),
         pieces.threads, stream, pieces, x, bias, width);
}

void swiglu(__half const* gate_up, float const* bias, int num_tokens, int intermediate, __half* out,
            cudaStream_t stream)
{
  bool const wide = fits_packs<8>(intermediate, gate_up, bias, out);
  row_pieces const pieces{wide ? intermediate / 8 : intermediate};
  launch(wide ? swiglu_kernel<8> : swiglu_kernel<1>, pieces.num_ctas(num_tokens), pieces.threads,
         stream, pieces, gate_up, bias, intermediate, out);
}
}  // namespace llama3
