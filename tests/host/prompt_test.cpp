// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/decode_attention.hpp>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>
#include <diffkv/policy/paper.hpp>

#include <cstring>
#include <memory>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::paper_policy;
using diffkv::thresholds;
using diffkv::tier;
using diffkv::tier_counts;
using diffkv::test::contains;
using diffkv::test::host_cache;
using diffkv::test::page_trouble;

//! k8v8 in both tiers, so that whole numbers come back exactly; head_dim 32.
diffkv::test::host_cache_parts parts_of(int high_tokens, int low_tokens, int window, int max_tokens,
                                        std::uint32_t num_pages)
{
  diffkv::test::host_cache_parts parts{};
  parts.shape.head_dim    = 32;
  parts.shape.window      = window;
  parts.shape.max_tokens  = max_tokens;
  parts.shape.score_every = 1;
  parts.tiers =
    diffkv::test::short_tiers(diffkv::k8v8::spec, high_tokens, diffkv::k8v8::spec, low_tokens, 32);
  parts.num_pages = num_pages;
  return parts;
}

bool admit(host_cache const& cache, std::uint32_t slot, int num_tokens)
{
  diffkv::host::admission const one{slot, num_tokens};
  return diffkv::host::admit(cache.context(), &one, 1, paper_policy{}) == 0;
}

//! [tokens, heads, 32] with token i of head h full of i + 100 h.
std::vector<float> labelled(int num_tokens, std::uint32_t num_heads)
{
  std::vector<float> x;
  for (int i = 0; i < num_tokens; ++i) {
    for (std::uint32_t h = 0; h < num_heads; ++h) {
      x.insert(x.end(), 32, static_cast<float>(i) + 100.0f * static_cast<float>(h));
    }
  }
  return x;
}

void store(host_cache const& cache, std::uint32_t slot, std::uint32_t layer, int num_tokens,
           std::vector<float> const& importances)
{
  auto const x = labelled(num_tokens, cache.shape().num_heads);
  diffkv::host::store_prompt(cache.context(), slot, layer, paper_policy{},
                             diffkv::packed<float const>(x.data(), cache.shape().num_heads, 32),
                             diffkv::packed<float const>(x.data(), cache.shape().num_heads, 32),
                             importances.data());
}

std::vector<int> positions(host_cache const& cache, std::size_t row, tier t)
{
  std::vector<int> all;
  for (std::uint32_t s = 0; s < cache.ref().state.rows[row].tokens.of(t); ++s) {
    all.push_back(cache.context().row(row).position(t, s));
  }
  return all;
}
}  // namespace

TEST_CASE("store_prompt: pages that a row did not need go back, and only those", "[host]")
{
  auto parts            = parts_of(2, 4, 1, 8, 16);
  parts.shape.num_heads = 2;
  parts.limits          = {{1.0f, 0.1f}};
  host_cache cache{parts};
  REQUIRE(admit(cache, 0, 8));
  CHECK(cache.ref().ring.num_free() == 16 - 2 * 5);  // ceil(8 / 2) + 1 for each head

  // Of 1 / i: twice is high, half is low, a hundredth is pruned. The last token is the window.
  float const h = 2.0f;
  float const l = 0.5f;
  float const p = 0.01f;
  std::vector<float> importances{l, h, p, l, p, l, p, 0, h, l, h, l, l, h, l, 0};
  for (std::size_t i = 0; i < 16; ++i) { importances[i] /= static_cast<float>(i % 8 + 1); }
  store(cache, 0, 0, 8, importances);

  CHECK(cache.ref().state.rows[0].tokens == tier_counts{2, 3});
  CHECK(cache.ref().state.rows[0].pages == tier_counts{1, 1});
  CHECK(cache.ref().state.rows[1].tokens == tier_counts{4, 4});
  CHECK(cache.ref().state.rows[1].pages == tier_counts{2, 1});
  CHECK(cache.ref().ring.num_free() == 11);
  CHECK(page_trouble(cache.ref()).empty());
  CHECK(positions(cache, 0, tier::high) == std::vector<int>{1, 7});
  CHECK(positions(cache, 0, tier::low) == std::vector<int>{0, 3, 5});
  CHECK(positions(cache, 1, tier::high) == std::vector<int>{0, 2, 5, 7});
  CHECK(positions(cache, 1, tier::low) == std::vector<int>{1, 3, 4, 6});
  // Low pages lie at the right end from the start.
  std::uint32_t const last = cache.ref().table.row_entries - 1;
  CHECK(cache.ref().table.entries[last] == cache.ref().table.entry(0, tier::low, 0));
  // Vectors, scores and positions belong together.
  for (std::size_t row = 0; row < 2; ++row) {
    for (tier t : {tier::high, tier::low}) {
      auto const keys  = diffkv::test::read_keys(cache.context(), row, t);
      auto const where = positions(cache, row, t);
      for (std::size_t s = 0; s < where.size(); ++s) {
        CHECK(keys[s * 32 + 31] == static_cast<float>(where[s]) + 100.0f * static_cast<float>(row));
        auto const i      = static_cast<std::size_t>(where[s]);
        float const count = static_cast<float>(7 - where[s]);
        CHECK(cache.context().row(row).score(t, static_cast<std::uint32_t>(s)) ==
              importances[row * 8 + i] * count);
      }
    }
  }
}

TEST_CASE("store_prompt: exactly the window is kept where everything outside is pruned", "[host]")
{
  for (int const window : {1, 2, 3, 63, 64}) {
    for (int const n : {0, 1, 2, 3, 62, 63, 64, 65, 66, 128}) {
      CAPTURE(window, n);
      auto parts   = parts_of(16, 16, window, 128, 20);
      parts.limits = {{1e30f, 1e30f}};
      host_cache cache{parts};
      REQUIRE(admit(cache, 0, n));
      store(cache, 0, 0, n, std::vector<float>(static_cast<std::size_t>(n), 0.5f));
      std::vector<int> expected;
      for (int i = std::max(0, n - window); i < n; ++i) { expected.push_back(i); }
      CHECK(positions(cache, 0, tier::high) == expected);
      CHECK(cache.ref().state.rows[0].tokens.low == 0);
      CHECK(cache.ref().layer(0, 0).num_tokens == n);
      CHECK(page_trouble(cache.ref()).empty());
    }
  }
}

TEST_CASE("store_prompt: importances on a threshold are low; bad numbers are kept", "[host]")
{
  // Token 64: limits 1 / 64 and 1 / 256 are exact.
  auto const tier_of_64 = [](float importance, thresholds limits) {
    auto parts   = parts_of(16, 16, 1, 100, 30);
    parts.limits = {limits};
    host_cache cache{parts};
    REQUIRE(admit(cache, 0, 100));
    std::vector<float> importances(100, 1.0f);
    importances[63] = importance;
    store(cache, 0, 0, 100, importances);
    for (tier t : {tier::high, tier::low}) {
      for (int const position : positions(cache, 0, t)) {
        if (position == 63) { return t; }
      }
    }
    return tier::pruned;
  };
  thresholds const limits{1.0f, 0.25f};
  float const infinity = std::numeric_limits<float>::infinity();
  CHECK(tier_of_64(1.0f / 64, limits) == tier::low);
  CHECK(tier_of_64(std::nextafter(1.0f / 64, 1.0f), limits) == tier::high);
  CHECK(tier_of_64(1.0f / 256, limits) == tier::low);
  CHECK(tier_of_64(std::nextafter(1.0f / 256, 0.0f), limits) == tier::pruned);
  CHECK(tier_of_64(0.0f, limits) == tier::pruned);
  CHECK(tier_of_64(std::nanf(""), limits) == tier::high);
  CHECK(tier_of_64(infinity, limits) == tier::high);
  CHECK(tier_of_64(-1.0f, limits) == tier::pruned);
  CHECK(tier_of_64(0.0f, {1.0f, 0.0f}) == tier::low);  // a_l = 0 prunes nothing
}

TEST_CASE("store_prompt: the index in 1 / i starts at one", "[host]")
{
  auto parts   = parts_of(16, 16, 1, 4, 10);
  parts.limits = {{1.0f, 0.02f}};
  host_cache cache{parts};
  REQUIRE(admit(cache, 0, 4));
  store(cache, 0, 0, 4, {0.9f, 0.6f, 0.2f, 0.0f});
  CHECK(positions(cache, 0, tier::low) == std::vector<int>{0, 2});
  CHECK(positions(cache, 0, tier::high) == std::vector<int>{1, 3});
}

TEST_CASE("store_prompt: without low tier what would be low is high", "[host]")
{
  auto parts   = parts_of(16, 16, 1, 4, 10);
  parts.tiers  = diffkv::make_tier_pages(parts.tiers.high);
  parts.limits = {{1.0f, 0.02f}};
  host_cache cache{parts};
  REQUIRE(admit(cache, 0, 4));
  store(cache, 0, 0, 4, {0.9f, 0.001f, 0.2f, 0.0f});
  CHECK(positions(cache, 0, tier::high) == std::vector<int>{0, 2, 3});
  CHECK(cache.ref().state.rows[0].tokens.low == 0);
}

TEST_CASE("store_prompt: each slot, layer and head has its own thresholds", "[host]")
{
  auto parts             = parts_of(2, 2, 1, 6, 300);
  parts.shape.num_slots  = 2;
  parts.shape.num_layers = 3;
  parts.shape.num_heads  = 2;
  parts.limits.clear();
  for (int row = 0; row < 12; ++row) {
    // high, low or pruned outside the window, in an order without period 2, 3 or 6.
    int const kind = row * row / 3 % 3;
    parts.limits.push_back(kind == 0   ? thresholds{0.01f, 0.0f}
                           : kind == 1 ? thresholds{1e6f, 0.0f}
                                       : thresholds{1e6f, 1e6f});
  }
  host_cache cache{parts};
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    REQUIRE(admit(cache, slot, 6));
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      store(cache, slot, layer, 6, std::vector<float>(12, 0.5f));
    }
  }
  for (std::size_t row = 0; row < 12; ++row) {
    CAPTURE(row);
    std::size_t const kind = row * row / 3 % 3;
    tier_counts const expected[]{{6, 0}, {1, 5}, {1, 0}};
    CHECK(cache.ref().state.rows[row].tokens == expected[kind]);
  }
  CHECK(page_trouble(cache.ref()).empty());
}

namespace {
//! A cache into which 40 tokens went, `in_prompt` of them by the prompt path, the rest by `append`.
template <class T>
std::unique_ptr<host_cache> written(int in_prompt, std::vector<T> const& x, std::ptrdiff_t stride)
{
  auto parts            = parts_of(16, 16, 64, 40, 12);
  parts.shape.num_heads = 2;
  parts.tiers = diffkv::test::short_tiers(diffkv::k8v4::spec, 16, diffkv::k4v2::spec, 16, 32);
  auto cache  = std::make_unique<host_cache>(parts);
  REQUIRE(admit(*cache, 0, in_prompt));
  diffkv::vectors<T const> const key{x.data(), stride, 32};
  diffkv::vectors<T const> const value{x.data() + 64, stride, 32};
  std::vector<float> const importances(2 * static_cast<std::size_t>(in_prompt), 0.0f);
  diffkv::host::store_prompt(cache->context(), 0, 0, paper_policy{}, key, value,
                             importances.data());
  std::uint32_t const slot = 0;
  for (int i = in_prompt; i < 40; ++i) {
    REQUIRE(diffkv::host::step(cache->context(), &slot, 1, paper_policy{}) == 0);
    diffkv::host::append(cache->context(), &slot, 1, 0,
                         diffkv::vectors<T const>{key.at(i, 0), stride, 32},
                         diffkv::vectors<T const>{value.at(i, 0), stride, 32}, key);
  }
  return cache;
}

bool same_pages(host_cache const& a, host_cache const& b)
{
  bool same = true;
  for (std::size_t row = 0; row < 2; ++row) {
    CHECK(a.ref().state.rows[row].tokens == tier_counts{40, 0});
    CHECK(b.ref().state.rows[row].tokens == tier_counts{40, 0});
    for (std::uint32_t p = 0; p < 3; ++p) {
      same = same && std::memcmp(a.context().row(row).page(tier::high, p).bytes,
                                 b.context().row(row).page(tier::high, p).bytes,
                                 a.ref().pool.page_bytes) == 0;
    }
  }
  return same;
}

template <class T>
std::vector<T> random_rows(std::size_t row_elements, std::size_t used)
{
  diffkv::test::random random{1};
  std::vector<T> x(40 * row_elements);
  for (std::size_t i = 0; i < x.size(); ++i) {
    bool const pad = i % row_elements >= used;
    diffkv::from_f32(pad ? std::nanf("") : random.uniform(-2.0f, 2.0f), x[i]);
  }
  return x;
}
}  // namespace

TEMPLATE_TEST_CASE("append: one call, many calls or a mix give the same bytes", "[host]", float,
                   __half, __nv_bfloat16)
{
  auto const x     = random_rows<TestType>(128, 128);
  auto const once  = written(40, x, 128);
  auto const by_1  = written(0, x, 128);
  auto const mixed = written(7, x, 128);
  CHECK(same_pages(*once, *by_1));
  CHECK(same_pages(*once, *mixed));
  // It really was quantised.
  float const decoded = diffkv::test::read_values(once->context(), 0, tier::high)[0];
  CHECK(decoded != diffkv::to_f32(x[64]));
  CHECK(std::fabs(decoded - diffkv::to_f32(x[64])) < 0.2f);
}

TEMPLATE_TEST_CASE("store_prompt: slices of a fused buffer give the bytes of contiguous copies",
                   "[host]", float, __half, __nv_bfloat16)
{
  auto const fused = random_rows<TestType>(512 + 1, 128);  // the same numbers, NaN between them
  std::vector<TestType> copies;
  for (std::size_t i = 0; i < 40; ++i) {
    auto const from = fused.begin() + static_cast<std::ptrdiff_t>(i * 513);
    copies.insert(copies.end(), from, from + 128);
  }
  for (int const in_prompt : {40, 0}) {
    CHECK(same_pages(*written(in_prompt, fused, 513), *written(in_prompt, copies, 128)));
  }
}

TEST_CASE("admit: a batch is served by exact first fit, all rows of a prompt or none", "[host]")
{
  auto parts             = parts_of(2, 2, 1, 20, 30);
  parts.shape.num_slots  = 5;
  parts.shape.num_layers = 2;
  host_cache cache{parts};
  // Pages: 2 rows * (ceil(N / 2) + 1): 8 -> 10, 18 -> 20, 20 -> 22, 2 -> 4, 0 -> 0.
  std::vector<diffkv::host::admission> const batch{{3, 8}, {0, 20}, {1, 18}, {2, 2}, {4, 0}};
  std::vector<std::uint32_t> refused(5, 77);
  std::uint32_t count = 0;
  CHECK(diffkv::host::admit(cache.context(), batch.data(), 5, paper_policy{},
                            {&count, refused.data()}) == 2);
  CHECK(count == 2);
  CHECK(refused[0] == 1);
  CHECK(refused[1] == 3);
  CHECK(cache.ref().ring.num_free() == 0);
  CHECK(cache.ref().layer(0, 0).num_tokens == 0);
  CHECK(cache.ref().layer(1, 1).num_tokens == 18);
  CHECK(cache.ref().state.rows[cache.shape().row(2, 0, 0)].pages.sum() == 0);
  CHECK(page_trouble(cache.ref()).empty());
  std::vector<std::uint32_t> const all{0, 1, 2, 3, 4};
  CHECK(diffkv::host::release_slots(cache.context(), all.data(), 5).released == 30);
  CHECK(cache.ref().ring.num_free() == 30);
  CHECK(page_trouble(cache.ref()).empty());
  CHECK(diffkv::host::admit(cache.context(), nullptr, 0, paper_policy{}) == 0);
  CHECK(diffkv::host::release_slots(cache.context(), nullptr, 0).released == 0);
  CHECK(diffkv::host::release_slots(cache.context(), all.data(), 5).released == 0);
}

TEST_CASE("admit and store_prompt: wrong calls are refused before anything changes", "[host]")
{
  auto parts             = parts_of(2, 2, 1, 8, 40);
  parts.shape.num_slots  = 2;
  parts.shape.num_layers = 2;
  host_cache cache{parts};
  auto const admit_all = [&](std::vector<diffkv::host::admission> const& batch) {
    return diffkv::host::admit(cache.context(), batch.data(),
                               static_cast<std::uint32_t>(batch.size()), paper_policy{});
  };
  CHECK_THROWS_WITH(admit_all({{0, 3}, {2, 1}}), contains("slot: 2"));
  CHECK_THROWS_WITH(admit_all({{0, 3}, {0, 1}}), contains("twice"));
  CHECK_THROWS_WITH(admit_all({{0, 9}}), contains("9") && contains("8"));
  CHECK_THROWS_WITH(admit_all({{0, 3}, {1, -1}}), contains("num_tokens"));
  CHECK(cache.ref().ring.num_free() == 40);
  CHECK(page_trouble(cache.ref()).empty());

  REQUIRE(admit_all({{0, 3}}) == 0);
  std::uint64_t const free = cache.ref().ring.num_free();
  CHECK_THROWS_WITH(admit_all({{1, 3}, {0, 3}}), contains("in use"));
  std::vector<float> const importances(3, 1.0f);
  CHECK_THROWS_WITH(store(cache, 2, 0, 3, importances), contains("slot"));
  CHECK_THROWS_WITH(store(cache, 0, 2, 3, importances), contains("layer"));
  store(cache, 1, 0, 3, importances);  // not admitted: a prompt of no tokens
  CHECK(cache.ref().state.rows[cache.shape().row(1, 0, 0)].tokens.sum() == 0);
  CHECK(cache.ref().ring.num_free() == free);

  store(cache, 0, 0, 3, importances);
  CHECK_THROWS_WITH(store(cache, 0, 0, 3, importances), contains("waiting to be stored"));
  std::uint32_t const slot = 0;
  CHECK_THROWS_WITH(diffkv::host::step(cache.context(), &slot, 1, paper_policy{}),
                    contains("not stored in layer 1"));
  CHECK(cache.ref().state.rows[0].append_slot == diffkv::no_slot);
  store(cache, 0, 1, 3, importances);
  CHECK(diffkv::host::step(cache.context(), &slot, 1, paper_policy{}) == 0);
  CHECK_THROWS_WITH(store(cache, 0, 1, 3, importances), contains("waiting to be stored"));
  CHECK(page_trouble(cache.ref()).empty());
}
