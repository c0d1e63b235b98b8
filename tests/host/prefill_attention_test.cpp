// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/prefill_attention.hpp>
#include <diffkv/policy/artifact.hpp>

#include <algorithm>

#include "reference/attention_f64.hpp"
#include "support/catch.hpp"
#include "support/difference.hpp"

namespace {
using diffkv::attention_options;
using diffkv::host::prompt_shape;
using diffkv::test::difference;

//! What prompt attention answers; outputs start as 123.
struct answer {
  std::vector<float> out;
  std::vector<float> lse;
  std::vector<float> importances;
};

//! Packed f32 input.
answer prefill(prompt_shape const& shape, attention_options const& options,
               std::vector<float> const& q, std::vector<float> const& k,
               std::vector<float> const& v)
{
  std::uint32_t const nq = shape.num_heads * shape.group_size;
  auto const n           = static_cast<std::size_t>(shape.num_tokens);
  answer a{std::vector<float>(q.size(), 123.0f), std::vector<float>(n * nq, 123.0f),
           std::vector<float>(n * shape.num_heads, 123.0f)};
  diffkv::host::prefill_attention(shape, options, diffkv::packed(q.data(), nq, shape.head_dim),
                                  diffkv::packed(k.data(), shape.num_heads, shape.head_dim),
                                  diffkv::packed(v.data(), shape.num_heads, shape.head_dim),
                                  diffkv::packed(a.out.data(), nq, shape.head_dim), a.lse.data(),
                                  a.importances.data());
  return a;
}

//! The same from the formulas, in f64. Importance: the maximum over the q_heads of the mean of the
//! probabilities that the last Q queries, those later than the token, give it.
answer plain(prompt_shape const& shape, attention_options const& options,
             std::vector<float> const& q, std::vector<float> const& k, std::vector<float> const& v)
{
  auto const dim       = static_cast<std::size_t>(shape.head_dim);
  auto const n         = static_cast<std::size_t>(shape.num_tokens);
  std::size_t const nq = std::size_t{shape.num_heads} * shape.group_size;
  answer a{std::vector<float>(q.size()), std::vector<float>(n * nq),
           std::vector<float>(n * shape.num_heads, 0.0f)};
  std::vector<double> sums(nq * n, 0.0);
  for (std::size_t head = 0; head < nq; ++head) {
    std::vector<diffkv::test::plain_token> tokens;
    for (std::size_t j = 0; j < n; ++j) {
      std::size_t const kv = (j * shape.num_heads + head / shape.group_size) * dim;
      auto const at        = static_cast<std::ptrdiff_t>(kv);
      auto const d         = static_cast<std::ptrdiff_t>(dim);
      tokens.push_back({{k.begin() + at, k.begin() + at + d},
                        {v.begin() + at, v.begin() + at + d},
                        static_cast<int>(j)});
      auto const one = diffkv::test::attend_f64(tokens, q.data() + (j * nq + head) * dim,
                                                shape.head_dim, static_cast<int>(j), options);
      for (std::size_t i = 0; i < dim; ++i) {
        a.out[(j * nq + head) * dim + i] = static_cast<float>(one.out[i]);
      }
      a.lse[head * n + j] = static_cast<float>(one.lse);
      bool const counts   = j + static_cast<std::size_t>(shape.prompt_queries) >= n &&
                          (n - 1 - j) % static_cast<std::size_t>(shape.sample_every) == 0;
      for (std::size_t i = 0; i < j && counts; ++i) { sums[head * n + i] += one.probabilities[i]; }
    }
    for (std::size_t i = 0; i < n; ++i) {
      int later = 0;
      for (int j = static_cast<int>(i) + 1; j < shape.num_tokens; ++j) {
        int const from_last = shape.num_tokens - 1 - j;
        later += from_last < shape.prompt_queries && from_last % shape.sample_every == 0 ? 1 : 0;
      }
      float& largest = a.importances[head / shape.group_size * n + i];
      if (later > 0) {
        largest = std::max(largest, static_cast<float>(sums[head * n + i] / later));
      }
    }
  }
  return a;
}

struct prompt {
  prompt_shape shape;
  std::vector<float> q, k, v;

  explicit prompt(prompt_shape s, std::uint64_t seed = 61) : shape{s}
  {
    diffkv::test::random random{seed};
    auto const kv = static_cast<std::size_t>(s.num_tokens * s.head_dim) * s.num_heads;
    q             = random.floats(kv * s.group_size, -2.0f, 2.0f);
    k             = random.floats(kv, -1.0f, 1.0f);
    v             = random.floats(kv, -1.0f, 1.0f);
  }
  void check(attention_options const& options, double tolerance = 1e-5) const
  {
    auto const a = prefill(shape, options, q, k, v);
    auto const p = plain(shape, options, q, k, v);
    CHECK(difference(a.out, p.out) <= tolerance);
    CHECK(difference(a.lse, p.lse) <= tolerance);
    CHECK(difference(a.importances, p.importances) <= tolerance);
  }
};

attention_options scaled(int head_dim)
{
  attention_options options{};
  options.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return options;
}
}  // namespace

TEST_CASE("prefill_attention: equals f64 for every head size, group and short length", "[host]")
{
  for (int const head_dim : {32, 64, 80, 96, 112, 128, 256}) {
    for (int const n : {0, 1, 2, 17}) {
      auto const group = static_cast<std::uint32_t>(head_dim / 16 % 5 + 1);
      CAPTURE(head_dim, n, group);
      prompt{{n, 2, group, head_dim, n}}.check(scaled(head_dim));
    }
  }
}

TEST_CASE("prefill_attention: only the last Q queries count, and none for later tokens", "[host]")
{
  for (int const n : {1, 5, 63, 64, 65, 130}) {
    int const queries = diffkv::artifact_policy{}.prompt_queries(n);
    CAPTURE(n, queries);
    prompt const p{{n, 1, 2, 32, queries}};
    p.check(scaled(32));
    auto const a = prefill(p.shape, scaled(32), p.q, p.k, p.v);
    CHECK(a.importances.back() == 0.0f);
  }
  prompt const none{{6, 1, 1, 32, 0}};
  CHECK(prefill(none.shape, scaled(32), none.q, none.k, none.v).importances ==
        std::vector<float>(6, 0.0f));
}

TEST_CASE("prefill_attention: of a sample of queries the prompt's last one is the first", "[host]")
{
  for (int const n : {1, 5, 16, 17, 18, 70}) {
    for (int const every : {1, 2, 8, 100}) {
      for (int const queries : {n, std::min(n, 9)}) {
        CAPTURE(n, every, queries);
        prompt{{n, 1, 2, 32, queries, every}}.check(scaled(32));
      }
    }
  }
}

TEST_CASE("prefill_attention: a token without later queries has importance 0, not NaN", "[host]")
{
  prompt const one{{1, 1, 1, 64, 1}};
  CHECK(prefill(one.shape, scaled(64), one.q, one.k, one.v).importances ==
        std::vector<float>{0.0f});
  prompt two{{2, 1, 1, 64, 2}};
  std::fill(two.k.begin(), two.k.end(), 0.0f);
  auto const a = prefill(two.shape, scaled(64), two.q, two.k, two.v);
  CHECK(a.importances == std::vector<float>{0.5f, 0.0f});
}

TEST_CASE("prefill_attention: even attention gives the known importances", "[host]")
{
  prompt even{{4, 1, 1, 64, 4}};
  std::fill(even.k.begin(), even.k.end(), 0.0f);
  auto const a = prefill(even.shape, scaled(64), even.q, even.k, even.v);
  std::vector<double> const expected{(1.0 / 2 + 1.0 / 3 + 1.0 / 4) / 3, (1.0 / 3 + 1.0 / 4) / 2,
                                     0.25, 0.0};
  CHECK(difference(a.importances, expected) <= 1e-6);
}

TEST_CASE("prefill_attention: the maximum over q_heads is taken after softmax, of the means",
          "[host]")
{
  // The second query splits 0.5 / 0.5 in head A and 0.3 / 0.7 in head B.
  prompt_shape const shape{2, 1, 2, 64, 2};
  std::vector<float> q(2 * 2 * 64, 0.0f);
  std::vector<float> k(2 * 64, 0.0f);
  k[0]                = 8.0f;
  q[(1 * 2 + 1) * 64] = -0.847298f;
  auto const a        = prefill(shape, {0.125f}, q, k, k);
  CHECK(difference(a.importances[0], 0.5) <= 1e-6);

  // Each head favours another query: the maximum of sums is less than the sum of maxima.
  prompt const p{{9, 1, 3, 64, 9}};
  p.check(scaled(64));
}

TEST_CASE("prefill_attention: sliding windows and soft-caps are those of decode", "[host]")
{
  for (int const window : {0, 1, 2, 7, 19, 20, 21}) {
    for (float const cap : {0.0f, 0.5f, 30.0f}) {
      CAPTURE(window, cap);
      attention_options options = scaled(64);
      options.sliding_window    = window;
      options.soft_cap          = cap;
      prompt{{20, 2, 2, 64, 20}}.check(options);
    }
  }
  attention_options flat{};  // scale 0: the mean of the values
  prompt{{7, 1, 1, 64, 7}}.check(flat);
}

TEST_CASE("prefill_attention: huge logits are told apart", "[host]")
{
  prompt p{{12, 1, 2, 128, 12}};
  for (float& x : p.q) { x *= 1000.0f; }
  for (float& x : p.k) { x *= 1000.0f; }
  auto const a = prefill(p.shape, scaled(128), p.q, p.k, p.v);
  auto const b = plain(p.shape, scaled(128), p.q, p.k, p.v);
  CHECK(std::all_of(a.out.begin(), a.out.end(), [](float x) { return std::isfinite(x); }));
  // Logits of 10^6 are rounded by 0.1, so the winner is the same and the rest is nothing or little.
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    CHECK(difference(a.lse[i], b.lse[i]) <= 1e-5 * std::fabs(b.lse[i]) + 1.0);
  }
}

TEST_CASE("prefill_attention: NaN stays with its head, its query and later ones", "[host]")
{
  prompt const clean{{8, 2, 2, 64, 8}};
  auto const good             = prefill(clean.shape, scaled(64), clean.q, clean.k, clean.v);
  prompt bad                  = clean;
  bad.k[(5 * 2 + 1) * 64 + 3] = std::nanf("");  // token 5 of head 1
  auto const a                = prefill(bad.shape, scaled(64), bad.q, bad.k, bad.v);
  for (std::size_t j = 0; j < 8; ++j) {
    for (std::size_t head = 0; head < 4; ++head) {
      std::size_t const at = (j * 4 + head) * 64;
      bool const hit       = head >= 2 && j >= 5;
      CAPTURE(j, head);
      CHECK(std::isnan(a.out[at]) == hit);
      if (!hit) {
        CHECK(std::equal(a.out.begin() + static_cast<std::ptrdiff_t>(at),
                         a.out.begin() + static_cast<std::ptrdiff_t>(at) + 64,
                         good.out.begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
  }
  // Probabilities that are no numbers are skipped, so importances stay numbers.
  for (float const x : a.importances) { CHECK(std::isfinite(x)); }

  prompt query              = clean;
  query.q[(3 * 4 + 2) * 64] = std::nanf("");  // query 3 of q_head 2
  auto const b              = prefill(query.shape, scaled(64), query.q, query.k, query.v);
  for (std::size_t at = 0; at < b.out.size(); at += 64) {
    CHECK(std::isnan(b.out[at]) == (at / 64 == 3 * 4 + 2));
  }
}

namespace {
template <class In, class Out>
void check_types(double tolerance)
{
  prompt const p{{6, 2, 2, 64, 6}};
  // One fused buffer [6 tokens][512]: q at column 0, k at 256, v at 384; outputs in rows of 300.
  std::vector<In> fused(6 * 520);
  for (In& x : fused) { diffkv::from_f32(std::nanf(""), x); }
  prompt rounded    = p;
  auto const insert = [&](std::vector<float>& from, std::size_t column) {
    std::size_t const row = from.size() / 6;
    for (std::size_t i = 0; i < from.size(); ++i) {
      In& x = fused[i / row * 520 + column + i % row];
      diffkv::from_f32(from[i], x);
      from[i] = diffkv::to_f32(x);
    }
  };
  insert(rounded.q, 0);
  insert(rounded.k, 256);
  insert(rounded.v, 384);
  auto const expected = prefill(rounded.shape, scaled(64), rounded.q, rounded.k, rounded.v);
  std::vector<Out> out(6 * 300);
  for (Out& x : out) { diffkv::from_f32(123.0f, x); }
  std::vector<float> importances(12);
  diffkv::host::prefill_attention(
    rounded.shape, scaled(64), diffkv::vectors<In const>{fused.data(), 520, 64},
    diffkv::vectors<In const>{fused.data() + 256, 520, 64},
    diffkv::vectors<In const>{fused.data() + 384, 520, 64},
    diffkv::vectors<Out>{out.data(), 300, 64}, nullptr, importances.data());
  CHECK(difference(importances, expected.importances) <= 1e-6);
  double worst = 0.0;
  bool pads    = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    float const x = diffkv::to_f32(out[i]);
    if (i % 300 < 256) {
      worst = std::fmax(worst, difference(x, expected.out[i / 300 * 256 + i % 300]));
    } else {
      pads = pads && x == 123.0f;
    }
  }
  CHECK(worst <= tolerance);
  CHECK(pads);
}
}  // namespace

TEST_CASE("prefill_attention: strided f16, bf16 and f32 go in and out", "[host]")
{
  check_types<float, float>(1e-6);
  check_types<__half, __half>(1e-3);
  check_types<__nv_bfloat16, __nv_bfloat16>(8e-3);
  check_types<__half, float>(1e-6);
  check_types<__nv_bfloat16, __half>(1e-3);
}

TEST_CASE("prefill_attention: extents that cannot be are refused before anything is written",
          "[host]")
{
  std::vector<prompt_shape> const bad{{-1, 1, 1, 64, 0}, {2, 0, 1, 64, 0},   {2, 1, 0, 64, 0},
                                      {2, 1, 1, 0, 0},   {2, 1, 1, 64, 3},   {2, 1, 1, 64, -1},
                                      {2, 1, 1, -64, 0}, {2, 1, 1, 64, 2, 0}};
  for (prompt_shape const& shape : bad) {
    float importance = 123.0f;
    CHECK_THROWS_AS(diffkv::host::prefill_attention(shape, {}, diffkv::vectors<float const>{},
                                                    diffkv::vectors<float const>{},
                                                    diffkv::vectors<float const>{},
                                                    diffkv::vectors<float>{}, nullptr, &importance),
                    diffkv::invalid_argument);
    CHECK(importance == 123.0f);
  }
}

TEST_CASE("prefill_attention: a prompt of nobody reads and writes nothing", "[host]")
{
  CHECK_NOTHROW(diffkv::host::prefill_attention(
    {0, 1, 1, 64, 0}, {}, diffkv::vectors<float const>{}, diffkv::vectors<float const>{},
    diffkv::vectors<float const>{}, diffkv::vectors<float>{}, nullptr, nullptr));
}
