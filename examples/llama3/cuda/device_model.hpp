// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The forward pass on the GPU, for prompts that lie one behind the other and for the next token of
//! many sequences: it is the same pass. Keys and values go to a device_cache and nowhere else.
//! Read before this: llama3/model.hpp, llama3/cuda/kernels.hpp, llama3/cuda/device_cache.hpp.
//! Read next: llama3/cuda/runner.hpp.
#include "llama3/cuda/device_cache.hpp"
#include "llama3/cuda/device_weights.hpp"
#include "llama3/cuda/kernels.hpp"
#include "llama3/progress.hpp"

#include <functional>  // function
#include <vector>

namespace llama3 {

//! Tokens of one forward pass, in device memory.
struct device_tokens {
  int count                     = 0;
  token_id const* ids           = nullptr;  //!< [count]
  std::int32_t const* positions = nullptr;  //!< [count], of their sequences
};

//! A model in device memory. It keeps no state of a sequence. Work is ordered in one stream.
class device_model {
 public:
  //! @param max_positions   longest sequence
  //! @param max_tokens      of one forward pass
  //! @param stream          must outlive the model
  //! @throws diffkv::cuda_error; std::runtime_error if cuBLAS cannot be had
  //! @stream waits
  device_model(model_config config, device_weights weights, int max_positions, int max_tokens,
               cudaStream_t stream);

  [[nodiscard]] model_config const& config() const noexcept { return config_; }
  [[nodiscard]] int max_tokens() const noexcept { return max_tokens_; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }

  //! Attention of one layer: q [tokens, num_q_heads, head_dim], k and v [tokens, num_heads, head_dim],
  //! out as q, all f16 in device memory.
  using attend_function =
    std::function<void(int layer, __half const* q, __half const* k, __half const* v, __half* out)>;

  //! Takes tokens through all layers; their hidden vectors stay until the next call.
  //! @stream ordered, does not wait, may be captured in a graph
  void run(device_tokens const& tokens, attend_function const& attend,
           progress_callback const& progress = {});

  //! Logits after chosen tokens of the last run.
  //! @param[in]  rows    [count] their numbers in the run, device memory; null: the first `count`
  //! @param[out] logits  [count, vocab_size]
  //! @pre count <= 4096, and <= max_tokens of the constructor
  //! @stream as run
  void logits(std::int32_t const* rows, int count, float* logits);

  //! @throws std::invalid_argument if there are no ids or one is outside the vocabulary
  void check_ids(std::vector<token_id> const& ids) const;

  //! While it is so, matrices are not multiplied: to measure what the rest takes.
  void leave_out_products(bool yes) noexcept { blas_.leave_out(yes); }

 private:
  void run_layer(device_layer const& layer, device_tokens const& tokens,
                 attend_function const& attend, int index);

  model_config config_;
  device_weights weights_;
  int max_tokens_, slice_;
  cudaStream_t stream_;
  blas blas_;
  head_counts heads_;
  device_array<float2> angles_;                    // [max_positions, head_dim / 2]
  device_array<float> hidden_;                     // [max_tokens, hidden_size]
  device_array<__half> q_, k_, v_, attended_;      // of all tokens
  device_array<__half> normed_, gate_up_, gated_;  // of a slice of tokens
  device_array<float> qkv_;                        // the same
  device_array<float> chosen_;                     // whose logits are wanted, [slice, hidden_size]
};

}  // namespace llama3
