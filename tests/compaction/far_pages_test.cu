// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Pages that lie around the 2 GiB and the 4 GiB of a pool: a whole life of sequences goes through them
//! as through the pages of a small pool on the host, and no other page is touched.
#include <diffkv/compaction/admit.cuh>
#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/compaction/release.cuh>
#include <diffkv/compaction/scan_candidates.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/scores.hpp>
#include <diffkv/host/step.hpp>
#include <diffkv/policy/paper.hpp>

#include <algorithm>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace {

using namespace diffkv;
using config = static_config<paper_policy, k8v4, k4v2, 64, conditioning::none, std::uint32_t{1792}>;
constexpr std::uint32_t page_bytes   = config::layouts::page_bytes;
constexpr std::uint32_t num_pages    = 48;  // of the host's pool
constexpr std::uint64_t gib          = std::uint64_t{1} << 30;
constexpr std::uint64_t pool_bytes   = 46 * gib / 10;
constexpr std::uint32_t num_in_pool  = static_cast<std::uint32_t>(pool_bytes / page_bytes);
constexpr std::int32_t prompt_tokens = 70;
constexpr std::int32_t new_tokens    = 40;

//! What each page of the host's pool is called in the large one: the pages around the boundaries, the
//! first and the last.
std::vector<page_id> far_pages()
{
  std::vector<page_id> ids;
  auto const around = [&](std::uint64_t boundary) {
    auto const middle = static_cast<std::uint32_t>(boundary / page_bytes);
    for (std::uint32_t i = 0; i < 16; ++i) { ids.push_back(page_id{middle - 8 + i}); }
  };
  around(2 * gib);
  around(4 * gib);
  for (std::uint32_t i = 0; i < 8; ++i) {
    ids.push_back(page_id{i});
    ids.push_back(page_id{num_in_pool - 1 - i});
  }
  return ids;
}

//! Counts words of the pool that are not as they were filled, in pages that nobody owns.
__global__ void count_strays(std::byte const* pool, page_id const* owned, std::uint32_t num_owned,
                             unsigned long long* strays)
{
  std::uint32_t const page = blockIdx.x;
  for (std::uint32_t i = 0; i < num_owned; ++i) {
    if (owned[i] == page_id{page}) { return; }
  }
  auto const* const words =
    reinterpret_cast<std::uint32_t const*>(pool + std::size_t{page} * page_bytes);
  for (std::uint32_t i = threadIdx.x; i < page_bytes / 4; i += blockDim.x) {
    if (words[i] != 0xFFFF'FFFFu) { atomicAdd(strays, 1ull); }
  }
}

//! Names of pages in a table or ring, one for another.
template <class From, class To>
void rename(page_id* ids, std::size_t count, From const& from, To const& to)
{
  for (std::size_t i = 0; i < count; ++i) {
    auto const at = std::find(from.begin(), from.end(), ids[i]);
    if (at != from.end()) { ids[i] = to[static_cast<std::size_t>(at - from.begin())]; }
  }
}

}  // namespace

TEST_CASE("large pools: pages around 2 GiB and 4 GiB do not alias on the device", "[compaction]")
{
  static_assert(num_pages == 16 + 16 + 16);
  std::size_t free_bytes = 0, all_bytes = 0;
  test::check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  if (free_bytes < pool_bytes + gib) { DIFFKV_SKIP("6 GiB of free device memory are needed"); }
  test::host_cache_parts parts;
  parts.shape     = {2, 1, 2, 1, 64, prompt_tokens + new_tokens, 8, 1};
  parts.tiers     = config::layouts::pages;
  parts.num_pages = num_pages;
  parts.limits    = {{1.0f, 0.1f}};
  test::host_cache host{parts};
  test::random random{17};
  host.shuffle_pages(random);
  cache_ref unchecked = host.ref();
  unchecked.ring.held = nullptr;  // that record is of ids below the ring's capacity
  host::context const ctx{unchecked};

  test::device_cache const small{host.ref(), 1};
  test::device_array<std::byte> const pool{std::size_t{num_in_pool} * page_bytes};
  std::vector<page_id> const far = far_pages();
  std::vector<page_id> near;
  for (std::uint32_t i = 0; i < num_pages; ++i) { near.push_back(page_id{i}); }
  cache_ref cache = small.ref();
  cache.pool      = {pool.data(), num_in_pool, page_bytes};
  cache.ring.held = nullptr;
  std::vector<page_id> ring(host.ref().ring.ids, host.ref().ring.ids + num_pages);
  rename(ring.data(), ring.size(), near, far);
  test::check(
    cudaMemcpy(cache.ring.ids, ring.data(), ring.size() * sizeof(page_id), cudaMemcpyHostToDevice),
    "ring");

  auto const tokens = static_cast<std::size_t>(prompt_tokens);
  auto const x      = random.floats(2 * tokens * 2 * 64, -2.0f, 2.0f);
  std::vector<float> importances(2 * 2 * tokens);
  for (float& i : importances) { i = random.uniform(0.0f, 2.0f) / prompt_tokens; }
  test::device_array<float> const device_x{x};
  test::device_array<float> const device_importances{importances};
  std::vector<std::uint32_t> const slots{0, 1};
  test::device_array<std::uint32_t> const device_slots{slots};
  test::device_array<std::int32_t> const lengths{std::vector<std::int32_t>(2, prompt_tokens)};
  test::device_array<std::int64_t> const first_tokens{std::vector<std::int64_t>{0, prompt_tokens}};
  test::device_array<std::uint32_t> const refused{1};
  batch_ref const batch{device_slots.data(), nullptr, 2};
  paper_policy const policy{};
  prompt_source<float> source;
  source.key = source.value     = packed<float const>(device_x.data(), 2, 64);
  source.importances            = device_importances.data();
  source.importance_head_stride = 2 * prompt_tokens;
  source.first_tokens           = first_tokens.data();
  source.max_tokens             = prompt_tokens;
  test::device_array<std::byte> const workspace{1u << 20};
  test::device_stream stream;
  cudaStream_t const s = stream.get();
  auto const with      = [&](auto&& operation) { operation(workspace.data(), workspace.size()); };

  // On the device.
  with([&](void* w, std::size_t n) {
    admit(cache, batch, lengths.data(), policy, w, n, {refused.data(), nullptr}, s);
    store_prompt<config>(cache, batch, source, {0, 1}, policy, w, n, s);
    for (int i = 0; i < new_tokens; ++i) {
      auto const v = packed<float const>(device_x.data() + i * 128, 2, 64);
      scan_candidates<config>(cache, batch, {0, 1}, policy, s);
      step<config>(cache, batch, policy, w, n, {refused.data(), nullptr}, s);
      append<config>(cache, batch, 0, v, v, v, s);
    }
  });
  stream.wait();
  CHECK(refused.to_host()[0] == 0);

  // By the host twin.
  host::admission const admissions[] = {{0, prompt_tokens}, {1, prompt_tokens}};
  REQUIRE(host::admit(ctx, admissions, 2, policy) == 0);
  for (std::uint32_t slot : slots) {
    std::vector<float> own;
    for (std::uint32_t h = 0; h < 2; ++h) {
      auto const from = importances.begin() + (h * 2 + slot) * prompt_tokens;
      own.insert(own.end(), from, from + prompt_tokens);
    }
    auto const v = packed<float const>(x.data() + slot * tokens * 128, 2, 64);
    host::store_prompt(ctx, slot, 0, policy, v, v, own.data());
  }
  for (int i = 0; i < new_tokens; ++i) {
    auto const v = packed<float const>(x.data() + i * 128, 2, 64);
    for (std::uint32_t slot : slots) { host::scan_candidates(ctx, slot, 0, policy); }
    REQUIRE(host::step(ctx, slots.data(), 2, policy) == 0);
    host::append(ctx, slots.data(), 2, 0, v, v, v);
  }
  CHECK(host.ref().state.rows[0].tokens.low > 0);

  test::host_cache after{parts};
  auto const compare = [&] {
    small.download(after.ref());
    std::copy_n(host.ref().ring.held, (num_pages + 31) / 32, after.ref().ring.held);
    cache_ref const& a = after.ref();
    rename(a.ring.ids, num_pages, far, near);
    rename(a.table.entries, parts.shape.num_rows() * a.table.row_entries, far, near);
    for (std::uint32_t i = 0; i < num_pages; ++i) {
      test::check(cudaMemcpy(a.pool.page(near[i]), cache.pool.page(far[i]), page_bytes,
                             cudaMemcpyDeviceToHost),
                  "page");
    }
    CHECK(test::difference_of(host.ref(), a) == "");
  };
  compare();

  test::device_array<page_id> const owned{far};
  test::device_array<unsigned long long> const strays{std::vector<unsigned long long>{0}};
  count_strays<<<num_in_pool, 64, 0, s>>>(pool.data(), owned.data(), num_pages, strays.data());
  stream.wait();
  CHECK(strays.to_host()[0] == 0);

  with([&](void* w, std::size_t n) { release_slots(cache, batch, w, n, nullptr, s); });
  stream.wait();
  static_cast<void>(host::release_slots(ctx, slots.data(), 2));
  compare();
}
