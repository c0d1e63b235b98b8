// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a layer computes on the device between matrix products and attention, and the choice of a
//! token. Each function keeps to this:
//! @pre    matrices are row-major, in memory of the current device; outputs do not overlap inputs.
//!         Any width and alignment will do; fast are widths that are multiples of 8 and matrices
//!         that begin at multiples of 16 bytes
//! @throws std::invalid_argument for counts below 0, diffkv::cuda_error if the launch fails
//! @stream ordered in `stream`, does not wait, may be captured in a graph; 0 tokens launch nothing
//! @cost   one kernel, no allocation; it may start while the kernel in front is ending, and reads
//!         nothing before that one has ended
//! @error  sums and products in f32; results of f16 are rounded to nearest, and saturate at +-65504
//! Read before this: llama3/cuda/sampling.hpp.  Read next: llama3/cuda/rows.cu.
#include "llama3/cuda/sampling.hpp"
#include "llama3/token_id.hpp"

#include <cuda_fp16.h>         // __half
#include <cuda_runtime_api.h>  // cudaStream_t, float2

#include <cstdint>  // int32_t

namespace llama3 {
//! Heads of a layer, and the shape of its product with the query, key and value matrix.
struct head_counts {
  int num_q_heads{0}, num_heads{0}, head_dim{0};

  //! Query rows, then key rows, then value rows.
  [[nodiscard]] __host__ __device__ constexpr int qkv_rows() const noexcept
  {
    return (num_q_heads + 2 * num_heads) * head_dim;
  }
};

//! The hidden vectors of tokens.
//! @param[in]  table   [vocab, width] f16
//! @param[in]  ids     [num_tokens], each in 0 .. vocab - 1
//! @param[out] hidden  [num_tokens, width] f32
void embed(__half const* table, token_id const* ids, int num_tokens, int width, float* hidden,
           cudaStream_t stream);

//! out = hidden / sqrt(mean(hidden^2) + epsilon) * weight, as llama3/rms_norm.hpp.
//! @param[in]  hidden  [num_tokens, width] f32
//! @param[in]  weight  [width] f32
//! @param[out] out     [num_tokens, width] f16
//! @cost one CTA per token
void rms_norm(float const* hidden, float const* weight, int num_tokens, int width, float epsilon,
              __half* out, cudaStream_t stream);

//! Adds the bias, rotates q and k to their positions in the half-split order of llama3/rope.hpp,
//! and gives q, k and v matrices of their own.
//! @param[in]  qkv        [num_tokens, heads.qkv_rows()] f32
//! @param[in]  bias       [heads.qkv_rows()] f32, or null
//! @param[in]  positions  [num_tokens], each in 0 .. max_positions - 1
//! @param[in]  angles     [max_positions, head_dim / 2] cosine and sine
//! @param[out] q          [num_tokens, num_q_heads, head_dim] f16
//! @param[out] k, v       [num_tokens, num_heads, head_dim] f16
//! @pre head_dim is even
void split_and_rotate(float const* qkv, float const* bias, std::int32_t const* positions,
                      float2 const* angles, head_counts const& heads, int num_tokens, __half* q,
                      __half* k, __half* v, cudaStream_t stream);

//! out = silu(gate) * up, as llama3/swiglu.hpp.
//! @param[in]  gate_up  [num_tokens, 2 * intermediate] f16, the gate first
//! @param[in]  bias     [2 * intermediate] f32, added to gate and up before; or null
//! @param[out] out      [num_tokens, intermediate] f16
void swiglu(__half const* gate_up, float const* bias, int num_tokens, int intermediate, __half* out,
            cudaStream_t stream);

//! Adds `bias` to each row.
//! @param[in,out] x     [num_tokens, width] f32
//! @param[in]     bias  [width] f32
void add_bias(float* x, float const* bias, int num_tokens, int width, cudaStream_t stream);

//! Copies rows: to[i] = from[rows[i]].
//! @param[in]  from  [any, width] f32
//! @param[in]  rows  [count]
//! @param[out] to    [count, width] f32
void gather_rows(float const* from, std::int32_t const* rows, int count, int width, float* to,
                 cudaStream_t stream);

//! Chooses the next token of each sequence, as `sample_on_host` (llama3/cuda/sample_twin.hpp) does:
//! a sequence's token depends on its logits, options and position alone, not on the others.
//! @param[in]  logits     [n, vocab] f32
//! @param[in]  num_ids    ids from here on are never chosen; at most vocab is looked at
//! @param[in]  options    [n]
//! @param[in]  positions  [n], of the tokens that are chosen
//! @param[out] ids        [n]; nothing_to_choose where every logit is passed over
//! @throws std::invalid_argument if vocab is above max_sampled_ids
//! @cost   one CTA per sequence, which reads its logits once if greedy, else three times; top-p
//!         reads them again in each step that narrows down which tokens are kept, until they fit
//!         shared memory: a few times as a rule, 60 at most (when most logits are equal)
void sample(float const* logits, int n, int vocab, int num_ids, sampling const* options,
            std::int32_t const* positions, token_id* ids, cudaStream_t stream);
}  // namespace llama3
