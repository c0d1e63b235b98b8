// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A cache with random rows in host and device memory, and attention over it beside the f64 reference.
#include <algorithm>  // max
#include <cmath>      // nextafter
#include <string>

#include "reference/decode_bounds.hpp"
#include "reference/row_attention_f64.hpp"
#include "support/decode_device.cuh"
#include "support/device_cache.hpp"
#include "support/difference.hpp"

namespace diffkv::test {

//! What rows are filled with.
struct row_filling {
  float key_size   = 1.0f;  //!< elements are within +- this
  float value_size = 1.0f;
  //! So many tokens at the start draw the attention of queries with a mean above 0, and have next to
  //! no value: what comes behind them must not be lost.
  std::int32_t sinks = 0;
};

//! Fills the rows of one (sequence, layer), oldest tokens in the low tier, and makes the sequence as
//! long as its longest row. Vectors are conditioned as `append` would.
//! @param tokens  of each head
inline void fill_rows(host::context const& ctx, std::uint32_t slot, std::uint32_t layer,
                      std::vector<tier_counts> const& tokens, random& r,
                      row_filling const& with = {})
{
  cache_ref const& cache = ctx.cache;
  auto const dim         = static_cast<std::size_t>(cache.shape.head_dim);
  layer_state& state     = cache.layer(slot, layer);
  for (std::uint32_t head = 0; head < tokens.size(); ++head) {
    std::size_t const row = cache.shape.row(slot, layer, head);
    reserve_row(ctx, row, tokens[head]);
    for (tier t : {tier::low, tier::high}) {
      for (slot_index s = 0; s < tokens[head].of(t); ++s) {
        auto const position = static_cast<std::int32_t>(t == tier::low ? s : tokens[head].low + s);
        auto key            = r.floats(dim, -with.key_size, with.key_size);
        auto value          = r.floats(dim, -with.value_size, with.value_size);
        for (std::size_t d = 0; position < with.sinks && d < dim; ++d) {
          key[d] += 8.0f;
          value[d] *= 0.01f;
        }
        condition_key(key.data(), cache.key_offset(layer, head), cache.shape.head_dim,
                      cache.conditioned);
        condition_rotation(value.data(), cache.shape.head_dim, cache.conditioned);
        write_token(ctx, row, t, s, key.data(), value.data(), 0.0f, position);
      }
    }
    state.num_tokens = std::max(state.num_tokens, static_cast<std::int32_t>(tokens[head].sum()));
  }
}

//! Tokens around the edges of pages and of 16-token blocks, of both tiers.
template <class Config>
[[nodiscard]] std::vector<tier_counts> edge_lengths()
{
  constexpr tier_pages pages = Config::layouts::pages;
  std::uint32_t const h      = pages.tokens_per_page(tier::high);
  std::uint32_t const l      = pages.has_low ? pages.tokens_per_page(tier::low) : 0;
  std::vector<tier_counts> all{{0, 0}, {1, 0}, {h - 1, 0}, {h, 0}, {h + 1, 0}, {15, 0}, {17, 0}};
  if (l != 0) {
    for (tier_counts const t :
         {tier_counts{0, 1}, tier_counts{1, 1}, tier_counts{h - 1, 1}, tier_counts{h, l - 1},
          tier_counts{h + 1, l}, tier_counts{0, l + 1}, tier_counts{16, 16}, tier_counts{33, 15}}) {
      all.push_back(t);
    }
  }
  return all;
}

template <class Config>
[[nodiscard]] host_cache_parts decode_parts(std::uint32_t slots, std::uint32_t heads,
                                            std::uint32_t group_size, std::int32_t max_tokens,
                                            std::uint32_t layers = 1, std::int32_t score_every = 0)
{
  host_cache_parts parts;
  parts.shape       = {slots,      layers,       heads,      group_size, Config::layouts::head_dim,
                       max_tokens, /*window=*/8, score_every};
  parts.tiers       = Config::layouts::pages;
  parts.conditioned = Config::conditioned;
  parts.num_pages   = static_cast<std::uint32_t>(
    parts.tiers.most_pages(static_cast<std::uint32_t>(max_tokens)) * parts.shape.num_rows());
  if (has(Config::conditioned, conditioning::centred)) {
    random r{slots + 31ull * heads};
    parts.key_offsets = r.floats(
      parts.shape.rows_per_slot() * static_cast<std::size_t>(parts.shape.head_dim), -2.0f, 2.0f);
  }
  return parts;
}

//! Pages that hold no more than asked for: a pool of a few pages for long rows.
template <class Config>
[[nodiscard]] std::uint32_t pages_of(std::vector<std::vector<tier_counts>> const& sequences)
{
  constexpr tier_pages pages = Config::layouts::pages;
  std::uint32_t n            = 1;
  for (auto const& heads : sequences) {
    for (tier_counts const t : heads) {
      n += pages.pages_for(tier::high, t.high) + pages.pages_for(tier::low, t.low);
    }
  }
  return n;
}

//! Largest errors over some rows; docs/numerics.md says of what.
struct decode_errors {
  double out = 0.0;
  double lse = 0.0;
};

//! |x - exact| beyond what rounding `exact` to Out may err by.
template <class Out>
[[nodiscard]] double beyond_rounding(float x, double exact)
{
  // Digits of the significand.
  constexpr int digits = std::is_same_v<Out, float> ? 24 : std::is_same_v<Out, __half> ? 11 : 8;
  int exponent         = 0;
  if (exact == 0.0) { return std::fabs(static_cast<double>(x)); }
  static_cast<void>(std::frexp(exact, &exponent));
  exponent          = std::is_same_v<Out, __half> && exponent < -13 ? -13 : exponent;
  double const half = std::ldexp(0.5, exponent - digits);  // of a step of Out
  double const e    = difference(static_cast<double>(x), exact) - half;
  return e > 0.0 ? e : 0.0;
}

//! Of all q_heads of `slots`. Rows without tokens must give 0 and -inf exactly.
template <class Out>
[[nodiscard]] decode_errors errors_of(decode_answer<Out> const& answer, host::context const& ctx,
                                      std::vector<std::uint32_t> const& slots,
                                      std::vector<float> const& query, std::uint32_t layer,
                                      attention_options const& options)
{
  cache_shape const& shape = ctx.cache.shape;
  auto const dim           = static_cast<std::size_t>(shape.head_dim);
  decode_errors errors;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    for (std::uint32_t head = 0; head < shape.num_heads; ++head) {
      std::size_t const first = s * shape.num_q_heads() + head * std::size_t{shape.group_size};
      std::vector<float> const q(
        query.begin() + static_cast<std::ptrdiff_t>(first * dim),
        query.begin() + static_cast<std::ptrdiff_t>((first + shape.group_size) * dim));
      auto const exact = attend_row_f64(ctx, slots[s], layer, head, q, options);
      for (std::size_t g = 0; g < shape.group_size; ++g) {
        double error = 0.0;
        double size  = 0.0;
        for (std::size_t d = 0; d < dim; ++d) {
          float const x = to_f32(answer.out[(first + g) * dim + d]);
          error += std::pow(beyond_rounding<Out>(x, exact[g].out[d]), 2);
          size += exact[g].out[d] * exact[g].out[d];
          if (exact[g].lse == -std::numeric_limits<double>::infinity() && x != 0.0f) {
            error = std::numeric_limits<double>::infinity();
          }
        }
        size             = std::sqrt(std::max(size, exact[g].spread * exact[g].spread));
        errors.out       = std::max(errors.out, error == 0.0 ? 0.0 : std::sqrt(error) / size);
        double const lse = difference(static_cast<double>(answer.lse[first + g]), exact[g].lse);
        errors.lse =
          std::max(errors.lse, lse == 0.0 ? 0.0 : lse / (1.0 + std::fabs(exact[g].lse) / 25.0));
      }
    }
  }
  return errors;
}

//! A host cache, its mirror on the device, and queries: one call and its check. Fill `host` first.
template <class Config, class Variant, class T, class Out>
class decode_case {
 public:
  explicit decode_case(host_cache_parts parts, std::uint64_t seed = 1)
    : random_{seed}, host_{with_ring_of_variant(std::move(parts))}
  {
    host_.shuffle_pages(random_);
    options_.scale                = 1.0f / std::sqrt(static_cast<float>(shape().head_dim));
    options_.exact_lagged_queries = Variant::exact_lag;
  }

  [[nodiscard]] host_cache& host() { return host_; }
  [[nodiscard]] random& numbers() { return random_; }
  [[nodiscard]] cache_shape const& shape() const { return host_.shape(); }
  [[nodiscard]] attention_options& options() { return options_; }
  //! Queries of so many sequences, elements between low and high.
  [[nodiscard]] std::vector<float> queries(std::size_t count, float low, float high)
  {
    return rounded<T>(random_.floats(
      count * shape().num_q_heads() * static_cast<std::size_t>(shape().head_dim), low, high));
  }
  //! The device's cache becomes what the host's is.
  void upload()
  {
    if (mirror_ == nullptr) {
      mirror_ = std::make_unique<device_cache>(host_.ref(), 1);
    } else {
      mirror_->upload(host_.ref());
    }
  }
  [[nodiscard]] cache_ref const& on_device()
  {
    if (mirror_ == nullptr) { upload(); }
    return mirror_->ref();
  }
  [[nodiscard]] decode_device<Config, Variant, T, Out> attention(decode_call call)
  {
    call.options = options_;
    return {on_device(), call};
  }
  [[nodiscard]] decode_errors errors(decode_answer<Out> const& answer,
                                     std::vector<std::uint32_t> const& slots,
                                     std::vector<float> const& query, std::uint32_t layer = 0) const
  {
    return errors_of(answer, host_.context(), slots, query, layer, options_);
  }

 private:
  [[nodiscard]] static host_cache_parts with_ring_of_variant(host_cache_parts parts)
  {
    parts.exact_lagged_queries = Variant::exact_lag;
    return parts;
  }

  random random_;
  host_cache host_;
  std::unique_ptr<device_cache> mirror_{};
  attention_options options_{};
};

//! Slots 0 .. count - 1 in any order.
[[nodiscard]] inline std::vector<std::uint32_t> some_slots(std::uint32_t count, random& r)
{
  std::vector<std::uint32_t> slots(count);
  for (std::uint32_t i = 0; i < count; ++i) { slots[i] = i; }
  shuffle(slots.data(), count, r);
  return slots;
}

}  // namespace diffkv::test
