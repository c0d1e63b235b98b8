// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the sequences of a batch stand, in device memory: a step reads it and leaves it as the next
//! step needs it, so that the host need not look in between.
//! Read before this: llama3/cuda/kernels.hpp.  Read next: llama3/cuda/runner.hpp.
#include "llama3/cuda/kernels.hpp"

#include <diffkv/pool/claim_request.hpp>  // refusals_ref
#include <diffkv/table/batch_ref.hpp>

#include <cstdint>

namespace llama3 {

//! Of each slot.
struct slot_states {
  token_id* tokens        = nullptr;  //!< chosen last, to be taken in next
  std::int32_t* positions = nullptr;  //!< of that token
  sampling* options       = nullptr;
};

//! Of each sequence of a batch, in its order.
struct batch_rows {
  token_id* ids                = nullptr;
  std::int32_t* positions      = nullptr;
  std::int32_t* next_positions = nullptr;  //!< of the tokens to be chosen
  sampling* options            = nullptr;
};

//! What the host learns of a step, in pinned memory: one of `depth` places, used in turn.
struct step_reports {
  static constexpr token_id refused = -1;

  token_id* tokens          = nullptr;  //!< [depth, capacity]
  std::uint64_t* free_pages = nullptr;  //!< [depth]
  std::uint32_t* step       = nullptr;  //!< device memory: number of the next report
  std::uint32_t depth       = 1;
  std::uint32_t capacity    = 0;
};

//! Fills the rows of a batch; rows behind its end become token 0 at position 0.
//! @stream  ordered in `stream`, does not wait, may be captured in a graph; one kernel
void load_batch(diffkv::batch_ref const& batch, slot_states const& states, batch_rows const& rows,
                cudaStream_t stream);

//! Takes the tokens that were chosen into the states of their slots, and reports them. A sequence that
//! was refused stays as it is. Where nothing was to choose, that is reported, and token 0 taken.
//! @param chosen      [batch.capacity]
//! @param refusals    those of this step
//! @param free_pages  device memory
//! @stream  as load_batch
void store_batch(diffkv::batch_ref const& batch, token_id const* chosen,
                 diffkv::refusals_ref const& refusals, std::uint64_t const* free_pages,
                 slot_states const& states, step_reports const& reports, cudaStream_t stream);

//! The states of sequences that begin.
//! @param slots                        [count]
//! @param chosen, positions, options   [count], of the first tokens
//! @stream  as load_batch
void begin_states(std::uint32_t const* slots, int count, token_id const* chosen,
                  std::int32_t const* positions, sampling const* options, slot_states const& states,
                  cudaStream_t stream);

//! Overrides the token that a sequence takes in next.
//! @stream  as load_batch
void set_token(std::uint32_t slot, token_id id, slot_states const& states, cudaStream_t stream);

}  // namespace llama3
