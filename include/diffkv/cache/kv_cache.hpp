// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The cache: owns the memory and calls the operations in order.
//! Read before this: cache/sequence_usage.hpp.  This is the last room.
#include <diffkv/cache/cache_storage.hpp>
#include <diffkv/cache/sequence_usage.hpp>
#include <diffkv/host/decode_attention.hpp>
#include <diffkv/host/prefill_attention.hpp>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>

#include <memory>  // unique_ptr
#include <vector>

namespace diffkv {

//! A request's life: admit, then per layer prefill_attention and store_prompt; then per token step,
//! and per layer append and decode; at the end release. Objects belong to one thread at a time.
//! @tparam Config          `dynamic_config<Policy>` or `static_config<...>` (table/static_config.hpp)
//! @tparam MemoryResource  contract in core/memory.hpp
template <class Config, class MemoryResource = host_resource>
class kv_cache {
  static_assert(MemoryResource::is_host_accessible,
                "kv_cache runs the host operations: MemoryResource must be host accessible");

 public:
  using policy_type = typename Config::policy_type;
  static_assert(is_policy_v<policy_type>, "Config::policy_type must fulfil policy/contract.hpp");

  //! @throws invalid_argument naming the first illegal option; what the resource throws
  explicit kv_cache(cache_options options, policy_type policy = {}, MemoryResource resource = {})
    : options_{detail::checked(options_for<Config>(std::move(options)))},
      policy_{checked(policy, options_.shape)},
      storage_{options_,
               free_ring<MemoryResource>{options_.num_pages, options_.checked_ring, resource},
               resource},
      context_{std::make_unique<host::context>(storage_.ref())}
  {}

  //! Options with every default resolved (page_bytes, clips).
  [[nodiscard]] cache_options const& options() const noexcept { return options_; }
  [[nodiscard]] cache_shape const& shape() const noexcept { return options_.shape; }
  [[nodiscard]] policy_type const& policy() const noexcept { return policy_; }
  //! For the free operations of the rooms compaction, attention and host.
  [[nodiscard]] host::context const& context() const noexcept { return *context_; }
  [[nodiscard]] std::uint64_t num_free_pages() const noexcept
  {
    return context_->cache.ring.num_free();
  }

  //! Claims pages for prompts; see host::admit. @return number refused for want of pages
  std::uint32_t admit(host::admission const* batch, std::uint32_t count, refusals_ref refusals = {})
  {
    return host::admit(*context_, batch, count, policy_, refusals);
  }
  //! One prompt. @return false if there are not enough pages: nothing has changed
  [[nodiscard]] bool admit(std::uint32_t slot, std::int32_t num_tokens)
  {
    host::admission const one{slot, num_tokens};
    return admit(&one, 1) == 0;
  }

  //! Thresholds of one head of one request, from now on.
  //! @throws invalid_argument for a slot, layer or head out of range, thresholds that are not legal, or
  //!         a cache made without limits_per_slot, before anything is changed
  void set_limits(std::uint32_t slot, std::uint32_t layer, std::uint32_t head, thresholds limits)
  {
    host::detail::expect_slot(shape(), slot);
    host::detail::expect_layer(shape(), layer);
    DIFFKV_EXPECTS(head < shape().num_heads, "head: " + std::to_string(head) + " is not below " +
                                               std::to_string(shape().num_heads));
    DIFFKV_EXPECTS(options_.limits_per_slot,
                   "limits_per_slot: must be true for requests to have limits of their own");
    validate(limits);
    storage_.limits_of(shape().row(slot, layer, head)) = limits;
  }
  //! The same for all layers and heads of a request.
  void set_limits(std::uint32_t slot, thresholds limits)
  {
    for (std::uint32_t layer = 0; layer < shape().num_layers; ++layer) {
      for (std::uint32_t head = 0; head < shape().num_heads; ++head) {
        set_limits(slot, layer, head, limits);
      }
    }
  }

  //! Number of the prompt's last queries that its importances must count.
  [[nodiscard]] std::int32_t prompt_queries(std::int32_t num_tokens) const noexcept
  {
    return policy_.prompt_queries(num_tokens);
  }

  //! Causal attention of the prompt in `slot` with importances; see host::prefill_attention.
  template <class T, class Out, class Executor = host::sequential>
  void prefill_attention(std::uint32_t slot, attention_options const& options, vectors<T> query,
                         vectors<T> key, vectors<T> value, vectors<Out> out, float* lse,
                         float* importances, Executor const& executor = {}) const
  {
    host::detail::expect_slot(shape(), slot);
    query_span const& prompt = context_->cache.layer(slot, 0).queries;
    host::prefill_attention({prompt.prompt_tokens, shape().num_heads, shape().group_size,
                             shape().head_dim, prompt.prompt_queries},
                            options, query, key, value, out, lse, importances, executor);
  }

  //! Encodes one layer of an admitted prompt and finds its first candidates; see host::store_prompt.
  template <class T, class Executor = host::sequential>
  void store_prompt(std::uint32_t slot, std::uint32_t layer, vectors<T> key, vectors<T> value,
                    float const* importances, Executor const& executor = {})
  {
    host::store_prompt(*context_, slot, layer, policy_, key, value, importances, executor);
    host::scan_candidates(*context_, slot, layer, policy_);
  }

  //! Makes room for one more token in each sequence; see host::step. @return number refused
  std::uint32_t step(std::uint32_t const* slots, std::uint32_t count, refusals_ref refusals = {})
  {
    if (shape().score_every == 0) {
      for (std::uint32_t s = 0; s < count; ++s) {
        for (std::uint32_t l = 0; l < shape().num_layers; ++l) {
          host::scan_candidates(*context_, slots[s], l, policy_);
        }
      }
    }
    return host::step(*context_, slots, count, policy_, refusals);
  }

  //! Stores the new token of one layer; see host::append.
  template <class T>
  void append(std::uint32_t const* slots, std::uint32_t count, std::uint32_t layer, vectors<T> key,
              vectors<T> value, vectors<T> query)
  {
    host::append(*context_, slots, count, layer, key, value, query);
  }

  //! Decode attention of one layer with the score path; see host::decode_attention.
  //! Sequences whose step was refused give attention over what they have and record nothing.
  template <class T, class Out, class Executor = host::sequential>
  void decode(std::uint32_t const* slots, std::uint32_t count, std::uint32_t layer,
              attention_options const& options, vectors<T> query, vectors<Out> out, float* lse,
              Executor const& executor = {})
  {
    host::decode_attention(*context_, slots, count, layer, policy_, options, query, out, lse, true,
                           executor);
  }

  //! Gives back all pages of the sequences; see host::release_slots.
  release_report release(std::uint32_t const* slots, std::uint32_t count)
  {
    return host::release_slots(*context_, slots, count);
  }

  //! @throws invalid_argument for a slot out of range
  [[nodiscard]] sequence_usage usage(std::uint32_t slot) const
  {
    host::detail::expect_slot(shape(), slot);
    return usage_of(context_->cache, slot);
  }

 private:
  static policy_type checked(policy_type const& policy, cache_shape const& shape)
  {
    validate_policy(policy, shape.max_tokens);
    return policy;
  }

  cache_options options_;
  policy_type policy_;
  cache_storage<MemoryResource> storage_;
  std::unique_ptr<host::context> context_;
};

}  // namespace diffkv
