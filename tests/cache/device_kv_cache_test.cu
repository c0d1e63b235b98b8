// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! device_kv_cache leaves, after every call of random lives, what kv_cache of the same configuration
//! leaves, byte for byte: pages, ring, tables, row state, query rings, refusals, statistics.
#include <thread>

#include "support/catch.hpp"
#include "support/device_twin.cuh"
#include "support/twin_policies.hpp"

namespace {

using namespace diffkv;
constexpr auto both = conditioning::centred | conditioning::rotated;

// Two configurations: most of this file's compile time is theirs.
//! Pages of 16 tokens of either tier: their ends are met all the time.
using small_config =
  static_config<any_policy, k8v4, k4v2, 64, conditioning::none, std::uint32_t{1792}>;
using small_twin = test::device_twin<small_config, float>;
//! The usual page size, 64 and 112 tokens, and everything that conditioning has.
using usual_config = static_config<any_policy, k8v4, k4v2, 64, both>;
using usual_twin   = test::device_twin<usual_config, __half>;
static_assert(small_config::layouts::high::tokens_per_page == 16);
static_assert(usual_config::layouts::page_bytes == 7168);

//! Lives of a twin, which must not be in trouble afterwards.
template <class Twin>
test::twin_counts live(test::twin_setup const& setup, policy_kind kind, int operations,
                       std::uint64_t seed)
{
  test::twin_policies const all{400, 24};
  CAPTURE(static_cast<int>(kind), seed, setup.options.shape.num_slots);
  Twin twin{setup, all.host(kind), all.device(kind), seed};
  twin.live(operations);
  CHECK(twin.trouble() == "");
  return twin.counts();
}

constexpr policy_kind kinds[] = {policy_kind::paper, policy_kind::artifact, policy_kind::relative,
                                 policy_kind::static_budget};

}  // namespace

TEST_CASE("device_kv_cache: a hundred thousand mixed operations leave what the host's leave",
          "[cache]")
{
  // A batch of one; a row a sequence and the least window; no scores; large batches; ordinary ones.
  // Pages are so few that prompts and steps are refused.
  struct part {
    test::twin_extents e;
    int operations;
  };
  part const all_small[] = {{{1, 2, 2, 2, 90, 8, 4, 16}, 300},
                            {{3, 1, 1, 1, 60, 1, 1, 4}, 300},
                            {{40, 1, 3, 1, 40, 4, 0, 80}, 1500},
                            {{64, 1, 1, 2, 48, 5, 2, 45}, 2000},
                            {{12, 2, 2, 2, 100, 16, 4, 100}, 500}};
  part const all_usual[] = {{{8, 2, 1, 2, 300, 24, 4, 22}, 300},
                            {{24, 1, 2, 1, 160, 64, 2, 48}, 500}};
  test::twin_counts counts;
  std::uint64_t seed = 1;
  for (policy_kind kind : kinds) {
    for (part const& p : all_small) {
      counts.add(
        live<small_twin>(test::setup_of<small_config>(p.e, kind), kind, p.operations, seed++));
    }
    for (part const& p : all_usual) {
      counts.add(
        live<usual_twin>(test::setup_of<usual_config>(p.e, kind), kind, p.operations, seed++));
    }
  }
  CAPTURE(counts.admitted, counts.refused_prompts, counts.impossible_prompts, counts.stored,
          counts.stepped, counts.refused_steps, counts.released);
  WARN(counts.sum() << " operations of sequences in " << counts.launches
                    << " calls: " << counts.admitted << " admitted, " << counts.refused_prompts
                    << " short of pages, " << counts.impossible_prompts << " impossible, "
                    << counts.stepped << " steps, " << counts.refused_steps << " steps refused, "
                    << counts.released << " released");
  CHECK(counts.sum() >= 100'000);
  CHECK(counts.refused_prompts > 200);
  CHECK(counts.impossible_prompts > 200);
  CHECK(counts.refused_steps > 1000);
}

TEST_CASE("device_kv_cache: some lives, few enough for compute-sanitizer", "[cache][small]")
{
  live<small_twin>(test::setup_of<small_config>({3, 2, 2, 3, 60, 5, 4, 30}, policy_kind::paper),
                   policy_kind::paper, 24, 5);
  live<usual_twin>(
    test::setup_of<usual_config>({2, 2, 1, 2, 150, 24, 2, 16}, policy_kind::relative),
    policy_kind::relative, 16, 6);
}

TEST_CASE("device_kv_cache: graphs captured once serve a thousand steps of changing batches",
          "[cache]")
{
  test::twin_policies const all{400, 24};
  auto const serve = [&](auto& twin) {
    twin.live_steps(500);
    CHECK(twin.trouble() == "");
    CHECK(twin.batch_sizes() >= 6);
    CHECK(twin.counts().refused_steps > 10);
    CHECK(twin.counts().stepped > 1500);
  };
  test::twin_setup setup =
    test::setup_of<small_config>({10, 2, 2, 2, 100, 8, 4, 90}, policy_kind::paper);
  setup.captured = true;
  small_twin small{setup, all.host(policy_kind::paper), all.device(policy_kind::paper), 11};
  serve(small);
  setup = test::setup_of<usual_config>({8, 3, 1, 2, 260, 16, 2, 34}, policy_kind::relative);
  setup.captured = true;
  usual_twin usual{setup, all.host(policy_kind::relative), all.device(policy_kind::relative), 12};
  serve(usual);
}

TEST_CASE("device_kv_cache: calls keep their order in a stream that is busy and does not block",
          "[cache][stream]")
{
  // Work in any other stream would run before its inputs are there.
  test::twin_setup setup =
    test::setup_of<small_config>({4, 2, 2, 2, 80, 8, 4, 48}, policy_kind::artifact);
  setup.spin_ns = 10'000'000;
  live<small_twin>(setup, policy_kind::artifact, 60, 21);
  setup.captured = true;
  live<small_twin>(setup, policy_kind::artifact, 40, 22);
}

TEST_CASE("device_kv_cache: two host threads with a cache and a stream each do not meet",
          "[cache][stream]")
{
  test::twin_policies const all{400, 24};
  test::twin_setup setups[2] = {
    test::setup_of<small_config>({6, 2, 2, 2, 80, 8, 4, 60}, policy_kind::paper),
    test::setup_of<small_config>({6, 2, 2, 2, 80, 8, 4, 60}, policy_kind::paper)};
  setups[1].captured = true;  // one captures while the other works
  small_twin a{setups[0], all.host(policy_kind::paper), all.device(policy_kind::paper), 31};
  small_twin b{setups[1], all.host(policy_kind::paper), all.device(policy_kind::paper), 32};
  std::string thrown[2];
  auto const work = [](small_twin& twin, std::string& what) {
    try {
      twin.live_steps(150);
    } catch (std::exception const& e) {
      what = e.what();
    }
  };
  std::thread first{[&] { work(a, thrown[0]); }};
  std::thread second{[&] { work(b, thrown[1]); }};
  first.join();
  second.join();
  CHECK(thrown[0] == "");
  CHECK(thrown[1] == "");
  CHECK(a.trouble() == "");
  CHECK(b.trouble() == "");
}

TEST_CASE("device_kv_cache: two runs of the same calls leave the same bytes", "[cache]")
{
  test::twin_policies const all{400, 24};
  auto const setup =
    test::setup_of<usual_config>({6, 2, 2, 2, 200, 16, 4, 50}, policy_kind::relative);
  auto const run = [&] {
    auto twin = std::make_unique<usual_twin>(setup, all.host(policy_kind::relative),
                                             all.device(policy_kind::relative), 41);
    twin->live(80);
    return twin;
  };
  auto const first  = run();
  auto const second = run();
  CHECK(first->trouble() == "");
  CHECK(test::difference_of(first->answer(), second->answer()) == "");
}

TEST_CASE("device_kv_cache: a resource of the caller's own is asked once and given everything back",
          "[cache]")
{
  test::twin_policies const all{400, 24};
  auto const setup = test::setup_of<small_config>({4, 2, 2, 2, 80, 8, 4, 48}, policy_kind::paper);
  test::counting_device_resource resource{};
  test::device_stream stream;
  {
    device_kv_cache<small_config, test::counting_device_resource> cache{
      setup.options, {4, 2, 50}, all.device(policy_kind::paper), resource, stream.get()};
    CHECK(resource.book->calls > 0);
    CHECK(resource.book->bytes >= std::size_t{setup.options.num_pages} * 1792);
    std::size_t const calls = resource.book->calls;
    auto moved              = std::move(cache);
    CHECK(resource.book->calls == calls);
    CHECK(moved.options().page_bytes == 1792);
  }
  CHECK(resource.book->live == 0);
  CHECK(resource.book->bytes == 0);
  CHECK_FALSE(resource.book->mismatch);

  small_twin twin{setup, all.host(policy_kind::paper), all.device(policy_kind::paper), 51};
  std::size_t const calls = twin.book().calls;
  twin.live(60);
  CHECK(twin.book().calls == calls);  // nothing behind the caller's back
}

TEST_CASE("device_kv_cache: illegal options are refused before any memory is asked for", "[cache]")
{
  test::twin_policies const all{400, 24};
  test::device_stream stream;
  test::counting_device_resource resource{};
  auto const setup  = test::setup_of<small_config>({4, 2, 2, 2, 80, 8, 4, 48}, policy_kind::paper);
  auto const refuse = [&](char const* named, auto&& change) {
    cache_options options = setup.options;
    prompt_limits prompts{4, 2, 50};
    any_policy policy = all.device(policy_kind::relative);
    change(options, prompts, policy);
    using cache = device_kv_cache<small_config, test::counting_device_resource>;
    CHECK_THROWS_WITH((cache{options, prompts, policy, resource, stream.get()}),
                      test::contains(named));
    CHECK(cudaGetLastError() == cudaSuccess);
  };
  refuse("num_pages", [](auto& o, auto&, auto&) { o.num_pages = 0; });
  refuse("window", [](auto& o, auto&, auto&) { o.shape.window = 0; });
  refuse("row_limits", [](auto& o, auto&, auto&) { o.row_limits.pop_back(); });
  refuse("key_offsets", [](auto& o, auto&, auto&) { o.key_offsets.resize(64); });
  refuse("prompts", [](auto&, auto& p, auto&) { p.prompts = 5; });
  refuse("layers", [](auto&, auto& p, auto&) { p.layers = 3; });
  refuse("tokens", [](auto&, auto& p, auto&) { p.tokens = 0; });
  refuse("tokens", [](auto&, auto& p, auto&) { p.tokens = 81; });
  refuse("max_tokens", [](auto&, auto&, auto& p) { p.relative.harmonic.max_tokens = 79; });
  CHECK(resource.book->calls == 0);
}

TEST_CASE("device_kv_cache: wrong calls are refused before any launch and leave no error behind",
          "[cache][small]")
{
  test::twin_policies const all{400, 24};
  auto const setup = test::setup_of<small_config>({4, 2, 2, 2, 80, 8, 4, 48}, policy_kind::paper);
  small_twin twin{setup, all.host(policy_kind::paper), all.device(policy_kind::paper), 61};
  auto& cache = twin.device();
  test::device_array<std::uint32_t> const slots{8};
  test::device_array<std::int32_t> const lengths{8};
  test::device_array<float> const x{64};
  batch_ref const batch{slots.data(), nullptr, 4};
  batch_ref const large{slots.data(), nullptr, 5};
  vectors<float const> const v{x.data(), 64, 64};
  cudaStream_t const s = twin.stream();
  prompt_source<float> source;
  source.max_tokens     = 53;
  auto const is_refused = [&](char const* named, auto&& call) {
    CHECK_THROWS_WITH(call(), test::contains(named));
    CHECK(cudaGetLastError() == cudaSuccess);
  };
  is_refused("slots", [&] { cache.admit(large, lengths.data(), {}, s); });
  is_refused("num_tokens", [&] { cache.admit(batch, nullptr, {}, s); });
  is_refused("slots", [&] { cache.step(large, {}, s); });
  is_refused("slots", [&] { cache.release(large, nullptr, s); });
  is_refused("layer", [&] { cache.append(batch, 2, v, v, v, s); });
  is_refused("limits", [&] {
    source.max_tokens = 54;
    cache.store_prompt(batch, source, {0, 2}, s);
  });
  is_refused("first_tokens", [&] {
    source.max_tokens = 53;
    cache.store_prompt(batch, source, {0, 2}, s);
  });
  is_refused("layers", [&] { cache.store_prompt({}, source, {1, 2}, s); });
  // Handles of another configuration.
  is_refused("bytes",
             [&] { step<usual_config>(cache.ref(), batch, cache.policy(), nullptr, 0, {}, s); });
  twin.live(10);  // the next, valid calls work
  CHECK(twin.trouble() == "");
}

TEST_CASE("device_kv_cache: somebody else's old error is neither reported nor taken away",
          "[cache][small]")
{
  test::twin_policies const all{400, 24};
  auto const setup = test::setup_of<small_config>({4, 2, 2, 2, 80, 8, 4, 48}, policy_kind::paper);
  small_twin twin{setup, all.host(policy_kind::paper), all.device(policy_kind::paper), 71};
  static_cast<void>(cudaSetDevice(999));
  CHECK_NOTHROW(twin.live(20));
  CHECK(twin.trouble() == "");
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
}

TEST_CASE(
  "device_kv_cache: memory that the device has not is a cuda_error, and the next cache works",
  "[cache]")
{
  test::twin_policies const all{400, 24};
  test::device_stream stream;
  cuda_async_resource const resource{stream.get()};
  using cache      = device_kv_cache<usual_config>;
  auto const setup = test::setup_of<usual_config>({2, 1, 1, 1, 80, 8, 4, 40}, policy_kind::paper);
  cache_options options = setup.options;
  options.num_pages     = 400'000'000;  // 2.9 TB
  CHECK_THROWS_AS(
    (cache{options, {1, 1, 50}, all.device(policy_kind::paper), resource, stream.get()}),
    cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
  options.num_pages = 40;
  CHECK_NOTHROW(
    (cache{options, {1, 1, 50}, all.device(policy_kind::paper), resource, stream.get()}));
}
