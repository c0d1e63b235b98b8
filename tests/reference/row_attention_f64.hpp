// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Attention of the q_heads of one row in f64, over the values that its codes stand for. The same
//! formula as attention_f64.hpp, in the conditioned domain (R is its own inverse), so that rows of
//! 100'000 tokens are quick and need little memory.
#include <diffkv/attention/attention_options.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "reference/hadamard.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

//! Of one q_head.
struct row_answer {
  std::vector<double> out;  //!< [head_dim], brought back from the conditioned domain
  double lse = -std::numeric_limits<double>::infinity();
  //! sqrt(sum p^2 |v|^2): the size that out has where values point anywhere. Errors of probabilities
  //! add up like this one, also where the values cancel.
  double spread = 0.0;
};

namespace detail {

//! Calls f(index among the row's tokens, run, vectors) for runs of decoded keys or values.
template <bool Keys, class F>
void for_each_run(host::context const& ctx, row_view const& row, F&& f)
{
  constexpr std::uint32_t most = 64;
  std::vector<float> x(most * static_cast<std::size_t>(ctx.cache.shape.head_dim));
  std::size_t index = 0;
  for (tier t : {tier::high, tier::low}) {
    std::uint32_t const n = row.state().tokens.of(t);
    for (slot_index begin = 0; begin < n;) {
      page_run const run = row.run(t, begin, n - begin < most ? n - begin : most);
      auto const count   = static_cast<int>(run.count);
      if constexpr (Keys) {
        ctx.codec(t).read_keys(run.page.bytes, run.token, count, x.data());
      } else {
        ctx.codec(t).read_values(run.page.bytes, run.token, count, x.data());
      }
      f(index, run, x.data());
      index += run.count;
      begin += run.count;
    }
  }
}

}  // namespace detail

//! @param q  [group_size, head_dim] not conditioned
[[nodiscard]] inline std::vector<row_answer> attend_row_f64(host::context const& ctx,
                                                            std::uint32_t slot, std::uint32_t layer,
                                                            std::uint32_t head,
                                                            std::vector<float> const& q,
                                                            attention_options const& options)
{
  cache_ref const& cache = ctx.cache;
  auto const dim         = static_cast<std::size_t>(cache.shape.head_dim);
  std::size_t const g_n  = q.size() / dim;
  row_view const row     = ctx.row(cache.shape.row(slot, layer, head));
  int const block        = rotation_block(cache.shape.head_dim);
  bool const rotated     = has(cache.conditioned, conditioning::rotated);
  float const* centre    = cache.key_offset(layer, head);
  auto const scale       = static_cast<double>(options.scale);
  auto const cap         = static_cast<double>(options.soft_cap);
  std::int32_t const now = cache.layer(slot, layer).num_tokens - 1;
  double const none      = -std::numeric_limits<double>::infinity();
  std::size_t const n    = row.state().tokens.sum();

  std::vector<double> logits(g_n * n, none);
  std::vector<double> offsets(g_n, 0.0);  // q.c
  std::vector<double> conditioned;        // [group_size, head_dim]
  std::vector<row_answer> answers(g_n);
  for (std::size_t g = 0; g < g_n; ++g) {
    std::vector<float> const plain(q.begin() + static_cast<std::ptrdiff_t>(g * dim),
                                   q.begin() + static_cast<std::ptrdiff_t>((g + 1) * dim));
    auto const c =
      rotated ? rotate_plain(plain, block) : std::vector<double>(plain.begin(), plain.end());
    conditioned.insert(conditioned.end(), c.begin(), c.end());
    for (std::size_t d = 0; d < dim && centre != nullptr; ++d) {
      offsets[g] += static_cast<double>(plain[d]) * static_cast<double>(centre[d]);
    }
    answers[g].out.assign(dim, 0.0);
  }
  detail::for_each_run<true>(
    ctx, row, [&](std::size_t index, page_run const& run, float const* keys) {
      for (std::size_t i = 0; i < run.count; ++i) {
        std::int32_t const position = run.page.position(run.token + static_cast<int>(i));
        if (options.sliding_window > 0 && position <= now - options.sliding_window) { continue; }
        for (std::size_t g = 0; g < g_n; ++g) {
          double dot = offsets[g];
          for (std::size_t d = 0; d < dim; ++d) {
            dot += conditioned[g * dim + d] * static_cast<double>(keys[i * dim + d]);
          }
          logits[g * n + index + i] = cap > 0.0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
        }
      }
    });
  for (std::size_t g = 0; g < g_n; ++g) {
    double* const p = logits.data() + g * n;
    double largest  = none;
    double sum      = 0.0;
    for (std::size_t i = 0; i < n; ++i) { largest = p[i] > largest ? p[i] : largest; }
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = p[i] == none ? 0.0 : std::exp(p[i] - largest);
      sum += p[i];
    }
    if (sum == 0.0) { continue; }
    for (std::size_t i = 0; i < n; ++i) { p[i] /= sum; }
    answers[g].lse = largest + std::log(sum);
  }
  detail::for_each_run<false>(ctx, row,
                              [&](std::size_t index, page_run const& run, float const* values) {
                                for (std::size_t i = 0; i < run.count; ++i) {
                                  float const* v = values + i * dim;
                                  double size    = 0.0;
                                  for (std::size_t d = 0; d < dim; ++d) {
                                    size += static_cast<double>(v[d]) * static_cast<double>(v[d]);
                                  }
                                  for (std::size_t g = 0; g < g_n; ++g) {
                                    double const p = logits[g * n + index + i];
                                    if (p == 0.0) { continue; }
                                    answers[g].spread += p * p * size;
                                    for (std::size_t d = 0; d < dim; ++d) {
                                      answers[g].out[d] += p * static_cast<double>(v[d]);
                                    }
                                  }
                                }
                              });
  for (row_answer& a : answers) {
    a.spread = std::sqrt(a.spread);
    if (rotated) { a.out = rotate_plain(a.out, block); }
  }
  return answers;
}

}  // namespace diffkv::test
