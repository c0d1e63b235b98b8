// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The cache in device memory: owns it and calls the write path in order.
//! Read before this: cache/kv_cache.hpp, cache/statistics.cuh.  This is the last header.
#include <diffkv/cache/cache_storage.hpp>
#include <diffkv/cache/statistics.cuh>
#include <diffkv/compaction/admit.cuh>
#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/compaction/release.cuh>
#include <diffkv/compaction/scan_candidates.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/pool/init_ring.cuh>

namespace diffkv {

//! The largest store_prompt call: sizes the cache's scratch.
struct prompt_limits {
  std::uint32_t prompts = 1;  //!< of a batch
  std::uint32_t layers  = 1;  //!< of a range
  std::int32_t tokens   = 0;  //!< of the longest prompt; required
};

//! A request's life on the device, as kv_cache has it on the host: admit, store_prompt, then per token
//! step, and per layer append; at the end release. Every call is ordered in its stream, does not wait,
//! and may be captured in a graph; what it decides (refusals, lengths, tiers, pages) stays in device
//! memory. An engine that owns its memory calls the same free functions on a cache_ref of its own.
//! Objects belong to one stream at a time. Decode attention reads ref(): attention/decode.cuh.
//! @tparam Config          static_config (table/static_config.hpp)
//! @tparam MemoryResource  contract in core/memory.hpp; device memory
template <class Config, class MemoryResource = cuda_async_resource>
class device_kv_cache {
  static_assert(is_static_config_v<Config>,
                "device_kv_cache needs a static_config: kernels know their formats");

 public:
  using policy_type = typename Config::policy_type;

  //! @param policy  what it points at must lie in device memory and outlive the cache
  //! @param stream  fills the memory; the constructor waits for it
  //! @throws invalid_argument naming the first illegal option; cuda_error; what the resource throws
  //! @cost   O(bytes of the cache), and meanwhile as much host memory as all arrays but pages and ring; not
  //!         to be captured in a graph
  device_kv_cache(cache_options options, prompt_limits prompts, policy_type policy,
                  MemoryResource resource, cudaStream_t stream)
    : options_{detail::checked(options_for<Config>(std::move(options)))},
      policy_{checked(policy, options_.shape)},
      prompts_{checked(prompts, options_.shape)},
      storage_{options_,
               make_free_ring(options_.num_pages, options_.checked_ring, resource, stream),
               resource},
      workspace_{workspace_bytes_for(), resource}
  {
    fill(stream);
  }

  [[nodiscard]] cache_options const& options() const noexcept { return options_; }
  [[nodiscard]] cache_shape const& shape() const noexcept { return options_.shape; }
  [[nodiscard]] policy_type const& policy() const noexcept { return policy_; }
  //! Handles for the free operations.
  [[nodiscard]] cache_ref ref() noexcept { return storage_.ref(); }

  // All that take a batch throw invalid_argument where its capacity is above num_slots.

  //! Claims pages for prompts; see diffkv::admit.
  //! @param num_tokens  [batch.capacity] lengths, device memory
  void admit(batch_ref const& batch, std::int32_t const* num_tokens, refusals_ref refusals,
             cudaStream_t stream)
  {
    expect_capacity(batch);
    diffkv::admit(ref(), batch, num_tokens, policy_, workspace_.data(), workspace_.size(), refusals,
                  stream);
  }

  //! Encodes some layers of admitted prompts and finds their first candidates; see
  //! diffkv::store_prompt.
  //! @throws invalid_argument also above the prompt_limits of the constructor
  template <class T>
  void store_prompt(batch_ref const& batch, prompt_source<T> const& source, layer_range layers,
                    cudaStream_t stream)
  {
    expect_capacity(batch);
    DIFFKV_EXPECTS(batch.capacity <= prompts_.prompts && layers.count <= prompts_.layers &&
                     source.max_tokens <= prompts_.tokens,
                   "store_prompt: " + std::to_string(batch.capacity) + " prompts, " +
                     std::to_string(layers.count) + " layers or " +
                     std::to_string(source.max_tokens) + " tokens are above the cache's limits, " +
                     std::to_string(prompts_.prompts) + ", " + std::to_string(prompts_.layers) +
                     " and " + std::to_string(prompts_.tokens));
    diffkv::store_prompt<Config>(ref(), batch, source, layers, policy_, workspace_.data(),
                                 workspace_.size(), stream);
    diffkv::scan_candidates<Config>(ref(), batch, layers, policy_, stream);
  }

  //! Makes room for one more token in each sequence, for all layers; see diffkv::step. Where score_every is 0
  //! candidates are looked for first, among all scores: O(tokens), one kernel more.
  //! @param refusals  device or pinned memory; {}: nobody asks
  void step(batch_ref const& batch, refusals_ref refusals, cudaStream_t stream)
  {
    expect_capacity(batch);
    if (shape().score_every == 0) {
      diffkv::scan_candidates<Config>(ref(), batch, {0, shape().num_layers}, policy_, stream);
    }
    diffkv::step<Config>(ref(), batch, policy_, workspace_.data(), workspace_.size(), refusals,
                         stream);
  }

  //! Stores the new token of one layer; see diffkv::append.
  template <class T>
  void append(batch_ref const& batch, std::uint32_t layer, vectors<T> key, vectors<T> value,
              vectors<T> query, cudaStream_t stream)
  {
    expect_capacity(batch);
    diffkv::append<Config>(ref(), batch, layer, key, value, query, stream);
  }

  //! Gives back all pages of the sequences; see diffkv::release_slots.
  //! @param[out] report  device memory, or null
  void release(batch_ref const& batch, release_report* report, cudaStream_t stream)
  {
    expect_capacity(batch);
    release_slots(ref(), batch, workspace_.data(), workspace_.size(), report, stream);
  }

  //! Free pages, and what each slot holds, into memory that a scheduler reads when it likes; see
  //! diffkv::collect_statistics.
  void statistics(statistics_ref out, cudaStream_t stream)
  {
    collect_statistics(ref(), out, stream);
  }

 private:
  void expect_capacity(batch_ref const& batch) const
  {
    DIFFKV_EXPECTS(batch.capacity <= shape().num_slots,
                   "batch: " + std::to_string(batch.capacity) + " sequences are more than the " +
                     std::to_string(shape().num_slots) + " slots");
  }

  // All options are looked at before any memory is asked for.
  static policy_type checked(policy_type const& policy, cache_shape const& shape)
  {
    validate_policy(policy, shape.max_tokens);
    return policy;
  }
  static prompt_limits checked(prompt_limits const& limits, cache_shape const& shape)
  {
    auto const expect = [](char const* name, std::int64_t value, std::int64_t most) {
      DIFFKV_EXPECTS(value >= 1 && value <= most, "prompt_limits: " + std::string{name} + " " +
                                                    std::to_string(value) + " is not within 1 .. " +
                                                    std::to_string(most));
    };
    expect("prompts", limits.prompts, shape.num_slots);
    expect("layers", limits.layers, shape.num_layers);
    expect("tokens", limits.tokens, shape.max_tokens);
    return limits;
  }

  //! One scratch serves every operation: none of them keeps anything in it, and they are ordered.
  [[nodiscard]] std::size_t workspace_bytes_for()
  {
    std::uint32_t const slots = shape().num_slots;
    std::size_t bytes         = step_workspace_bytes(shape(), slots);
    bytes                     = detail::max_of(bytes, admit_workspace_bytes(slots));
    bytes = detail::max_of(bytes, release_slots_workspace_bytes(shape(), slots));
    return detail::max_of(
      bytes, store_prompt_workspace_bytes(ref(), prompts_.prompts, {0, prompts_.layers},
                                          prompts_.tokens, policy_));
  }

  //! Copies the state of a fresh host cache of the same extents. Pages are cleared as they are there:
  //! a word holds codes of several tokens, and those that are not stored yet keep their bits.
  void fill(cudaStream_t stream)
  {
    cache_options small = options_;
    small.num_pages     = 1;  // pages and ring are not copied
    cache_storage<host_resource> host{small, free_ring<host_resource>{1, false}, {}};
    device_guard const guard{stream};
    storage_.for_each_state_array(host, [&](auto& to, auto& from) {
      if (to.size() == 0) { return; }
      DIFFKV_CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof from[0],
                                      cudaMemcpyHostToDevice, stream));
    });
    page_pool_ref const pool = ref().pool;
    DIFFKV_CUDA_TRY(
      cudaMemsetAsync(pool.base, 0, std::size_t{pool.num_pages} * pool.page_bytes, stream));
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
  }

  cache_options options_;
  policy_type policy_;
  prompt_limits prompts_;
  cache_storage<MemoryResource> storage_;
  buffer<std::byte, MemoryResource> workspace_;
};

}  // namespace diffkv
