// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Caches on a device that is not the current one, and on two devices in one process.
#include <thread>

#include "support/catch.hpp"
#include "support/device_twin.cuh"
#include "support/twin_policies.hpp"

namespace {

using namespace diffkv;
using config = static_config<any_policy, k8v4, k4v2, 64, conditioning::none, std::uint32_t{1792}>;
using twin   = test::device_twin<config, float>;

constexpr test::twin_extents usual{6, 2, 2, 2, 90, 8, 4, 60};
constexpr auto kind = policy_kind::relative;  // its table lies on the device, too

//! A twin that lives on one device, made while that one was current.
struct placed_twin {
  explicit placed_twin(int device, bool captured, std::uint64_t seed)
  {
    test::on_device const here{device};
    test::twin_setup setup = test::setup_of<config>(usual, kind);
    setup.captured         = captured;
    policies               = std::make_unique<test::twin_policies>(400, 24);
    cache = std::make_unique<twin>(setup, policies->host(kind), policies->device(kind), seed);
  }
  std::unique_ptr<test::twin_policies> policies{};
  std::unique_ptr<twin> cache{};
};

int device_of(void const* p)
{
  cudaPointerAttributes attributes{};
  test::check(cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  return attributes.device;
}

}  // namespace

TEST_CASE("device_kv_cache: a cache on a device that is not the current one lives as the host's",
          "[cache][devices]")
{
  if (!test::has_two_devices()) { DIFFKV_SKIP(test::needs_two_devices); }
  test::on_device const other{0};
  placed_twin placed{1, false, 81};
  placed.cache->live(300);  // the twin looks whether the current device stays
  CHECK(placed.cache->trouble() == "");
  CHECK(placed.cache->counts().stepped > 100);
  CHECK(placed.cache->counts().released > 5);

  // A stream does not say its device while it captures: then it must be current.
  placed_twin captured{1, true, 82};
  {
    test::on_device const here{1};
    captured.cache->live(60);
  }
  captured.cache->live(200);
  CHECK(captured.cache->trouble() == "");
  CHECK(test::current_device() == 0);
}

TEST_CASE("device_kv_cache: caches on two devices do not meet, in turn or from two threads",
          "[cache][devices]")
{
  if (!test::has_two_devices()) { DIFFKV_SKIP(test::needs_two_devices); }
  test::on_device const current{0};
  placed_twin first{0, false, 83};
  placed_twin second{1, false, 84};
  for (int i = 0; i < 150; ++i) {
    first.cache->live(1);
    second.cache->live(1);
  }
  std::string thrown[2];
  auto const work = [](twin& cache, std::string& what) {
    try {
      cache.live(150);
    } catch (std::exception const& e) {
      what = e.what();
    }
  };
  // A thread starts with device 0 current.
  std::thread a{[&] { work(*first.cache, thrown[0]); }};
  std::thread b{[&] { work(*second.cache, thrown[1]); }};
  a.join();
  b.join();
  CHECK(thrown[0] == "");
  CHECK(thrown[1] == "");
  CHECK(first.cache->trouble() == "");
  CHECK(second.cache->trouble() == "");
}

TEST_CASE("device_kv_cache: memory is that of the stream's device, whichever one is current",
          "[cache][devices]")
{
  if (!test::has_two_devices()) { DIFFKV_SKIP(test::needs_two_devices); }
  std::unique_ptr<test::device_stream> stream;
  std::unique_ptr<test::device_array<std::uint32_t>> slots, counts;
  std::unique_ptr<test::device_array<std::int32_t>> lengths;
  std::unique_ptr<test::device_array<release_report>> report;
  {
    test::on_device const here{1};
    stream  = std::make_unique<test::device_stream>();
    slots   = std::make_unique<test::device_array<std::uint32_t>>(std::vector<std::uint32_t>{0, 1});
    counts  = std::make_unique<test::device_array<std::uint32_t>>(2);
    lengths = std::make_unique<test::device_array<std::int32_t>>(std::vector<std::int32_t>{30, 50});
    report  = std::make_unique<test::device_array<release_report>>(1);
  }
  test::on_device const other{0};
  cudaStream_t const s               = stream->get();
  std::uint64_t const bytes_before   = test::pool_bytes(0);
  std::uint64_t const there_before   = test::pool_bytes(1);
  test::twin_setup const setup       = test::setup_of<config>(usual, kind);
  cuda_async_resource const resource = {s};
  using cache_type                   = device_kv_cache<config>;
  {
    device_harmonic_table<cuda_async_resource> const table{400, resource, s};
    any_policy policy;
    policy.kind              = kind;
    policy.relative.harmonic = table.ref();
    cache_type cache{setup.options, {4, 2, 60}, policy, resource, s};
    cache_ref const ref = cache.ref();
    for (void const* p :
         {static_cast<void const*>(table.ref().sums), static_cast<void const*>(ref.pool.base),
          static_cast<void const*>(ref.ring.ids), static_cast<void const*>(ref.table.entries),
          static_cast<void const*>(ref.state.rows), static_cast<void const*>(ref.queries.codes)}) {
      CHECK(device_of(p) == 1);
    }
    CHECK(test::pool_bytes(0) == bytes_before);
    CHECK(test::pool_bytes(1) > there_before);
    CHECK(test::current_device() == 0);

    batch_ref const batch{slots->data(), nullptr, 2};
    refusals_ref const refusals{counts->data(), nullptr};
    cache.admit(batch, lengths->data(), refusals, s);
    cache.release(batch, report->data(), s);
    stream->wait();
    CHECK(counts->to_host()[0] == 0);
    CHECK(report->to_host()[0].released > 0);
    // Empty batches launch no kernel and still write their results.
    cache.release({}, report->data(), s);
    cache.step({}, {counts->data() + 1, nullptr}, s);
    cache.admit({}, nullptr, {counts->data() + 1, nullptr}, s);
    stream->wait();
    CHECK(counts->to_host()[1] == 0);
    CHECK(report->to_host()[0].released == 0);
    CHECK(test::current_device() == 0);
    // Refused, and what no device has.
    CHECK_THROWS_AS(cache.append(batch, 2, vectors<float const>{}, {}, {}, s), invalid_argument);
    CHECK(test::current_device() == 0);
    cache_options options = setup.options;
    options.num_pages     = 400'000'000;  // 717 GB
    CHECK_THROWS_AS((cache_type{options, {4, 2, 60}, policy, resource, s}), cuda_error);
    CHECK(test::current_device() == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  stream->wait();
  CHECK(test::pool_bytes(1) == there_before);
  CHECK(test::pool_bytes(0) == bytes_before);
}
