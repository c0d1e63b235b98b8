// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The model's keys and values in diffkv pages: the whole use of the library in one class.
//! Read before this: llama3/attention_backend.hpp, llama3/cache_settings.hpp,
//! diffkv/cache/kv_cache.hpp.  Read next: llama3/cpu_session.hpp.
#include "llama3/attention_backend.hpp"
#include "llama3/cache_settings.hpp"
#include "llama3/model_config.hpp"
#include "llama3/thread_pool.hpp"

#include <diffkv/cache/kv_cache.hpp>

#include <vector>

namespace llama3 {

//! One sequence in diffkv pages. A new prompt begins a new sequence.
class paged_backend final : public attention_backend {
 public:
  using cache_type = diffkv::kv_cache<diffkv::dynamic_config<diffkv::any_policy>>;
  static constexpr std::uint32_t slot = 0;  //!< of the one sequence

  //! @param max_tokens   longest sequence; pages are there for all of it
  //! @param key_offsets  [num_layers, num_heads, head_dim] where the settings are centred, else empty
  //! @param threads      must outlive this
  //! @throws diffkv::invalid_argument naming the setting that is not legal
  paged_backend(model_config const& config, cache_settings const& settings, int max_tokens,
                std::vector<float> key_offsets, thread_pool& threads);

  void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
              float* out) override;
  void begin_token() override;
  void decode(int layer, float const* q, float const* k, float const* v, float* out) override;

  [[nodiscard]] diffkv::sequence_usage usage() const { return cache_.usage(slot); }
  [[nodiscard]] diffkv::cache_options const& options() const { return cache_.options(); }
  [[nodiscard]] cache_type const& cache() const { return cache_; }

 private:
  //! Runs the rows of a cache operation on the threads (diffkv/host/context.hpp says what it must do).
  [[nodiscard]] auto executor() const
  {
    return [threads = threads_](std::size_t count, auto const& body) {
      threads->parallel_for(static_cast<std::int64_t>(count),
                            [&](std::int64_t i) { body(static_cast<std::size_t>(i)); });
    };
  }

  diffkv::harmonic_table harmonic_;  // before the cache, whose policy reads it
  cache_type cache_;
  diffkv::attention_options attention_;
  thread_pool* threads_;
  std::vector<float> importances_;  // [num_heads, num_tokens] of one layer
};

}  // namespace llama3
