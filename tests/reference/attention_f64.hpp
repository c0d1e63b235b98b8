// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Attention as its formula says, in f64, token by token.
#include <diffkv/attention/attention_options.hpp>  // attention_options

#include <cmath>
#include <limits>
#include <vector>

#include "reference/hadamard.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

struct plain_token {
  std::vector<double> key;
  std::vector<double> value;
  int position = 0;
};

struct plain_attention {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
  std::vector<double> probabilities;  //!< of each token
};

[[nodiscard]] inline plain_attention attend_f64(std::vector<plain_token> const& tokens,
                                                float const* q, int head_dim, int query_position,
                                                attention_options const& options)
{
  auto const dim = static_cast<std::size_t>(head_dim);
  plain_attention result{std::vector<double>(dim, 0.0), -std::numeric_limits<double>::infinity(),
                         std::vector<double>(tokens.size(), 0.0)};
  std::vector<double> logits(tokens.size(), -std::numeric_limits<double>::infinity());
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (options.sliding_window > 0 &&
        tokens[i].position <= query_position - options.sliding_window) {
      continue;
    }
    double dot = 0.0;
    for (std::size_t d = 0; d < dim; ++d) { dot += static_cast<double>(q[d]) * tokens[i].key[d]; }
    double logit = static_cast<double>(options.scale) * dot;
    if (options.soft_cap > 0.0f) {
      logit = static_cast<double>(options.soft_cap) *
              std::tanh(logit / static_cast<double>(options.soft_cap));
    }
    logits[i] = logit;
    largest   = logit > largest ? logit : largest;
  }
  double sum = 0.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::isinf(logits[i])) { continue; }
    result.probabilities[i] = std::exp(logits[i] - largest);
    sum += result.probabilities[i];
  }
  if (sum == 0.0) { return result; }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    result.probabilities[i] /= sum;
    for (std::size_t d = 0; d < dim && result.probabilities[i] != 0.0; ++d) {
      result.out[d] += result.probabilities[i] * tokens[i].value[d];
    }
  }
  result.lse = largest + std::log(sum);
  return result;
}

//! The tokens of a row in the values that their codes stand for, brought back from the conditioned
//! domain in f64: high slots, then low slots.
[[nodiscard]] inline std::vector<plain_token> tokens_of(host::context const& ctx,
                                                        std::uint32_t slot, std::uint32_t layer,
                                                        std::uint32_t head)
{
  cache_ref const& cache = ctx.cache;
  std::size_t const row  = cache.shape.row(slot, layer, head);
  auto const dim         = static_cast<std::size_t>(cache.shape.head_dim);
  int const block        = rotation_block(cache.shape.head_dim);
  bool const rotated     = has(cache.conditioned, conditioning::rotated);
  float const* centre    = cache.key_offset(layer, head);
  auto const back        = [&](float const* x) {
    std::vector<float> const v(x, x + dim);
    return rotated ? rotate_plain(v, block) : std::vector<double>(v.begin(), v.end());
  };
  std::vector<plain_token> tokens;
  for (tier t : {tier::high, tier::low}) {
    auto const keys   = read_keys(ctx, row, t);
    auto const values = read_values(ctx, row, t);
    for (slot_index s = 0; s < ctx.row(row).state().tokens.of(t); ++s) {
      plain_token token{back(keys.data() + s * dim), back(values.data() + s * dim),
                        ctx.row(row).position(t, s)};
      for (std::size_t d = 0; d < dim && centre != nullptr; ++d) {
        token.key[d] += static_cast<double>(centre[d]);
      }
      tokens.push_back(std::move(token));
    }
  }
  return tokens;
}

}  // namespace diffkv::test
