// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Pages that go from one sequence to another while somebody in another stream still reads them: ordered
//! with events, as docs/memory_manager.md says, the reader sees what was there.
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/policy/paper.hpp>

#include <memory>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/random.hpp"
#include "support/spin.cuh"

namespace {

using namespace diffkv;
using config = static_config<paper_policy, k8v4, k4v2, 64>;

}  // namespace

TEST_CASE("device_kv_cache: pages that another stream still reads are handed out behind it",
          "[cache][stream]")
{
  constexpr std::int32_t tokens = 300;
  constexpr std::uint32_t heads = 4;
  test::device_stream readers, writers;
  cudaStream_t const reads  = readers.get();
  cudaStream_t const writes = writers.get();
  cache_options options;
  options.shape     = {2, 1, heads, 1, 64, tokens, 16, 0};
  options.limits    = {0.0f, 0.0f};  // all high
  options.num_pages = 24;            // enough for one of the two sequences
  paper_policy const policy{};
  cuda_async_resource const resource{writes};
  device_kv_cache<config> cache{options, {1, 1, tokens}, policy, resource, writes};

  // X holds small numbers, Y 60000 everywhere.
  test::random random{51};
  std::size_t const size = std::size_t{tokens} * heads * 64;
  test::device_array<float> const x{random.floats(size, -1.0f, 1.0f)};
  test::device_array<float> const y{std::vector<float>(size, 60'000.0f)};
  test::device_array<float> const importances{
    std::vector<float>(std::size_t{tokens} * heads, 1.0f)};
  test::device_array<std::int32_t> const length{std::vector<std::int32_t>{tokens}};
  test::device_array<std::uint32_t> const slots{std::vector<std::uint32_t>{0, 1}};
  test::device_array<std::uint32_t> const refused{1};
  auto const store = [&](std::uint32_t slot, float const* from) {
    batch_ref const one{slots.data() + slot, nullptr, 1};
    prompt_source<float> source;
    source.key = source.value     = packed<float const>(from, heads, 64);
    source.importances            = importances.data();
    source.importance_head_stride = tokens;
    source.max_tokens             = tokens;
    cache.admit(one, length.data(), {refused.data(), nullptr}, writes);
    cache.store_prompt(one, source, {0, 1}, writes);
  };
  page_pool_ref const pool = cache.ref().pool;
  std::size_t const bytes  = std::size_t{pool.num_pages} * pool.page_bytes;
  test::device_array<unsigned char> const read{bytes};
  std::vector<unsigned char> expected(bytes);

  for (int run = 0; run < 50; ++run) {
    CAPTURE(run);
    store(0, x.data());
    writers.wait();
    test::check(cudaMemcpy(expected.data(), pool.base, bytes, cudaMemcpyDeviceToHost), "expected");
    // The reader is slow; X ends and Y takes its pages meanwhile, from the host's point of view.
    test::order(writes, reads);
    test::spin(2'000'000, reads);
    test::check(cudaMemcpyAsync(read.data(), pool.base, bytes, cudaMemcpyDeviceToDevice, reads),
                "the reader");
    test::order(reads, writes);
    cache.release({slots.data(), nullptr, 1}, nullptr, writes);
    store(1, y.data());
    cache.release({slots.data() + 1, nullptr, 1}, nullptr, writes);
    readers.wait();
    REQUIRE(read.to_host() == expected);
    writers.wait();
    REQUIRE(refused.to_host()[0] == 0);
    std::vector<unsigned char> now(bytes);
    test::check(cudaMemcpy(now.data(), pool.base, bytes, cudaMemcpyDeviceToHost), "now");
    REQUIRE(now != expected);  // Y did take pages of X
  }
}
