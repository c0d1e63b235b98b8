// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Pages and memory over many lives.
#include <memory>

#include "support/cache_life.hpp"
#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::cache_options;
using diffkv::policy_kind;
using any_cache = diffkv::kv_cache<diffkv::dynamic_config<diffkv::any_policy>>;

//! What a counting resource was asked for; shared by its copies.
struct ledger {
  std::size_t calls = 0;
  std::size_t live  = 0;  //!< allocations not yet given back
  std::size_t bytes = 0;
  bool mismatch     = false;
};

struct counting_resource {
  static constexpr bool is_host_accessible = true;
  std::shared_ptr<ledger> book             = std::make_shared<ledger>();

  void* allocate(std::size_t bytes, std::size_t alignment)
  {
    ++book->calls;
    ++book->live;
    book->bytes += bytes;
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment) noexcept
  {
    book->mismatch = book->mismatch || book->live == 0 || book->bytes < bytes;
    --book->live;
    book->bytes -= bytes;
    ::operator delete (p, std::align_val_t{alignment});
  }
};
using counted_cache =
  diffkv::kv_cache<diffkv::dynamic_config<diffkv::any_policy>, counting_resource>;

cache_options tiny_options()
{
  cache_options o    = diffkv::test::small_options();
  o.shape.num_slots  = 3;
  o.shape.num_layers = 1;
  o.shape.group_size = 1;
  o.shape.head_dim   = 32;
  o.shape.max_tokens = 80;
  o.shape.window     = 4;
  o.page_bytes       = 1536;  // 16 tokens of k8v4, 32 of k4v2: boundaries are met
  o.num_pages        = 12;
  return o;
}
}  // namespace

TEST_CASE("kv_cache: all pages come back after a thousand lives", "[cache]")
{
  std::uint64_t const seed = 81;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  diffkv::harmonic_table const harmonic{80};
  int cancelled = 0;
  int refused   = 0;
  int starved   = 0;
  for (policy_kind const kind : {policy_kind::paper, policy_kind::artifact, policy_kind::relative,
                                 policy_kind::static_budget}) {
    any_cache cache{tiny_options(), diffkv::test::policy_of(kind, harmonic)};
    for (int i = 0; i < 250; ++i) {
      // Two lives overlap, so that pages come back in another order than they were taken.
      std::uint32_t const slots[2]{random.below(3), 0};
      std::uint32_t const other = (slots[0] + 1) % 3;
      diffkv::test::request const a{slots[0], random.between(0, 40), random.between(0, 20),
                                    random.next()};
      bool const too_long = random.one_in(20);
      if (too_long) {
        ++refused;
        CHECK_THROWS_AS(cache.admit(slots[0], 81), diffkv::invalid_argument);
      }
      auto const first  = diffkv::test::run(cache, a);
      auto const second = diffkv::test::run(
        cache, {other, random.between(0, 60), random.between(0, 10), random.next()});
      cancelled += first.new_tokens < 10 ? 1 : 0;
      starved += !second.admitted ? 1 : 0;
      std::string const trouble = diffkv::test::page_trouble(cache.context().cache);
      REQUIRE(trouble == "");
      CHECK(cache.usage(slots[0]).pages + cache.usage(other).pages + cache.num_free_pages() == 12);
      cache.release(&other, 1);
      cache.release(slots, 1);
      REQUIRE(cache.num_free_pages() == 12);
    }
    CHECK(*cache.context().cache.ring.head > 12 * 20);  // the ring wrapped many times
  }
  CHECK(cancelled > 50);
  CHECK(refused > 10);
  CHECK(starved > 10);
}

TEST_CASE("kv_cache: a resource of the caller's own is asked once and given everything back",
          "[cache]")
{
  diffkv::harmonic_table const harmonic{80};
  counting_resource resource{};
  {
    counted_cache cache{tiny_options(), diffkv::test::policy_of(policy_kind::paper, harmonic),
                        resource};
    std::size_t const calls = resource.book->calls;
    std::size_t const bytes = resource.book->bytes;
    CHECK(calls > 0);
    CHECK(bytes >= 12 * 1536);
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
      diffkv::test::run(cache, {0, 30, 20, seed});
      std::uint32_t const slot = 0;
      cache.release(&slot, 1);
    }
    CHECK(resource.book->calls == calls);  // nothing behind the caller's back
    CHECK(resource.book->bytes == bytes);
    counted_cache moved{std::move(cache)};
    CHECK(resource.book->live == calls);
  }
  CHECK(resource.book->live == 0);
  CHECK(resource.book->bytes == 0);
  CHECK_FALSE(resource.book->mismatch);
}

TEST_CASE("kv_cache: illegal options are refused before any memory is asked for", "[cache]")
{
  counting_resource resource{};
  diffkv::harmonic_table const harmonic{80};
  auto policy       = diffkv::test::policy_of(policy_kind::paper, harmonic);
  auto const refuse = [&](auto&& change) {
    cache_options options = tiny_options();
    change(options);
    CHECK_THROWS_AS(counted_cache(options, policy, resource), diffkv::invalid_argument);
  };
  refuse([](cache_options& o) { o.num_pages = 0; });
  refuse([](cache_options& o) { o.page_bytes = 128; });
  refuse([](cache_options& o) { o.page_bytes = 100; });
  refuse([](cache_options& o) { o.low = {{3}, {2}}; });
  refuse([](cache_options& o) { o.shape.window = 0; });
  refuse([](cache_options& o) { o.limits = {0.0f, 1.0f}; });
  policy.kind                 = policy_kind::static_budget;
  policy.static_budget.budget = -1;
  refuse([](cache_options&) {});
  CHECK(resource.book->calls == 0);
  policy.static_budget.budget = 0;
  CHECK_NOTHROW(counted_cache(tiny_options(), policy, resource));
}
