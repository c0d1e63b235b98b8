// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache that holds the same prompt in every layer, for the benches of attention, prompt and step.
#include "bench_inputs.hpp"

#include <diffkv/cache/kv_cache.hpp>
#include <diffkv/policy/paper.hpp>

namespace bench {

//! 40 % of the tokens k8v4, 40 % k4v2, 20 % pruned.
struct mix {};

//! The formats of a workload: a format stands for itself, with every token high.
template <class Tiers>
struct tier_formats {
  static constexpr diffkv::format_spec high = Tiers::spec;
  static constexpr diffkv::format_spec low  = Tiers::spec;
  static constexpr bool has_low             = false;
};
template <>
struct tier_formats<mix> {
  static constexpr diffkv::format_spec high = diffkv::k8v4::spec;
  static constexpr diffkv::format_spec low  = diffkv::k4v2::spec;
  static constexpr bool has_low             = true;
};

struct workload_shape {
  std::uint32_t num_layers         = 1;
  std::uint32_t num_heads          = 3;
  std::uint32_t group_size         = 3;
  int head_dim                     = 64;
  int prompt_tokens                = 512;
  int more_tokens                  = 0;
  int score_every                  = 0;
  diffkv::conditioning conditioned = diffkv::conditioning::none;
};

//! Vectors of a prompt in f16, importances that give its tiers, and an empty cache.
template <class Tiers>
class workload {
 public:
  using formats    = tier_formats<Tiers>;
  using cache_type = diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>>;

  explicit workload(workload_shape const& shape)
    : shape_{shape},
      keys_{to_halves(normal_numbers(num_vectors() * dim(), 7))},
      values_{to_halves(normal_numbers(num_vectors() * dim(), 8))},
      queries_{to_halves(normal_numbers(num_q_heads() * dim(), 9))},
      cache_{options()}
  {
    // a_h = 1 and a_l = 0.1: 2 / i is high, 0.5 / i is low, 0.01 / i is pruned.
    float const by_fifth[] = {2.0f, 0.5f, 2.0f, 0.5f, formats::has_low ? 0.01f : 2.0f};
    for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
      for (int i = 1; i <= shape.prompt_tokens; ++i) {
        importances_.push_back(by_fifth[i % 5] / static_cast<float>(i));
      }
    }
  }

  //! False if there are not enough pages, which would be a mistake of the bench.
  [[nodiscard]] bool admit() { return cache_.admit(0, shape_.prompt_tokens); }
  void store_prompt(std::uint32_t layer)
  {
    cache_.store_prompt(0, layer, keys(), values(), importances_.data());
  }
  [[nodiscard]] bool fill()
  {
    bool const admitted = admit();
    for (std::uint32_t layer = 0; admitted && layer < shape_.num_layers; ++layer) {
      store_prompt(layer);
    }
    return admitted;
  }
  void release()
  {
    std::uint32_t const slot = 0;
    cache_.release(&slot, 1);
  }
  //! One more token for every layer: the vectors of prompt token `like`.
  void append(std::uint32_t layer, int like)
  {
    std::uint32_t const slot            = 0;
    diffkv::vectors<__half const> key   = keys();
    diffkv::vectors<__half const> value = values();
    key.data                            = key.at(like, 0);
    value.data                          = value.at(like, 0);
    cache_.append(&slot, 1, layer, key, value, queries());
  }
  void decode(std::uint32_t layer, std::vector<float>& out)
  {
    std::uint32_t const slot = 0;
    cache_.decode(&slot, 1, layer, attention(), queries(), out_of(out), nullptr);
  }

  [[nodiscard]] diffkv::attention_options attention() const
  {
    diffkv::attention_options options;
    options.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    return options;
  }
  [[nodiscard]] diffkv::vectors<__half const> keys() const { return of_heads(keys_); }
  [[nodiscard]] diffkv::vectors<__half const> values() const { return of_heads(values_); }
  [[nodiscard]] diffkv::vectors<__half const> queries() const
  {
    return diffkv::packed(queries_.data(), static_cast<std::uint32_t>(num_q_heads()),
                          shape_.head_dim);
  }
  [[nodiscard]] diffkv::vectors<float> out_of(std::vector<float>& out) const
  {
    out.resize(num_q_heads() * dim());
    return diffkv::packed(out.data(), static_cast<std::uint32_t>(num_q_heads()), shape_.head_dim);
  }
  [[nodiscard]] cache_type& cache() { return cache_; }
  [[nodiscard]] workload_shape const& shape() const { return shape_; }
  [[nodiscard]] std::size_t dim() const { return static_cast<std::size_t>(shape_.head_dim); }
  [[nodiscard]] std::size_t num_q_heads() const { return shape_.num_heads * shape_.group_size; }
  //! Key or value vectors of one layer's prompt.
  [[nodiscard]] std::size_t num_vectors() const
  {
    return static_cast<std::size_t>(shape_.prompt_tokens) * shape_.num_heads;
  }

  //! Laws of a row: a stored position is there once, and below the number of tokens.
  [[nodiscard]] bool rows_are_right()
  {
    auto const& context = cache_.context();
    for (std::size_t r = 0; r < cache_.shape().num_rows(); ++r) {
      diffkv::row_view const row = context.row(r);
      std::vector<bool> seen(static_cast<std::size_t>(context.cache.layer(0, 0).num_tokens));
      for (diffkv::tier t : {diffkv::tier::high, diffkv::tier::low}) {
        for (diffkv::slot_index s = 0; s < row.state().tokens.of(t); ++s) {
          auto const position = static_cast<std::size_t>(row.position(t, s));
          if (position >= seen.size() || seen[position]) { return false; }
          seen[position] = true;
        }
      }
    }
    std::uint64_t const held = cache_.usage(0).pages;
    return held + cache_.num_free_pages() == cache_.options().num_pages;
  }

 private:
  [[nodiscard]] diffkv::vectors<__half const> of_heads(std::vector<__half> const& x) const
  {
    return diffkv::packed(x.data(), shape_.num_heads, shape_.head_dim);
  }
  [[nodiscard]] diffkv::cache_options options() const
  {
    diffkv::cache_options o;
    o.shape.num_layers  = shape_.num_layers;
    o.shape.num_heads   = shape_.num_heads;
    o.shape.group_size  = shape_.group_size;
    o.shape.head_dim    = shape_.head_dim;
    o.shape.max_tokens  = shape_.prompt_tokens + shape_.more_tokens;
    o.shape.window      = 1;  // the tiers come from the importances alone
    o.shape.score_every = shape_.score_every;
    o.high              = formats::high;
    o.low               = formats::low;
    o.has_low           = formats::has_low;
    o.limits            = {1.0f, 0.1f};
    o.conditioned       = shape_.conditioned;
    if (has(o.conditioned, diffkv::conditioning::centred)) {
      o.key_offsets = normal_numbers(o.shape.rows_per_slot() * dim(), 10);
    }
    o.num_pages = static_cast<std::uint32_t>(diffkv::pages_for_all(o));
    return o;
  }

  workload_shape shape_;
  std::vector<__half> keys_;
  std::vector<__half> values_;
  std::vector<__half> queries_;
  std::vector<float> importances_;
  cache_type cache_;
};

}  // namespace bench
