// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache that leaves out some of its work: what a part takes is the difference.
//! Read before this: llama3/cuda/device_cache.hpp.  Read next: llama3/throughput/measured_cache.hpp.
#include "llama3/cuda/device_cache.hpp"

#include <utility>  // move

namespace llama3 {

struct cache_parts {
  bool attention  = true;  //!< of prompts and steps
  bool plan       = true;
  bool compaction = true;  //!< step and append: without it sequences stay as they are
};

class partial_cache final : public device_cache {
 public:
  explicit partial_cache(std::unique_ptr<device_cache> whole) : whole_{std::move(whole)} {}

  //! What it does from here on.
  void use(cache_parts const& parts) noexcept { parts_ = parts; }

  [[nodiscard]] diffkv::cache_options const& options() const override { return whole_->options(); }
  [[nodiscard]] diffkv::cache_ref ref() override { return whole_->ref(); }
  void admit(prompt_batch const& prompts, diffkv::refusals_ref refusals,
             cudaStream_t stream) override
  {
    whole_->admit(prompts, refusals, stream);
  }
  void attend_prompt(prompt_batch const& prompts, __half const* q, __half const* k, __half const* v,
                     __half* out, cudaStream_t stream) override
  {
    if (parts_.attention) { whole_->attend_prompt(prompts, q, k, v, out, stream); }
  }
  void store_prompt(int layer, prompt_batch const& prompts, __half const* k, __half const* v,
                    cudaStream_t stream) override
  {
    whole_->store_prompt(layer, prompts, k, v, stream);
  }
  void step(diffkv::batch_ref const& batch, diffkv::refusals_ref refusals,
            cudaStream_t stream) override
  {
    if (parts_.compaction) { whole_->step(batch, refusals, stream); }
  }
  void plan(diffkv::batch_ref const& batch, cudaStream_t stream) override
  {
    if (parts_.plan) { whole_->plan(batch, stream); }
  }
  void append(int layer, diffkv::batch_ref const& batch, __half const* k, __half const* v,
              cudaStream_t stream) override
  {
    if (parts_.compaction) { whole_->append(layer, batch, k, v, stream); }
  }
  void attend(int layer, __half const* q, __half* out, cudaStream_t stream) override
  {
    if (parts_.attention) { whole_->attend(layer, q, out, stream); }
  }
  void release(diffkv::batch_ref const& batch, cudaStream_t stream) override
  {
    whole_->release(batch, stream);
  }
  void statistics(std::uint64_t* free_pages, diffkv::sequence_usage* usage,
                  cudaStream_t stream) override
  {
    whole_->statistics(free_pages, usage, stream);
  }

 private:
  std::unique_ptr<device_cache> whole_;
  cache_parts parts_{};
};

}  // namespace llama3
