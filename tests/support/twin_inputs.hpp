// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What random calls bring along: slots, lengths, vectors and importances, each in pinned memory for the
//! host's cache and copied, in the order of a stream, for the device's.
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/host/prompt.hpp>

#include "support/device_memory.hpp"
#include "support/twin_setup.hpp"

namespace diffkv::test {

//! @tparam T  element of keys, values and queries
template <class T>
class twin_inputs {
 public:
  twin_inputs(twin_setup const& setup, cudaStream_t stream)
    : shape_{setup.options.shape},
      prompt_tokens_{setup.prompt_tokens},
      prompts_{setup.prompts},
      stream_{stream}
  {}

  //! Slots of a batch; whoever reads behind them finds no slot.
  //! @param counted  the number of slots is read from device memory
  [[nodiscard]] batch_ref batch(std::vector<std::uint32_t> const& slots, std::uint32_t capacity,
                                bool counted) const
  {
    for (std::uint32_t i = 0; i < shape_.num_slots; ++i) {
      slots_.host()[i] = i < slots.size() ? slots[i] : 0xFFFF'FFFFu;
    }
    auto const size  = static_cast<std::uint32_t>(slots.size());
    count_.host()[0] = size;
    slots_.upload(stream_);
    count_.upload(stream_);
    if (!counted) { return {slots_.device(), nullptr, size}; }
    return {slots_.device(), count_.device(), capacity};
  }

  //! Lengths of prompts to be admitted.
  [[nodiscard]] std::int32_t const* lengths(std::vector<std::int32_t> const& from) const
  {
    for (std::size_t i = 0; i < from.size(); ++i) { lengths_.host()[i] = from[i]; }
    lengths_.upload(stream_);
    return lengths_.device();
  }

  //! New vectors and importances of prompts that follow one another.
  void renew_prompts(std::vector<host::admission> const& prompts, random& r) const
  {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      first_tokens_.host()[i] = at;
      at += prompts[i].num_tokens;
    }
    first_tokens_.upload(stream_);
    renew(prompt_keys_, 2.0f, r);
    renew(prompt_values_, 2.0f, r);
    for (float& x : importances_.host()) {
      x = r.uniform(0.0f, 3.0f) / static_cast<float>(prompt_tokens_);
    }
    importances_.upload(stream_);
  }
  //! The prompts, from a layer on, for the device.
  [[nodiscard]] prompt_source<T> prompts_from(std::uint32_t layer) const
  {
    auto const heads = static_cast<std::ptrdiff_t>(shape_.num_heads);
    auto const n     = static_cast<std::ptrdiff_t>(tokens());
    prompt_source<T> from;
    from.key   = packed<T const>(prompt_keys_.device() + layer * layer_stride(), shape_.num_heads,
                               shape_.head_dim);
    from.value = packed<T const>(prompt_values_.device() + layer * layer_stride(), shape_.num_heads,
                                 shape_.head_dim);
    from.key_layer_stride = from.value_layer_stride = layer_stride();
    from.importances                                = importances_.device() + layer * heads * n;
    from.importance_layer_stride                    = heads * n;
    from.importance_head_stride                     = n;
    from.first_tokens                               = first_tokens_.device();
    from.max_tokens                                 = prompt_tokens_;
    return from;
  }
  //! One layer of the i-th prompt, for the host.
  struct host_prompt {
    vectors<T const> key, value;
    std::vector<float> importances;  //!< [num_heads, tokens]
  };
  [[nodiscard]] host_prompt prompt_on_host(std::size_t i, std::int32_t num_tokens,
                                           std::uint32_t layer) const
  {
    std::int64_t const first = first_tokens_.host()[i];
    auto const of            = [&](staged_array<T> const& x) {
      return packed<T const>(
        x.host().data() + layer * layer_stride() + first * shape_.num_heads * shape_.head_dim,
        shape_.num_heads, shape_.head_dim);
    };
    host_prompt p{of(prompt_keys_), of(prompt_values_), {}};
    for (std::uint32_t h = 0; h < shape_.num_heads; ++h) {
      float const* from =
        importances_.host().data() + (std::size_t{layer} * shape_.num_heads + h) * tokens() + first;
      p.importances.insert(p.importances.end(), from, from + num_tokens);
    }
    return p;
  }

  //! New vectors of one token per slot and layer.
  void renew_tokens(random& r) const
  {
    renew(keys_, 1.0f, r);
    renew(values_, 1.0f, r);
    renew(queries_, r.one_in(3) ? 8.0f : 1.0f, r);
  }
  //! The tokens of one layer, from the index-th of the batch on.
  struct token_vectors {
    vectors<T const> key, value, query;
  };
  [[nodiscard]] token_vectors on_device(std::uint32_t layer) const
  {
    auto const of = [&](staged_array<T> const& x, std::uint32_t heads) {
      return packed<T const>(x.device() + at(layer, 0, heads), heads, shape_.head_dim);
    };
    return {of(keys_, shape_.num_heads), of(values_, shape_.num_heads),
            of(queries_, shape_.num_q_heads())};
  }
  [[nodiscard]] token_vectors on_host(std::uint32_t layer, std::uint32_t index = 0) const
  {
    auto const of = [&](staged_array<T> const& x, std::uint32_t heads) {
      return packed<T const>(x.host().data() + at(layer, index, heads), heads, shape_.head_dim);
    };
    return {of(keys_, shape_.num_heads), of(values_, shape_.num_heads),
            of(queries_, shape_.num_q_heads())};
  }

 private:
  [[nodiscard]] std::size_t tokens() const
  {
    return static_cast<std::size_t>(prompt_tokens_) * prompts_;
  }
  [[nodiscard]] std::ptrdiff_t layer_stride() const
  {
    return static_cast<std::ptrdiff_t>(tokens() * shape_.num_heads) * shape_.head_dim;
  }
  [[nodiscard]] std::ptrdiff_t at(std::uint32_t layer, std::uint32_t index,
                                  std::uint32_t heads) const
  {
    return static_cast<std::ptrdiff_t>((std::size_t{layer} * shape_.num_slots + index) * heads) *
           shape_.head_dim;
  }
  void renew(staged_array<T> const& x, float size, random& r) const
  {
    for (T& element : x.host()) { from_f32(r.uniform(-size, size), element); }
    x.upload(stream_);
  }

  cache_shape shape_;
  std::int32_t prompt_tokens_;
  std::uint32_t prompts_;
  cudaStream_t stream_;
  staged_array<std::uint32_t> slots_{shape_.num_slots};
  staged_array<std::uint32_t> count_{1};
  staged_array<std::int32_t> lengths_{prompts_};
  staged_array<std::int64_t> first_tokens_{prompts_};
  staged_array<T> prompt_keys_{static_cast<std::size_t>(layer_stride()) * shape_.num_layers};
  staged_array<T> prompt_values_{static_cast<std::size_t>(layer_stride()) * shape_.num_layers};
  staged_array<float> importances_{tokens() * shape_.rows_per_slot()};
  staged_array<T> keys_{static_cast<std::size_t>(at(shape_.num_layers, 0, shape_.num_heads))};
  staged_array<T> values_{static_cast<std::size_t>(at(shape_.num_layers, 0, shape_.num_heads))};
  staged_array<T> queries_{
    static_cast<std::size_t>(at(shape_.num_layers, 0, shape_.num_q_heads()))};
};

}  // namespace diffkv::test
