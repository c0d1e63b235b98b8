// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention within the bound that docs/numerics.md derives, for small and large logits.
#include <cmath>

#include "support/catch.hpp"
#include "support/decode_rows.hpp"

namespace {

double length(double const* x, std::size_t size)
{
  double sum = 0.0;
  for (std::size_t d = 0; d < size; ++d) { sum += x[d] * x[d]; }
  return std::sqrt(sum);
}

struct bound {
  double out, lse;
};

// docs/numerics.md, "Attention", with the running maximum moved by every token.
bound bound_of(std::vector<diffkv::test::plain_token> const& tokens,
               std::vector<float> const& query, double scale)
{
  std::vector<double> const q(query.begin(), query.end());
  double const u = std::ldexp(1.0, -24);
  auto const n   = static_cast<double>(tokens.size());
  double largest = 0.0, most = 0.0;
  for (auto const& token : tokens) {
    largest = std::fmax(
      largest, scale * length(q.data(), q.size()) * length(token.key.data(), token.key.size()));
    for (double const v : token.value) { most = std::fmax(most, std::fabs(v)); }
  }
  double const logit  = (static_cast<double>(q.size()) / 16 + 6) * u * largest;
  double const weight = logit + (2 * largest + 3 * n + 3) * u;
  return {(2 * weight + 2 * (n + 2) * u) * most,
          weight + (n + 2) * u + u * (largest + std::log(n))};
}

}  // namespace

TEST_CASE("decode_attention: errs by no more than docs/numerics.md says", "[host]")
{
  std::uint64_t const seed = 41;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  double share = 0.0;
  for (int const head_dim : {64, 96, 128, 256}) {
    for (float const size : {0.1f, 1.0f, 6.0f}) {
      for (std::uint32_t const tokens : {1u, 7u, 300u}) {
        diffkv::test::host_cache_parts parts{};
        parts.shape.head_dim   = head_dim;
        parts.shape.num_slots  = 1;
        parts.shape.num_heads  = 1;
        parts.shape.group_size = 1;
        parts.shape.max_tokens = 400;
        parts.tiers =
          diffkv::make_tier_pages(diffkv::make_page_geometry(diffkv::k8v4::spec, head_dim, 16384),
                                  diffkv::make_page_geometry(diffkv::k4v2::spec, head_dim, 16384));
        parts.num_pages = parts.tiers.most_pages(400);
        diffkv::test::host_cache cache{parts};
        diffkv::test::fill_row(cache.context(), 0, 0, 0, {tokens - tokens / 3, tokens / 3}, random,
                               size);
        auto const query   = random.floats(static_cast<std::size_t>(head_dim), -size, size);
        auto const options = diffkv::test::default_options(head_dim);
        auto const errors  = diffkv::test::errors_of(
           diffkv::test::decode_rows(cache.context(), {0}, 0, options, query), cache.context(), {0},
           0, options, query);
        auto const limit = bound_of(diffkv::test::tokens_of(cache.context(), 0, 0, 0), query,
                                    static_cast<double>(options.scale));
        CAPTURE(head_dim, size, tokens, errors.out, limit.out, errors.lse, limit.lse);
        CHECK(errors.out <= limit.out);
        CHECK(errors.lse <= limit.lse);
        share = std::fmax(share, std::fmax(errors.out / limit.out, errors.lse / limit.lse));
      }
    }
  }
  CHECK(share > 0.01);  // the bound is of the right order
}
