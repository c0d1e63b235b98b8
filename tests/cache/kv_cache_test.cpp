// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "support/cache_life.hpp"
#include "support/catch.hpp"
#include "support/difference.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::cache_options;
using diffkv::policy_kind;
using diffkv::test::life;
using diffkv::test::request;
using diffkv::test::small_options;
using any_cache = diffkv::kv_cache<diffkv::dynamic_config<diffkv::any_policy>>;

std::vector<policy_kind> const all_policies{policy_kind::paper, policy_kind::artifact,
                                            policy_kind::relative, policy_kind::static_budget};

bool same_bytes(std::vector<float> const& a, std::vector<float> const& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

//! Runs rows in reverse order, as threads might.
struct reversed {
  template <class Body>
  void operator()(std::size_t count, Body&& body) const
  {
    for (std::size_t i = count; i > 0; --i) { body(i - 1); }
  }
};
}  // namespace

TEST_CASE("kv_cache: a request lives from its prompt to its release, by every policy", "[cache]")
{
  for (policy_kind const kind : all_policies) {
    for (int const k : {0, 1, 4}) {
      CAPTURE(static_cast<int>(kind), k);
      diffkv::harmonic_table const harmonic{120};
      cache_options options     = small_options(kind);
      options.shape.score_every = k;
      any_cache cache{options, diffkv::test::policy_of(kind, harmonic)};
      request const r{1, 70, 40};
      life const l = diffkv::test::run(cache, r);
      REQUIRE(l.admitted);
      CHECK(l.new_tokens == 40);
      CHECK(
        std::all_of(l.outputs.begin(), l.outputs.end(), [](float x) { return std::isfinite(x); }));
      CHECK(diffkv::test::page_trouble(cache.context().cache).empty());

      diffkv::sequence_usage const u = cache.usage(1);
      CHECK(u.num_tokens == 110);
      CHECK(u.high_tokens + u.low_tokens + u.pruned == 110 * 4);
      CHECK(u.high_tokens >= 8 * 4);
      CHECK(u.pruned > 0);
      CHECK((u.low_tokens > 0) == (kind != policy_kind::static_budget));
      CHECK(u.pages == 100 - cache.num_free_pages());
      CHECK(u.bytes == u.pages * cache.options().page_bytes);
      CHECK(u.bytes_16bit == 110ull * 4 * 64 * 2 * 2);
      CHECK(u.nominal_bytes == static_cast<double>(u.high_tokens) * 64 * 12 / 8 +
                                 static_cast<double>(u.low_tokens) * 64 * 6 / 8);
      if (kind == policy_kind::static_budget && k > 0) {
        CHECK(u.high_tokens == (20 + 8) * 4);  // the budget and the window
      }
      std::uint32_t const slot = 1;
      auto const report        = cache.release(&slot, 1);
      CHECK(report.released == u.pages);
      CHECK(report.foreign + report.repeated == 0);
      CHECK(cache.num_free_pages() == 100);
      CHECK(cache.usage(1).num_tokens == 0);
      CHECK(cache.usage(1).pages == 0);
    }
  }
}

TEST_CASE("kv_cache: a second request in the same slot is served as by a fresh cache", "[cache]")
{
  for (policy_kind const kind : all_policies) {
    CAPTURE(static_cast<int>(kind));
    diffkv::harmonic_table const harmonic{120};
    auto const policy = diffkv::test::policy_of(kind, harmonic);
    request const a{0, 50, 20, 1};
    request const b{0, 7, 30, 2};
    std::uint32_t const slot = 0;

    any_cache fresh{small_options(kind), policy};
    life const expected = diffkv::test::run(fresh, b);
    REQUIRE(expected.new_tokens == 30);

    any_cache used{small_options(kind), policy};
    diffkv::test::run(used, a);
    used.release(&slot, 1);
    CHECK(same_bytes(diffkv::test::run(used, b).outputs, expected.outputs));

    // After a call that was refused, and after a run that ended for want of pages.
    used.release(&slot, 1);
    CHECK_THROWS_AS(used.admit(0, 121), diffkv::invalid_argument);
    CHECK(same_bytes(diffkv::test::run(used, b).outputs, expected.outputs));

    cache_options few = small_options(kind);
    few.num_pages     = 20;
    any_cache tight{few, policy};
    CHECK(diffkv::test::run(tight, {1, 100, 20, 3}).admitted == false);
    life const cut = diffkv::test::run(tight, {1, 60, 60, 3});
    CHECK(cut.admitted);
    CHECK(diffkv::test::run(tight, {0, 40, 1, 4}).admitted == false);
    std::uint32_t const other = 1;
    tight.release(&other, 1);
    CHECK(same_bytes(diffkv::test::run(tight, b).outputs, expected.outputs));
  }
}

TEST_CASE("kv_cache: the order in which an executor runs rows does not show", "[cache]")
{
  diffkv::harmonic_table const harmonic{120};
  auto const policy = diffkv::test::policy_of(policy_kind::relative, harmonic);
  any_cache a{small_options(), policy};
  any_cache b{small_options(), policy};
  request const r{0, 60, 30};
  CHECK(same_bytes(diffkv::test::run(a, r).outputs, diffkv::test::run(b, r, reversed{}).outputs));
  CHECK(a.num_free_pages() == b.num_free_pages());
}

TEST_CASE("kv_cache: fixed and run-time configurations agree to the bit", "[cache]")
{
  using diffkv::conditioning;
  constexpr auto both = conditioning::centred | conditioning::rotated;
  diffkv::test::random random{71};
  cache_options options  = small_options();
  options.key_offsets    = random.floats(4 * 64, -1.0f, 1.0f);
  cache_options dynamic  = options;
  dynamic.high           = diffkv::k8v4::spec;
  dynamic.low            = diffkv::k4v2::spec;
  dynamic.conditioned    = both;
  dynamic.page_bytes     = 0;  // the best for the formats, as a fixed configuration always has
  options.high           = diffkv::k16v16::spec;  // what the configuration fixes is not read
  options.shape.head_dim = 128;

  diffkv::kv_cache<
    diffkv::static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 64, both>>
    fixed{options};
  diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>> free{dynamic};
  CHECK(fixed.options().page_bytes == free.options().page_bytes);
  CHECK(fixed.options().low.value.clip == 0.8f);  // the default for 2 bits where conditioned
  CHECK(fixed.options().high.value.clip == 1.0f);
  request const r{0, 40, 30};
  CHECK(same_bytes(diffkv::test::run(fixed, r).outputs, diffkv::test::run(free, r).outputs));

  diffkv::kv_cache<diffkv::static_config<diffkv::paper_policy, diffkv::k8v8, void, 64>> one_tier{
    small_options()};
  dynamic            = small_options();
  dynamic.page_bytes = 0;
  dynamic.high       = diffkv::k8v8::spec;
  dynamic.has_low    = false;
  diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>> same{dynamic};
  CHECK(same_bytes(diffkv::test::run(one_tier, r).outputs, diffkv::test::run(same, r).outputs));
  CHECK(one_tier.usage(0).low_tokens == 0);
}

TEST_CASE("kv_cache: sequences in other slots are not disturbed", "[cache]")
{
  diffkv::harmonic_table const harmonic{120};
  auto const policy = diffkv::test::policy_of(policy_kind::paper, harmonic);
  any_cache alone{small_options(), policy};
  any_cache shared{small_options(), policy};
  request const r{0, 30, 40, 5};
  diffkv::test::run(shared, {1, 25, 33, 6});
  life const expected = diffkv::test::run(alone, r);
  CHECK(same_bytes(diffkv::test::run(shared, r).outputs, expected.outputs));
}

TEST_CASE("kv_cache: a moved cache goes on where it was", "[cache]")
{
  diffkv::harmonic_table const harmonic{120};
  auto const policy = diffkv::test::policy_of(policy_kind::paper, harmonic);
  any_cache first{small_options(), policy};
  diffkv::test::run(first, {1, 25, 5, 6});
  auto const usage = first.usage(1);
  any_cache second{std::move(first)};
  CHECK(second.usage(1).pages == usage.pages);
  any_cache fresh{small_options(), policy};
  request const r{0, 30, 10, 5};
  CHECK(same_bytes(diffkv::test::run(second, r).outputs, diffkv::test::run(fresh, r).outputs));
}

TEST_CASE("kv_cache: 16-bit pages that keep every token are plain attention", "[cache]")
{
  cache_options options = small_options();
  options.high          = diffkv::k16v16::spec;
  options.has_low       = false;
  options.page_bytes    = 0;
  options.limits        = {0.0f, 0.0f};
  diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>> cache{options};
  life const prompt_only = diffkv::test::run(cache, {0, 60, 0, 9});
  life const generated   = diffkv::test::run(cache, {1, 60, 40, 9});
  CHECK(
    std::equal(prompt_only.outputs.begin(), prompt_only.outputs.end(), generated.outputs.begin()));
  CHECK(cache.usage(1).pruned == 0);
  CHECK(cache.usage(1).high_tokens == 100 * 4);
}
