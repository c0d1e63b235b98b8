// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "support/cache_life.hpp"
#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::cache_options;
using diffkv::conditioning;
using diffkv::test::contains;
using paper_cache = diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>>;

struct bad_options {
  std::string named;  //!< the message must name the option
  std::string legal;  //!< and its legal values
  std::function<void(cache_options&)> change;
};

std::string message_of(std::function<void()> const& call)
{
  try {
    call();
  } catch (diffkv::invalid_argument const& e) {
    return e.what();
  }
  return "accepted";
}
}  // namespace

TEST_CASE("cache_options: each illegal option is refused by name with its legal values", "[cache]")
{
  float const not_a_number = std::numeric_limits<float>::quiet_NaN();
  std::vector<bad_options> const table{
    {"num_slots", "at least 1", [](cache_options& o) { o.shape.num_slots = 0; }},
    {"num_layers", "at least 1", [](cache_options& o) { o.shape.num_layers = 0; }},
    {"num_heads", "at least 1", [](cache_options& o) { o.shape.num_heads = 0; }},
    {"group_size", "at least 1", [](cache_options& o) { o.shape.group_size = 0; }},
    {"max_tokens", "16777216", [](cache_options& o) { o.shape.max_tokens = 0; }},
    {"max_tokens", "16777216", [](cache_options& o) { o.shape.max_tokens = -5; }},
    {"window", "at least 1", [](cache_options& o) { o.shape.window = 0; }},
    {"score_every", "0, 1, 2 or 4", [](cache_options& o) { o.shape.score_every = 3; }},
    {"schedule", "by_batch or by_position",
     [](cache_options& o) { o.shape.schedule = static_cast<diffkv::catch_up_schedule>(2); }},
    {"head_dim", "multiple of 16", [](cache_options& o) { o.shape.head_dim = 72; }},
    {"head_dim", "32 to 256", [](cache_options& o) { o.shape.head_dim = 272; }},
    {"head_dim", "32 to 256", [](cache_options& o) { o.shape.head_dim = 0; }},
    {"head_dim", "32 to 256",
     [](cache_options& o) {
       o.shape.head_dim = -64;
       o.conditioned    = conditioning::centred;
     }},
    {"threshold", "threshold_high >= threshold_low >= 0",
     [](cache_options& o) {
       o.limits = {0.1f, 0.2f};
     }},
    {"threshold", ">= 0",
     [](cache_options& o) {
       o.limits = {1.0f, -0.1f};
     }},
    {"threshold", ">= 0",
     [=](cache_options& o) {
       o.limits = {not_a_number, 0.0f};
     }},
    {"threshold", ">= 0",
     [=](cache_options& o) {
       o.limits = {1.0f, not_a_number};
     }},
    {"row_limits", "4", [](cache_options& o) { o.row_limits.resize(3); }},
    {"threshold", ">= 0",
     [](cache_options& o) {
       o.row_limits.resize(4);
       o.row_limits[3] = {0.0f, 1.0f};
     }},
    {"key_offsets", "need 256", [](cache_options& o) { o.conditioned = conditioning::centred; }},
    {"key_offsets", "need 0", [](cache_options& o) { o.key_offsets.resize(256); }},
    {"key_offsets", "finite",
     [=](cache_options& o) {
       o.conditioned = conditioning::centred;
       o.key_offsets.assign(256, 0.0f);
       o.key_offsets[255] = not_a_number;
     }},
    {"format", "16, 8, 4, 2",
     [](cache_options& o) {
       o.high = {{3}, {4}};
     }},
    {"format", "16, 8, 4, 2",
     [](cache_options& o) {
       o.high = {{1}, {4}};
     }},
    {"format", "16, 8, 4, 2, 1",
     [](cache_options& o) {
       o.low = {{4}, {5}};
     }},
    {"format", "1, 2 or 4 groups",
     [](cache_options& o) {
       o.low = {{4, 3}, {2}};
     }},
    {"format", "at least 32",
     [](cache_options& o) {
       o.low = {{4, 4}, {2}};
     }},
    {"format", "clip in (0, 1]",
     [](cache_options& o) {
       o.default_clips = false;
       o.low           = {{4, 1, 1.5f}, {2}};
     }},
    {"page_bytes", "multiple of 128", [](cache_options& o) { o.page_bytes = 7000; }},
    {"page_bytes", "room for 16 tokens", [](cache_options& o) { o.page_bytes = 896; }},
    {"page_bytes", "at most 1 MiB", [](cache_options& o) { o.page_bytes = (1u << 20) + 128; }},
    {"num_pages", "1 ..", [](cache_options& o) { o.num_pages = 0; }},
    {"num_pages", "4294967294", [](cache_options& o) { o.num_pages = 0xFFFF'FFFFu; }},
  };
  for (bad_options const& bad : table) {
    cache_options options = diffkv::test::small_options();
    bad.change(options);
    CAPTURE(bad.named, bad.legal);
    std::string const message = message_of([&] { paper_cache{options}; });
    CHECK_THAT(message, contains(bad.named));
    CHECK_THAT(message, contains(bad.legal));
  }
}

TEST_CASE("kv_cache: a policy that cannot serve the longest sequence is refused by name", "[cache]")
{
  diffkv::harmonic_table const harmonic{119};
  cache_options options = diffkv::test::small_options();  // max_tokens 120
  using relative_cache  = diffkv::kv_cache<diffkv::dynamic_config<diffkv::relative_policy>>;
  using static_cache    = diffkv::kv_cache<diffkv::dynamic_config<diffkv::static_policy>>;
  using any_cache       = diffkv::kv_cache<diffkv::dynamic_config<diffkv::any_policy>>;
  CHECK_THAT(message_of([&] { relative_cache{options}; }), contains("harmonic table for 0 tokens"));
  CHECK_THAT(message_of([&] { relative_cache(options, {harmonic.ref()}); }),
             contains("at least max_tokens = 120"));
  CHECK_THAT(message_of([&] { any_cache{options}; }), contains("harmonic"));
  CHECK_THAT(message_of([&] { static_cache(options, {-1}); }), contains("budget: -1"));
  options.shape.max_tokens = 119;
  CHECK(message_of([&] { relative_cache(options, {harmonic.ref()}); }) == "accepted");
  CHECK(message_of([&] { static_cache(options, {0}); }) == "accepted");
}

TEST_CASE("cache_options: defaults are resolved to the best page size and the default clips",
          "[cache]")
{
  cache_options options = diffkv::test::small_options();
  options.page_bytes    = 0;
  CHECK(paper_cache{options}.options().page_bytes == 7168);
  options.shape.head_dim = 128;
  CHECK(paper_cache{options}.options().page_bytes == 7168);
  options.has_low = false;
  options.high    = diffkv::k8v8::spec;
  CHECK(paper_cache{options}.options().page_bytes == 8704);
  options.high = diffkv::k16v16::spec;
  CHECK(paper_cache{options}.options().page_bytes == 16'640);
  options.page_bytes = 33'280;
  CHECK(paper_cache{options}.options().page_bytes == 33'280);

  cache_options clipped = diffkv::test::small_options();
  clipped.conditioned   = conditioning::rotated;
  CHECK(paper_cache{clipped}.options().low.value.clip == 0.8f);
  clipped.default_clips  = false;
  clipped.low.value.clip = 0.9f;
  CHECK(paper_cache{clipped}.options().low.value.clip == 0.9f);
}

TEST_CASE("cache_options: with pages_for_all no sequence is ever refused", "[cache]")
{
  cache_options options    = diffkv::test::small_options();
  options.shape.max_tokens = 40;
  options.shape.window     = 2;
  for (bool const has_low : {false, true}) {
    options.has_low   = has_low;
    options.num_pages = static_cast<std::uint32_t>(diffkv::pages_for_all(options));
    paper_cache cache{options};
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      auto const l =
        diffkv::test::run(cache, {slot, slot == 0 ? 40 : 3, slot == 0 ? 0 : 37, slot + 1});
      CHECK(l.admitted);
      CHECK(cache.usage(slot).num_tokens == 40);
    }
    CHECK(diffkv::test::page_trouble(cache.context().cache).empty());
  }
}

TEST_CASE("kv_cache: a window wider than the longest sequence costs no more than that", "[cache]")
{
  cache_options options    = diffkv::test::small_options();
  options.shape.max_tokens = 40;
  options.limits           = {1e6f, 1e6f};  // all goes that the window does not keep
  auto const outputs_with  = [&](int window) {
    options.shape.window = window;
    paper_cache cache{options};
    CHECK(cache.context().cache.state.window_tokens == 40);
    auto const l = diffkv::test::run(cache, {0, 30, 10});
    CHECK(l.new_tokens == 10);
    CHECK(cache.usage(0).pruned == 0);
    return l.outputs;
  };
  CHECK(outputs_with(1 << 24) == outputs_with(40));
}

TEST_CASE("kv_cache: thresholds per layer and head are those of the rows", "[cache]")
{
  cache_options options = diffkv::test::small_options();
  options.row_limits    = {{0.0f, 0.0f}, {1e6f, 0.0f}, {1e6f, 1e6f}, {0.0f, 0.0f}};
  paper_cache cache{options};
  REQUIRE(diffkv::test::run(cache, {1, 50, 20}).new_tokens == 20);
  auto const tokens = [&](std::uint32_t layer, std::uint32_t head) {
    return cache.context().cache.state.rows[cache.shape().row(1, layer, head)].tokens;
  };
  CHECK(tokens(0, 0) == diffkv::tier_counts{70, 0});
  CHECK(tokens(0, 1) == diffkv::tier_counts{8, 62});
  CHECK(tokens(1, 0) == diffkv::tier_counts{8, 0});
  CHECK(tokens(1, 1) == diffkv::tier_counts{70, 0});
}

TEST_CASE("kv_cache: thresholds of one request are not those of another", "[cache]")
{
  cache_options options   = diffkv::test::small_options();
  options.row_limits      = {{0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}, {0.0f, 0.0f}};
  options.limits_per_slot = true;
  paper_cache cache{options};
  cache.set_limits(1, {1e6f, 0.0f});
  cache.set_limits(1, 1, 0, {1e6f, 1e6f});
  REQUIRE(diffkv::test::run(cache, {0, 50, 20}).new_tokens == 20);
  REQUIRE(diffkv::test::run(cache, {1, 50, 20}).new_tokens == 20);
  auto const tokens = [&](std::uint32_t slot, std::uint32_t layer, std::uint32_t head) {
    return cache.context().cache.state.rows[cache.shape().row(slot, layer, head)].tokens;
  };
  for (std::uint32_t layer : {0u, 1u}) {
    for (std::uint32_t head : {0u, 1u}) {
      CAPTURE(layer, head);
      CHECK(tokens(0, layer, head) == diffkv::tier_counts{70, 0});
      bool const prunes = layer == 1 && head == 0;
      CHECK(tokens(1, layer, head) == diffkv::tier_counts{8, prunes ? 0u : 62u});
    }
  }
  using diffkv::invalid_argument;
  CHECK_THROWS_AS(cache.set_limits(2, {1.0f, 0.0f}), invalid_argument);
  CHECK_THROWS_AS(cache.set_limits(0, 2, 0, {1.0f, 0.0f}), invalid_argument);
  CHECK_THROWS_AS(cache.set_limits(0, 0, 2, {1.0f, 0.0f}), invalid_argument);
  CHECK_THROWS_AS(cache.set_limits(0, {0.0f, 1.0f}), invalid_argument);
  options.limits_per_slot = false;
  paper_cache shared{options};
  CHECK_THROWS_WITH(shared.set_limits(0, {1.0f, 0.0f}), diffkv::test::contains("limits_per_slot"));
}

TEST_CASE("kv_cache: wrong calls are refused by name and change nothing", "[cache]")
{
  cache_options options    = diffkv::test::small_options();
  options.shape.max_tokens = 20;
  paper_cache cache{options};
  REQUIRE(diffkv::test::run(cache, {0, 10, 5}).new_tokens == 5);
  auto const usage = cache.usage(0);

  std::vector<float> x(1000, 1.0f);
  auto const in  = diffkv::packed<float const>(x.data(), 2, 64);
  auto const out = diffkv::packed(x.data(), 6, 64);
  diffkv::attention_options const with_splits_0{0.125f, 0.0f, 0, 0};
  auto const slots_of = [](std::uint32_t a, std::uint32_t b) {
    return std::vector<std::uint32_t>{a, b};
  };
  std::vector<std::pair<std::string, std::function<void()>>> const table{
    {"slot: 2", [&] { static_cast<void>(cache.admit(2, 5)); }},
    {"num_tokens", [&] { static_cast<void>(cache.admit(1, 21)); }},
    {"num_tokens", [&] { static_cast<void>(cache.admit(1, -1)); }},
    {"in use", [&] { static_cast<void>(cache.admit(0, 5)); }},
    {"slot: 2", [&] { cache.prefill_attention(2, {}, in, in, in, out, nullptr, x.data()); }},
    {"slot: 2", [&] { cache.store_prompt(2, 0, in, in, x.data()); }},
    {"layer: 2", [&] { cache.store_prompt(0, 2, in, in, x.data()); }},
    {"waiting to be stored", [&] { cache.store_prompt(0, 0, in, in, x.data()); }},
    {"slot: 2", [&] { cache.step(slots_of(0, 2).data(), 2); }},
    {"twice", [&] { cache.step(slots_of(0, 0).data(), 2); }},
    {"slot: 9", [&] { cache.append(slots_of(0, 9).data(), 2, 0, in, in, in); }},
    {"layer: 7", [&] { cache.append(slots_of(0, 1).data(), 1, 7, in, in, in); }},
    {"slot: 9", [&] { cache.decode(slots_of(0, 9).data(), 2, 0, {}, in, out, nullptr); }},
    {"layer: 2", [&] { cache.decode(slots_of(0, 1).data(), 1, 2, {}, in, out, nullptr); }},
    {"splits", [&] { cache.decode(slots_of(0, 1).data(), 1, 0, with_splits_0, in, out, nullptr); }},
    {"slot: 3", [&] { cache.release(slots_of(0, 3).data(), 2); }},
    {"slot: 2", [&] { static_cast<void>(cache.usage(2)); }},
  };
  for (auto const& [named, call] : table) {
    CAPTURE(named);
    CHECK_THAT(message_of(call), contains(named));
    CHECK(cache.usage(0).num_tokens == usage.num_tokens);
    CHECK(cache.usage(0).pages == usage.pages);
    CHECK(diffkv::test::page_trouble(cache.context().cache).empty());
  }
  CHECK(x == std::vector<float>(1000, 1.0f));
  // A sequence at its longest cannot step; the other goes on.
  std::uint32_t const slot = 0;
  for (int i = 15; i < 20; ++i) { CHECK(cache.step(&slot, 1) == 0); }
  CHECK_THAT(message_of([&] { cache.step(&slot, 1); }), contains("max_tokens, 20"));
  CHECK(cache.usage(0).num_tokens == 20);
}
