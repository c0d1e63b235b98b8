// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The cache on the GPU as the loop sees it.
//! Read before this: llama3/cache_settings.hpp.  Read next: llama3/cuda/device_cache_kind.hpp.
#include "llama3/cache_settings.hpp"

#include <diffkv/cache/cache_options.hpp>
#include <diffkv/cache/sequence_usage.hpp>
#include <diffkv/pool/claim_request.hpp>
#include <diffkv/table/batch_ref.hpp>
#include <diffkv/table/cache_ref.hpp>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace llama3 {

//! Prompts that go through the layers together, one behind the other. Arrays lie in device memory.
struct prompt_batch {
  diffkv::batch_ref slots{};
  std::int32_t const* lengths      = nullptr;  //!< [slots.capacity]
  std::int64_t const* first_tokens = nullptr;  //!< [slots.capacity + 1], ascending
  int num_tokens                   = 0;        //!< of all of them
  int longest                      = 0;        //!< tokens of the longest
};

//! What a cache must have room for, beside how it compresses.
struct device_cache_setup {
  int num_slots            = 1;
  int max_tokens           = 0;  //!< of a sequence
  int prompts              = 1;  //!< of a prompt_batch
  int prompt_tokens        = 0;  //!< of a prompt_batch, all of them
  std::uint64_t pool_bytes = 0;  //!< of keys and values; 0: enough for every slot at max_tokens
  bool fixed_mix = false;  //!< llama3/cuda/fixed_mix_policy.hpp instead of the settings' policy
};

//! Keys and values of all sequences in diffkv pages. Every call is ordered in `stream`, does not wait,
//! and may be captured in a graph; arrays are packed, [tokens, heads, head_dim].
class device_cache {
 public:
  virtual ~device_cache() = default;

  [[nodiscard]] virtual diffkv::cache_options const& options() const = 0;
  //! Handles of all that lies in device memory.
  [[nodiscard]] virtual diffkv::cache_ref ref() = 0;

  //! Claims pages for prompts; those that there is no room for are named in `refusals`.
  virtual void admit(prompt_batch const& prompts, diffkv::refusals_ref refusals,
                     cudaStream_t stream) = 0;
  //! Attention of whole prompts in one layer, and the importance of their tokens.
  virtual void attend_prompt(prompt_batch const& prompts, __half const* q, __half const* k,
                             __half const* v, __half* out, cudaStream_t stream) = 0;
  //! Then their keys and values are compressed.
  virtual void store_prompt(int layer, prompt_batch const& prompts, __half const* k,
                            __half const* v, cudaStream_t stream) = 0;

  //! Once per token, before the layers: compaction, and a place for the new token.
  virtual void step(diffkv::batch_ref const& batch, diffkv::refusals_ref refusals,
                    cudaStream_t stream) = 0;
  //! Then the plan of attention in all layers.
  virtual void plan(diffkv::batch_ref const& batch, cudaStream_t stream) = 0;
  //! Stores the new token of one layer.
  virtual void append(int layer, diffkv::batch_ref const& batch, __half const* k, __half const* v,
                      cudaStream_t stream) = 0;
  //! Each sequence of the plan attends to all that it has in the layer.
  virtual void attend(int layer, __half const* q, __half* out, cudaStream_t stream) = 0;

  virtual void release(diffkv::batch_ref const& batch, cudaStream_t stream) = 0;
  //! @param free_pages  out, memory that the device reaches; null: not asked for
  //! @param usage       [num_slots] out, the same
  virtual void statistics(std::uint64_t* free_pages, diffkv::sequence_usage* usage,
                          cudaStream_t stream) = 0;
};

//! Everything that `settings` and `config` say about a cache of sequences of up to setup.max_tokens.
//! @throws std::invalid_argument naming what is not legal
[[nodiscard]] diffkv::cache_options device_cache_options(model_config const& config,
                                                         cache_settings const& settings,
                                                         device_cache_setup const& setup,
                                                         std::vector<float> key_offsets);

//! Pages that a sequence of so many tokens takes at most.
[[nodiscard]] std::uint64_t most_pages(diffkv::cache_options const& options, int num_tokens);

}  // namespace llama3
