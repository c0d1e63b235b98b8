// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Admission and release of slots on the device leave what their host twins leave: ring, page table and
//! state, byte by byte.
#include <diffkv/compaction/admit.cuh>
#include <diffkv/compaction/release.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <algorithm>
#include <cstring>  // memcmp
#include <memory>   // unique_ptr

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace {

using namespace diffkv;

any_policy some_policy()
{
  any_policy policy;
  policy.kind = policy_kind::artifact;  // its prompt queries are not all of them
  return policy;
}

//! A cache on the host and its copy on the device.
class twin_caches {
 public:
  explicit twin_caches(test::host_cache_parts const& parts, bool checked = true)
    : host_{parts}, back_{parts}, device_{host_.ref(), parts.limits.size()}
  {
    cache_ref cache = host_.ref();
    device_ref_     = device_.ref();
    if (!checked) { cache.ring.held = device_ref_.ring.held = nullptr; }
    context_ = std::make_unique<host::context>(cache);
  }
  [[nodiscard]] host::context const& context() const { return *context_; }
  [[nodiscard]] cache_ref const& host() const { return context_->cache; }
  [[nodiscard]] cache_ref const& device() const { return device_ref_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  void wait() const { stream_.wait(); }
  void upload() { device_.upload(host_.ref()); }
  void shuffle_pages(test::random& random)
  {
    host_.shuffle_pages(random);
    upload();
  }
  //! Whether both have the same bytes everywhere.
  [[nodiscard]] bool agree()
  {
    stream_.wait();
    device_.download(back_.ref());
    bool same = true;
    test::detail::for_each_array(
      host_.ref(), back_.ref(),
      [&](void* x, void* y, std::size_t bytes) { same = same && std::memcmp(x, y, bytes) == 0; });
    return same;
  }
  //! Admits on the device; the refused ones.
  std::vector<std::uint32_t> admit_on_device(std::vector<std::uint32_t> const& slots,
                                             std::vector<std::int32_t> const& lengths,
                                             std::uint32_t const* count = nullptr)
  {
    auto const capacity = static_cast<std::uint32_t>(slots.size());
    test::device_array<std::uint32_t> const s{slots};
    test::device_array<std::int32_t> const n{lengths};
    test::device_array<std::uint32_t> const refused{slots.size()};
    test::device_array<std::uint32_t> const num_refused{1};
    test::device_array<std::byte> const workspace{admit_workspace_bytes(capacity)};
    admit(device_ref_, {s.data(), count, capacity}, n.data(), some_policy(), workspace.data(),
          workspace.size(), {num_refused.data(), refused.data()}, stream());
    wait();
    auto all = refused.to_host();
    all.resize(num_refused.to_host()[0]);
    return all;
  }
  std::vector<std::uint32_t> admit_on_host(std::vector<std::uint32_t> const& slots,
                                           std::vector<std::int32_t> const& lengths)
  {
    std::vector<host::admission> batch;
    for (std::size_t i = 0; i < slots.size(); ++i) { batch.push_back({slots[i], lengths[i]}); }
    std::vector<std::uint32_t> refused(slots.size());
    std::uint32_t count = 0;
    host::admit(context(), batch.data(), static_cast<std::uint32_t>(batch.size()), some_policy(),
                {&count, refused.data()});
    refused.resize(count);
    return refused;
  }
  release_report release_on_device(std::vector<std::uint32_t> const& slots)
  {
    auto const capacity = static_cast<std::uint32_t>(slots.size());
    test::device_array<std::uint32_t> const s{slots};
    test::device_array<release_report> const report{1};
    test::device_array<std::byte> const workspace{
      release_slots_workspace_bytes(device_ref_.shape, capacity)};
    release_slots(device_ref_, {s.data(), nullptr, capacity}, workspace.data(), workspace.size(),
                  report.data(), stream());
    wait();
    return report.to_host()[0];
  }

 private:
  test::host_cache host_, back_;
  test::device_cache device_;
  cache_ref device_ref_{};
  std::unique_ptr<host::context> context_;
  test::device_stream stream_;
};

bool same(release_report const& a, release_report const& b)
{
  return a.released == b.released && a.foreign == b.foreign && a.repeated == b.repeated;
}

test::host_cache_parts small_cache()
{
  test::host_cache_parts parts;
  parts.shape     = {6, 3, 2, 1, 64, 90, 16, 4};
  parts.tiers     = test::short_tiers(k8v4::spec, 4, k4v2::spec, 8, 64);
  parts.num_pages = 250;
  return parts;
}

//! As after a prompt and some steps: rows hold some of their pages at the right end, give others back,
//! and have tokens, candidates and layers.
void live(twin_caches& caches, std::uint32_t slot, test::random& random)
{
  cache_ref const& cache  = caches.host();
  std::size_t const first = cache.shape.row(slot, 0, 0);
  for (std::size_t r = first; r < first + cache.shape.rows_per_slot(); ++r) {
    row_state& state          = cache.state.rows[r];
    std::uint32_t const total = state.pages.high;
    std::uint32_t const keep  = random.below(total + 1);
    for (std::uint32_t p = keep; p < total; ++p) {
      host::release(cache.ring, &cache.table.entry(r, tier::high, p), 1);
      cache.table.entry(r, tier::high, p) = no_page;
    }
    std::vector<page_id> kept;
    for (std::uint32_t p = 0; p < keep; ++p) {
      kept.push_back(cache.table.entry(r, tier::high, p));
      cache.table.entry(r, tier::high, p) = no_page;
    }
    std::uint32_t const low = random.below(keep + 1);
    state.pages             = {keep - low, low};
    for (std::uint32_t p = 0; p < keep; ++p) {
      bool const high = p < keep - low;
      cache.table.entry(r, high ? tier::high : tier::low, high ? p : p - (keep - low)) = kept[p];
    }
    state.tokens      = {state.pages.high * 4, state.pages.low * 8};
    state.append_slot = random.below(9);
    for (std::uint32_t c = 0; c < cache.state.candidates_per_tier; ++c) {
      cache.state.candidates_of(r, tier::low)[c] = {random.between(0, 50), random.below(9), 0.5f};
    }
  }
  ++cache.layer(slot, 1).num_tokens;
}

}  // namespace

TEST_CASE("admit and release_slots: random lives of slots leave the same bytes on host and device",
          "[compaction]")
{
  std::uint64_t const seed = 21;
  CAPTURE(seed);
  test::random random{seed};
  for (bool const checked : {true, false}) {
    test::host_cache_parts parts = small_cache();
    parts.num_pages              = 130;  // fewer than the longest prompt needs
    twin_caches caches{parts, checked};
    caches.shuffle_pages(random);
    std::vector<bool> used(6, false);
    int refusals = 0;
    for (int round = 0; round < 300; ++round) {
      CAPTURE(checked, round);
      std::vector<std::uint32_t> slots{0, 1, 2, 3, 4, 5};
      test::shuffle(slots.data(), 6, random);
      std::vector<std::uint32_t> chosen;
      std::vector<std::int32_t> lengths;
      if (random.one_in(2)) {
        for (std::uint32_t const s : slots) {
          if (used[s] || random.one_in(3)) { continue; }
          chosen.push_back(s);
          lengths.push_back(random.between(0, random.one_in(3) ? 90 : 20));
        }
        auto const refused = caches.admit_on_host(chosen, lengths);
        REQUIRE(caches.admit_on_device(chosen, lengths) == refused);
        REQUIRE(caches.agree());
        refusals += static_cast<int>(refused.size());
        for (std::uint32_t i = 0; i < chosen.size(); ++i) {
          if (std::count(refused.begin(), refused.end(), i) > 0) { continue; }
          used[chosen[i]] =
            caches.host().state.rows[caches.host().shape.row(chosen[i], 0, 0)].pages.sum() > 0;
          live(caches, chosen[i], random);
        }
        caches.upload();
      } else {
        for (std::uint32_t const s : slots) {
          if (random.one_in(2)) { chosen.push_back(s); }  // free ones are no error
        }
        auto const expected = host::release_slots(caches.context(), chosen.data(),
                                                  static_cast<std::uint32_t>(chosen.size()));
        REQUIRE(same(caches.release_on_device(chosen), expected));
        REQUIRE(caches.agree());
        for (std::uint32_t const s : chosen) { used[s] = false; }
      }
      REQUIRE(test::page_trouble(caches.host()) == "");
    }
    CHECK(refusals > 20);
    CHECK(*caches.host().ring.head > 1300);  // the ring went round
  }
}

TEST_CASE("admit and release_slots: the shape of a large model", "[compaction]")
{
  test::host_cache_parts parts = small_cache();
  parts.shape                  = {8, 32, 8, 1, 64, 200, 16, 4};
  parts.num_pages              = 60'000;
  twin_caches caches{parts};
  test::random random{3};
  caches.shuffle_pages(random);
  std::vector<std::uint32_t> const slots{5, 0, 7, 2, 1, 3};
  std::vector<std::int32_t> const lengths{100, 200, 199, 0, 33, 150};
  auto const refused = caches.admit_on_host(slots, lengths);
  CHECK(refused == std::vector<std::uint32_t>{});
  CHECK(caches.admit_on_device(slots, lengths) == refused);
  REQUIRE(caches.agree());
  for (std::uint32_t const s : slots) { live(caches, s, random); }
  caches.upload();
  auto const expected = host::release_slots(caches.context(), slots.data(), 6);
  CHECK(same(caches.release_on_device(slots), expected));
  CHECK(caches.agree());
  CHECK(caches.host().ring.num_free() == parts.num_pages);
}

TEST_CASE("admit: later prompts that still fit go on, none of the refused is touched",
          "[compaction][small]")
{
  twin_caches caches{small_cache()};  // 250 pages, 6 rows a slot
  std::vector<std::uint32_t> const slots{3, 1, 5, 0};
  std::vector<std::int32_t> const lengths{60, 80, 40, 9};  // 16, 21, 11, 4 pages a row
  auto const refused = caches.admit_on_host(slots, lengths);
  CHECK(refused == std::vector<std::uint32_t>{2});
  CHECK(caches.admit_on_device(slots, lengths) == refused);
  CHECK(caches.agree());
}

TEST_CASE("admit: prompts that cannot be admitted at all are refused", "[compaction][small]")
{
  twin_caches caches{small_cache()};
  caches.admit_on_host({2}, {10});
  CHECK(caches.admit_on_device({2}, {10}).empty());
  // In use; too long; no slot; less than nothing. Then one that is right.
  CHECK(caches.admit_on_device({2, 3, 6, 4, 0}, {10, 91, 10, -1, 17}) ==
        std::vector<std::uint32_t>{0, 1, 2, 3});
  caches.admit_on_host({0}, {17});
  CHECK(caches.agree());
}

TEST_CASE("release_slots: damaged entries are reported and go nowhere", "[compaction][small]")
{
  twin_caches caches{small_cache()};
  caches.admit_on_host({0, 1}, {30, 30});
  cache_ref const& cache                    = caches.host();
  std::size_t const row                     = cache.shape.row(1, 2, 0);
  page_id const free                        = cache.ring.cell(*cache.ring.head);
  cache.table.entry(row, tier::high, 1)     = page_id{250};
  cache.table.entry(row, tier::high, 3)     = no_page;
  cache.table.entry(row + 1, tier::high, 0) = free;
  caches.upload();
  std::vector<std::uint32_t> const slots{1, 0};
  auto const expected = host::release_slots(caches.context(), slots.data(), 2);
  CHECK(expected.foreign == 2);
  CHECK(expected.repeated == 1);
  CHECK(same(caches.release_on_device(slots), expected));
  CHECK(caches.agree());
  // All of it is free now; once more is no error.
  CHECK(caches.release_on_device(slots).released == 0);
  CHECK(caches.agree());
}

TEST_CASE("release_slots: a page that two rows hold goes back once", "[compaction][small]")
{
  twin_caches caches{small_cache()};
  caches.admit_on_host({0}, {30});
  cache_ref const& cache = caches.host();
  cache.table.entry(cache.shape.row(0, 2, 1), tier::high, 0) =
    cache.table.entry(cache.shape.row(0, 0, 0), tier::high, 2);
  caches.upload();
  std::uint32_t const slot = 0;
  auto const expected      = host::release_slots(caches.context(), &slot, 1);
  auto const report        = caches.release_on_device({slot});
  CHECK(same(report, expected));
  CHECK(report.repeated == 1);
}

TEST_CASE("admit and release_slots: empty batches succeed and change nothing",
          "[compaction][small]")
{
  twin_caches caches{small_cache()};
  CHECK(caches.admit_on_device({}, {}).empty());
  CHECK(caches.release_on_device({}).released == 0);
  std::uint32_t const none = 0;
  test::device_array<std::uint32_t> const count{&none, 1};
  CHECK(caches.admit_on_device({1, 2}, {10, 10}, count.data()).empty());
  CHECK(caches.agree());
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("admit and release_slots: one graph serves other batches", "[compaction]")
{
  std::uint64_t const seed = 31;
  CAPTURE(seed);
  test::random random{seed};
  twin_caches caches{small_cache()};
  test::device_array<std::uint32_t> const slots{4};
  test::device_array<std::uint32_t> const count{1};
  test::device_array<std::int32_t> const lengths{4};
  test::device_array<std::byte> const admit_space{admit_workspace_bytes(4)};
  test::device_array<std::byte> const release_space{
    release_slots_workspace_bytes(caches.device().shape, 4)};
  batch_ref const batch{slots.data(), count.data(), 4};
  auto const capture = [&](auto&& launch) {
    cudaGraph_t graph      = nullptr;
    cudaGraphExec_t replay = nullptr;
    test::check(cudaStreamBeginCapture(caches.stream(), cudaStreamCaptureModeThreadLocal),
                "capture");
    launch();
    test::check(cudaStreamEndCapture(caches.stream(), &graph), "capture");
    test::check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    return replay;
  };
  cudaGraphExec_t const admission = capture([&] {
    admit(caches.device(), batch, lengths.data(), some_policy(), admit_space.data(),
          admit_space.size(), {}, caches.stream());
  });
  cudaGraphExec_t const end       = capture([&] {
    release_slots(caches.device(), batch, release_space.data(), release_space.size(), nullptr,
                        caches.stream());
  });
  for (int round = 0; round < 100; ++round) {
    std::vector<std::uint32_t> chosen{0, 1, 2, 3, 4, 5};
    test::shuffle(chosen.data(), 6, random);
    chosen.resize(4);
    std::uint32_t const n = random.below(5);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 4; ++i) { tokens.push_back(random.between(0, 90)); }
    test::check(cudaMemcpy(slots.data(), chosen.data(), 16, cudaMemcpyHostToDevice), "slots");
    test::check(cudaMemcpy(lengths.data(), tokens.data(), 16, cudaMemcpyHostToDevice), "lengths");
    test::check(cudaMemcpy(count.data(), &n, 4, cudaMemcpyHostToDevice), "count");
    test::check(cudaGraphLaunch(admission, caches.stream()), "replay");
    chosen.resize(n);
    tokens.resize(n);
    caches.admit_on_host(chosen, tokens);
    REQUIRE(caches.agree());
    test::check(cudaGraphLaunch(end, caches.stream()), "replay");
    host::release_slots(caches.context(), chosen.data(), n);
    REQUIRE(caches.agree());
  }
  cudaGraphExecDestroy(admission);
  cudaGraphExecDestroy(end);
}

TEST_CASE("admit and release_slots: wrong arguments are refused before anything is launched",
          "[compaction][small]")
{
  twin_caches caches{small_cache()};
  test::device_array<std::uint32_t> const slots{2};
  test::device_array<std::int32_t> const lengths{2};
  test::device_array<std::byte> const space{4096};
  batch_ref const batch{slots.data(), nullptr, 2};
  auto const start = [&](batch_ref const& b, std::int32_t const* n, std::size_t bytes) {
    admit(caches.device(), b, n, some_policy(), space.data(), bytes, {}, caches.stream());
  };
  auto const end = [&](batch_ref const& b, std::size_t bytes) {
    release_slots(caches.device(), b, space.data(), bytes, nullptr, caches.stream());
  };
  CHECK_THROWS_WITH(start({nullptr, nullptr, 2}, lengths.data(), 4096), test::contains("slots"));
  CHECK_THROWS_WITH(start(batch, nullptr, 4096), test::contains("num_tokens"));
  CHECK_THROWS_WITH(start(batch, lengths.data(), admit_workspace_bytes(2) - 1),
                    test::contains("workspace"));
  CHECK_THROWS_WITH(end({nullptr, nullptr, 2}, 4096), test::contains("slots"));
  CHECK_THROWS_WITH(end(batch, 7), test::contains("workspace"));
  CHECK(caches.agree());
}
