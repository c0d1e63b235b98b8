// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The whole use of the library on the GPU in one class: admit, attend to and store prompts; step,
//! plan, append, attend; release.
//! Read before this: llama3/cuda/device_cache_kind.hpp, diffkv/cache/device_kv_cache.cuh.
//! Read next: llama3/cuda/device_model.hpp.
#include "llama3/cuda/device_cache_kind.hpp"
#include "llama3/cuda/fixed_mix_policy.hpp"
#include "llama3/cuda/gpu_memory.hpp"

#include <diffkv/attention/decode.cuh>
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/compaction/calibrate.cuh>
#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/device_harmonic.hpp>
#include <diffkv/prefill/prefill.cuh>

#include <cmath>  // sqrt
#include <type_traits>

namespace llama3 {

//! @tparam Config   diffkv::static_config with any_policy or fixed_mix_policy
//! @tparam Variant  diffkv::decode_variant with the model's group and the cache's score_every
template <class Config, class Variant>
class device_cache_of final : public device_cache {
  using policy_type             = typename Config::policy_type;
  static constexpr int head_dim = Config::layouts::head_dim;

 public:
  device_cache_of(diffkv::cache_options options, cache_settings const& settings,
                  device_cache_setup const& setup, cudaStream_t stream)
    : resource_{stream},
      harmonic_{options.shape.max_tokens, resource_, stream},
      cache_{std::move(options),
             {static_cast<std::uint32_t>(setup.prompts), 1, longest_prompt(setup)},
             policy_of(settings),
             resource_,
             stream},
      moves_tokens_{may_move_tokens(settings)},
      counted_{settings.policy == diffkv::policy_kind::artifact && !is_fixed_mix
                 ? diffkv::importance_queries{diffkv::artifact_policy::observed_queries}
                 : diffkv::importance_queries{}},
      plan_memory_{diffkv::decode_workspace_bytes<Config, Variant>(shape(), shape().num_slots,
                                                                   all_layers(), grid()),
                   resource_},
      plan_{diffkv::make_decode_workspace<Config, Variant>(plan_memory_.data(), plan_memory_.size(),
                                                           shape(), shape().num_slots, all_layers(),
                                                           grid())},
      prompt_stride_{setup.prompt_tokens},
      importances_{std::size_t{shape().num_heads} * static_cast<std::size_t>(prompt_stride_),
                   resource_},
      lse_{moves_tokens_
             ? std::size_t{shape().num_q_heads()} * static_cast<std::size_t>(prompt_stride_)
             : 0,
           resource_},
      sums_{lse_.size(), resource_},
      step_scratch_{moves_tokens_ ? 0 : diffkv::step_workspace_bytes(shape(), shape().num_slots),
                    resource_}
  {
    attention_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    DIFFKV_CUDA_TRY(
      cudaMemsetAsync(importances_.data(), 0, importances_.size() * sizeof(float), stream));
  }

  [[nodiscard]] diffkv::cache_options const& options() const override { return cache_.options(); }
  [[nodiscard]] diffkv::cache_ref ref() override { return cache_.ref(); }

  void admit(prompt_batch const& prompts, diffkv::refusals_ref refusals,
             cudaStream_t stream) override
  {
    cache_.admit(prompts.slots, prompts.lengths, refusals, stream);
  }

  void attend_prompt(prompt_batch const& prompts, __half const* q, __half const* k, __half const* v,
                     __half* out, cudaStream_t stream) override
  {
    auto const query = heads_of(q, shape().num_q_heads());
    auto const key   = heads_of(k, shape().num_heads);
    auto const value = heads_of(v, shape().num_heads);
    diffkv::prefill_shape const heads{shape().num_heads, shape().group_size};
    diffkv::prefill_batch batch;
    batch.capacity      = prompts.slots.capacity;
    batch.first_queries = prompts.first_tokens;
    batch.num_queries   = prompts.num_tokens;
    diffkv::prefill_attention<head_dim>(heads, batch, attention_, query, key, value,
                                        heads_of(out, shape().num_q_heads()), lse_.data(), stream);
    if (moves_tokens_) {
      diffkv::add_importance<head_dim>(heads, batch, attention_, counted_, query, key, lse_.data(),
                                       sums_.data(), stream);
      diffkv::finish_importance(heads, batch, counted_, sums_.data(), importances_.data(), stream);
    }
  }

  void store_prompt(int layer, prompt_batch const& prompts, __half const* k, __half const* v,
                    cudaStream_t stream) override
  {
    diffkv::prompt_source<__half> source;
    source.key                    = heads_of(k, shape().num_heads);
    source.value                  = heads_of(v, shape().num_heads);
    source.importances            = importances_.data();
    source.importance_head_stride = prompts.num_tokens;
    source.first_tokens           = prompts.first_tokens;
    source.max_tokens             = prompts.longest;
    cache_.store_prompt(prompts.slots, source, {static_cast<std::uint32_t>(layer), 1}, stream);
  }

  void step(diffkv::batch_ref const& batch, diffkv::refusals_ref refusals,
            cudaStream_t stream) override
  {
    if (moves_tokens_) {
      cache_.step(batch, refusals, stream);
    } else {  // without the search for candidates, which nobody would look at
      diffkv::step<Config>(cache_.ref(), batch, cache_.policy(), step_scratch_.data(),
                           step_scratch_.size(), refusals, stream);
    }
  }

  void plan(diffkv::batch_ref const& batch, cudaStream_t stream) override
  {
    diffkv::plan_decode<Config>(cache_.ref(), batch, all_layers(), plan_, stream);
  }

  void append(int layer, diffkv::batch_ref const& batch, __half const* k, __half const* v,
              cudaStream_t stream) override
  {
    diffkv::vectors<__half const> const no_query{};  // attention itself keeps it for later scores
    cache_.append(batch, static_cast<std::uint32_t>(layer), heads_of(k, shape().num_heads),
                  heads_of(v, shape().num_heads), no_query, stream);
  }

  void attend(int layer, __half const* q, __half* out, cudaStream_t stream) override
  {
    diffkv::decode_attention<Config, Variant>(
      cache_.ref(), static_cast<std::uint32_t>(layer), cache_.policy(), attention_, plan_,
      heads_of(q, shape().num_q_heads()), heads_of(out, shape().num_q_heads()), /*lse=*/nullptr,
      stream);
  }

  void release(diffkv::batch_ref const& batch, cudaStream_t stream) override
  {
    cache_.release(batch, /*report=*/nullptr, stream);
  }

  void statistics(std::uint64_t* free_pages, diffkv::sequence_usage* usage,
                  cudaStream_t stream) override
  {
    cache_.statistics({free_pages, usage}, stream);
  }

 private:
  static constexpr bool is_fixed_mix = std::is_same_v<policy_type, fixed_mix_policy>;

  [[nodiscard]] diffkv::cache_shape const& shape() const noexcept { return cache_.shape(); }
  [[nodiscard]] diffkv::layer_range all_layers() const noexcept { return {0, shape().num_layers}; }
  [[nodiscard]] static diffkv::decode_grid grid()
  {
    return diffkv::default_decode_grid<Config, Variant>();
  }
  [[nodiscard]] static std::int32_t longest_prompt(device_cache_setup const& setup) noexcept
  {
    return setup.prompt_tokens < setup.max_tokens ? setup.prompt_tokens : setup.max_tokens;
  }
  //! Where every token stays high, whatever its importance, nobody asks for it.
  [[nodiscard]] static bool may_move_tokens(cache_settings const& settings) noexcept
  {
    return is_fixed_mix || settings.low.has_value() || settings.limits.low > 0.0f ||
           settings.policy == diffkv::policy_kind::static_budget || settings.score_every > 0;
  }

  [[nodiscard]] policy_type policy_of(cache_settings const& settings) const
  {
    if constexpr (is_fixed_mix) {
      return {};
    } else {
      return policy_for(settings, harmonic_.ref());
    }
  }

  template <class T>
  [[nodiscard]] static diffkv::vectors<T> heads_of(T* data, std::uint32_t num_heads) noexcept
  {
    return diffkv::packed(data, num_heads, head_dim);
  }

  diffkv::cuda_async_resource resource_;
  diffkv::device_harmonic_table<> harmonic_;  // before the cache, whose policy reads it
  diffkv::device_kv_cache<Config> cache_;
  bool moves_tokens_;  // from tier to tier, or out
  diffkv::importance_queries counted_;
  diffkv::attention_options attention_{};
  device_array<std::byte> plan_memory_;
  diffkv::decode_workspace_ref plan_;
  int prompt_stride_;                     // tokens that the arrays below have room for
  device_array<float> importances_;       // [num_heads, tokens] of one layer
  device_array<float> lse_, sums_;        // [num_q_heads, tokens] of one layer
  device_array<std::byte> step_scratch_;  // where the cache's own step is not used
};

//! Makes a device_cache_of; device_cache_kind::make points at one of these.
template <class Config, class Variant>
[[nodiscard]] std::unique_ptr<device_cache> make_device_cache_of(diffkv::cache_options options,
                                                                 cache_settings const& settings,
                                                                 device_cache_setup const& setup,
                                                                 cudaStream_t stream)
{
  return std::make_unique<device_cache_of<Config, Variant>>(std::move(options), settings, setup,
                                                            stream);
}

//! See calibration_layer.
template <int HeadDim>
void calibrate_layer(calibration_layer const& layer, cudaStream_t stream)
{
  auto const q_heads = static_cast<std::uint32_t>(layer.num_q_heads);
  auto const heads   = static_cast<std::uint32_t>(layer.num_heads);
  diffkv::prefill_batch batch;
  batch.capacity      = 1;
  batch.first_queries = layer.first_tokens;
  batch.num_queries   = layer.num_tokens;
  diffkv::attention_options options;
  options.scale  = static_cast<float>(1.0 / std::sqrt(static_cast<double>(HeadDim)));
  auto const key = diffkv::packed(layer.k, heads, HeadDim);
  diffkv::prefill_attention<HeadDim>({heads, q_heads / heads}, batch, options,
                                     diffkv::packed(layer.q, q_heads, HeadDim), key,
                                     diffkv::packed(layer.v, heads, HeadDim),
                                     diffkv::packed(layer.out, q_heads, HeadDim), nullptr, stream);
  diffkv::calibration_keys<__half> keys;
  keys.key        = key;
  keys.num_tokens = layer.num_tokens;
  keys.num_layers = 1;
  keys.num_heads  = heads;
  keys.head_dim   = HeadDim;
  auto scratch    = make_array<std::byte>(
    static_cast<std::int64_t>(diffkv::calibrate_workspace_bytes(keys)), stream);
  diffkv::calibrate_key_offsets(keys, layer.offsets, scratch.data(), scratch.size(), stream);
}

//! @tparam Policy        diffkv::any_policy or fixed_mix_policy
//! @tparam High, Low     formats; Low is void for a cache without low tier
//! @tparam Conditioning  of the cache
template <class Policy, class High, class Low, int HeadDim, int GroupSize, int ScoreEvery,
          diffkv::conditioning Conditioning>
[[nodiscard]] device_cache_kind make_kind()
{
  using config  = diffkv::static_config<Policy, High, Low, HeadDim, Conditioning>;
  using variant = diffkv::decode_variant<GroupSize, ScoreEvery>;
  device_cache_kind kind;
  kind.high = High::spec;
  if constexpr (!std::is_void_v<Low>) { kind.low = Low::spec; }
  kind.head_dim     = HeadDim;
  kind.group_size   = GroupSize;
  kind.score_every  = ScoreEvery;
  kind.conditioning = Conditioning;
  kind.fixed_mix    = std::is_same_v<Policy, fixed_mix_policy>;
  kind.make         = make_device_cache_of<config, variant>;
  kind.calibrate    = calibrate_layer<HeadDim>;
  return kind;
}

}  // namespace llama3
