// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Release on the device, the first filling of a ring, and long runs of both operations.
#include <algorithm>

#include "support/catch.hpp"
#include "support/device_ring.cuh"
#include "support/random.hpp"

namespace {

using namespace diffkv;
using test::twin_rings;

page_id page(std::uint32_t p) { return page_id{p}; }

bool same(release_report const& a, release_report const& b)
{
  return a.released == b.released && a.foreign == b.foreign && a.repeated == b.repeated;
}

//! Releases on the device.
release_report release_on_device(twin_rings& rings, std::vector<page_id> const& ids)
{
  test::device_array<page_id> const list{ids};
  test::device_array<release_report> const report{1};
  test::device_array<std::byte> const workspace{release_workspace_bytes(ids.size())};
  release(rings.device(), {list.data(), nullptr, ids.size()}, workspace.data(), workspace.size(),
          report.data(), rings.stream().get());
  rings.stream().wait();
  return report.to_host()[0];
}

//! Releases on both rings; what differs.
std::string difference(twin_rings& rings, std::vector<page_id> const& ids)
{
  release_report const expected = host::release(rings.host(), ids.data(), ids.size());
  if (!same(release_on_device(rings, ids), expected)) { return "report"; }
  return rings.difference();
}

//! One row's claim on both rings; no ids if it was refused.
std::vector<page_id> claim_both(twin_rings& rings, std::uint32_t demand)
{
  test::claim_case const c{1, 1, {demand}};
  auto const a = test::claim_on_host(rings.host(), c, demand);
  test::device_claim const on_device{c, demand};
  on_device(rings.device(), rings.stream().get());
  rings.stream().wait();
  REQUIRE(on_device.answer() == a);
  return a.granted[0] == 1 ? a.ids : std::vector<page_id>{};
}

}  // namespace

TEST_CASE("init_free_ring: a ring in device memory starts with all pages free", "[pool][small]")
{
  test::device_stream const stream;
  for (std::uint32_t const capacity : {1u, 31u, 32u, 33u, 255u, 256u, 257u, 1'000'003u}) {
    CAPTURE(capacity);
    for (bool const checked : {false, true}) {
      auto owner =
        make_free_ring(capacity, checked, cuda_async_resource{stream.get()}, stream.get());
      free_ring_ref const ring = owner.ref();
      std::vector<page_id> ids(capacity);
      std::vector<std::uint32_t> held(checked ? (capacity + 31) / 32 : 0, 1u);
      std::uint64_t counters[2] = {5, 5};
      stream.wait();
      test::check(cudaMemcpy(ids.data(), ring.ids, ids.size() * 4, cudaMemcpyDeviceToHost), "ids");
      test::check(cudaMemcpy(counters, ring.head, 8, cudaMemcpyDeviceToHost), "head");
      test::check(cudaMemcpy(counters + 1, ring.tail, 8, cudaMemcpyDeviceToHost), "tail");
      CHECK(counters[0] == 0);
      CHECK(counters[1] == capacity);
      CHECK(ring.is_checked() == checked);
      if (checked) {
        test::check(cudaMemcpy(held.data(), ring.held, held.size() * 4, cudaMemcpyDeviceToHost),
                    "held");
        CHECK(std::count(held.begin(), held.end(), 0u) == static_cast<std::ptrdiff_t>(held.size()));
      }
      bool in_order = true;
      for (std::uint32_t i = 0; i < capacity; ++i) { in_order = in_order && ids[i] == page(i); }
      CHECK(in_order);
    }
  }
  CHECK_THROWS_WITH(init_free_ring({}, stream.get()), test::contains("ring"));
  CHECK_THROWS_WITH(make_free_ring(0, true, cuda_async_resource{stream.get()}, stream.get()),
                    test::contains("capacity"));
}

TEST_CASE("release on the device: counters that land on the end lose no page and repeat none",
          "[pool][small]")
{
  twin_rings rings{8, true};
  auto const five = claim_both(rings, 5);
  CHECK(rings.host().num_free() == 3);
  CHECK(difference(rings, five) == "");
  auto const three = claim_both(rings, 3);  // ends where the cells end
  auto const one   = claim_both(rings, 1);  // cell 0
  CHECK(rings.host().num_free() == 4);
  CHECK(difference(rings, three) == "");
  CHECK(difference(rings, one) == "");
  for (int round = 0; round < 3; ++round) {
    auto const all = claim_both(rings, 8);
    CHECK(all.size() == 8);
    CHECK(rings.host().num_free() == 0);
    CHECK(difference(rings, all) == "");
    CHECK(rings.host().num_free() == 8);
  }
}

TEST_CASE("release on the device: a page that is given back twice is reported and handed out once",
          "[pool][small]")
{
  twin_rings rings{4, true};
  auto const ids = claim_both(rings, 4);
  CHECK(difference(rings, {ids[3]}) == "");
  CHECK(difference(rings, {ids[3]}) == "");
  CHECK(rings.host().num_free() == 1);
  CHECK(claim_both(rings, 2).empty());
  CHECK(claim_both(rings, 1) == std::vector<page_id>{ids[3]});

  // Twice in one call: counts are exact, each page goes back once.
  auto const report = release_on_device(rings, {ids[0], ids[1], ids[0]});
  CHECK(report.released == 2);
  CHECK(report.repeated == 1);
}

TEST_CASE("release on the device: ids that are no page are skipped and reported", "[pool][small]")
{
  for (std::uint32_t const capacity : {8u, 31u, 32u, 33u}) {
    CAPTURE(capacity);
    twin_rings rings{capacity, true};
    auto const held = claim_both(rings, 2);
    for (std::uint32_t const id : {0xFFFF'FFFFu, capacity, capacity + 1, 0x7FFF'FFFFu, 64u}) {
      CHECK(difference(rings, {page(id)}) == "");
    }
    CHECK(rings.host().num_free() == capacity - 2);
    CHECK(difference(rings, {no_page, held[0], no_page, page(capacity), held[1]}) == "");
    CHECK(difference(rings, {page(0)}) == "");  // free already
    CHECK(claim_both(rings, capacity).size() == capacity);
  }
}

TEST_CASE("release on the device: nothing to give back changes nothing", "[pool][small]")
{
  twin_rings rings{5, true};
  CHECK(difference(rings, {}) == "");
  release(rings.device(), {}, nullptr, 0, nullptr, rings.stream().get());
  CHECK(rings.difference() == "");
}

TEST_CASE("release on the device: the number of pages may lie in device memory", "[pool][small]")
{
  twin_rings rings{5000, true, 4321};
  auto const ids = claim_both(rings, 5000);
  test::device_array<page_id> const list{ids};
  test::device_array<std::byte> const workspace{release_workspace_bytes(5000)};
  std::size_t from = 0;
  for (std::uint64_t const count : {0u, 1u, 31u, 2048u, 2049u}) {
    CAPTURE(count);
    test::device_array<std::uint64_t> const on_device{&count, 1};
    release(rings.device(), {list.data() + from, on_device.data(), 5000 - from}, workspace.data(),
            workspace.size(), nullptr, rings.stream().get());
    host::release(rings.host(), ids.data() + from, count);
    CHECK(rings.difference() == "");
    from += count;
  }
}

TEST_CASE("release on the device: long lists go back in order", "[pool]")
{
  for (bool const checked : {false, true}) {
    for (std::uint32_t const pages : {31u, 32u, 33u, 2047u, 2048u, 2049u, 100'000u, 1'000'000u}) {
      CAPTURE(checked, pages);
      twin_rings rings{pages + 3, checked, 1'000'000'007};
      auto const ids = claim_both(rings, pages);
      CHECK(difference(rings, ids) == "");
    }
  }
}

TEST_CASE("release on the device: wrong arguments are refused before anything is launched",
          "[pool][small]")
{
  twin_rings rings{8, true};
  test::device_array<page_id> const list{8};
  test::device_array<std::byte> const workspace{release_workspace_bytes(8)};
  cudaStream_t const stream = rings.stream().get();
  std::size_t const enough  = workspace.size();
  page_list const eight{list.data(), nullptr, 8};
  CHECK_THROWS_WITH(release({}, eight, workspace.data(), enough, nullptr, stream),
                    test::contains("ring"));
  CHECK_THROWS_WITH(
    release(rings.device(), {nullptr, nullptr, 8}, workspace.data(), enough, nullptr, stream),
    test::contains("list"));
  CHECK_THROWS_WITH(release(rings.device(), eight, workspace.data(), enough - 1, nullptr, stream),
                    test::contains("workspace"));
  CHECK(rings.difference() == "");
}

namespace {

//! Operations that run on the device without waiting, and what the host twin answered.
class script {
 public:
  explicit script(twin_rings& rings) : rings_{rings} {}

  void claim(std::uint32_t sequences, std::uint32_t rows, std::vector<std::uint32_t> const& demand)
  {
    operation o{};
    o.sequences = sequences;
    o.rows      = rows;
    o.input     = inputs_.size();
    o.offsets   = offsets_.size();
    o.flags     = granted_.size();
    o.ids       = ids_.size();
    inputs_.insert(inputs_.end(), demand.begin(), demand.end());
    std::uint64_t const room = rings_.host().num_free();
    test::claim_case const c{sequences, rows, demand};
    auto const a = test::claim_on_host(rings_.host(), c, std::min(room, c.total()));
    offsets_.insert(offsets_.end(), a.offsets.begin(), a.offsets.end());
    granted_.insert(granted_.end(), a.granted.begin(), a.granted.end());
    refused_.insert(refused_.end(), a.refused.begin(), a.refused.end());
    ids_.insert(ids_.end(), a.ids.begin(), a.ids.end());
    counts_.push_back(a.num_refused);
    operations_.push_back(o);
    for (page_id const id : a.ids) {
      if (id != no_page) { held_.push_back(id); }
    }
  }
  //! Gives back some of the held pages, and now and then a page that is not held, or no page.
  void release(std::uint32_t count, test::random& random, bool with_mistakes)
  {
    std::vector<page_id> ids;
    for (std::uint32_t i = 0; i < count && !held_.empty(); ++i) {
      std::swap(held_[random.below(static_cast<std::uint32_t>(held_.size()))], held_.back());
      if (with_mistakes && random.one_in(10)) { ids.push_back(no_page); }
      ids.push_back(held_.back());
      held_.pop_back();
    }
    if (with_mistakes && random.one_in(3) && rings_.host().num_free() > 0) {
      ids.push_back(rings_.host().cell(*rings_.host().head));  // free already
    }
    operation o{};
    o.is_release = true;
    o.input      = inputs_.size();
    o.rows       = static_cast<std::uint32_t>(ids.size());
    o.report     = reports_.size();
    for (page_id const id : ids) { inputs_.push_back(static_cast<std::uint32_t>(id)); }
    reports_.push_back(host::release(rings_.host(), ids.data(), ids.size()));
    operations_.push_back(o);
  }
  //! Runs all of it on the device and compares; what differs.
  [[nodiscard]] std::string run()
  {
    test::device_array<std::uint32_t> const inputs{inputs_};
    test::device_array<std::uint64_t> const offsets{offsets_.size()};
    test::device_array<std::uint8_t> const granted{granted_.size()};
    test::device_array<std::uint32_t> const refused{refused_.size()};
    test::device_array<page_id> const ids{ids_.size()};
    test::device_array<std::uint32_t> const counts{counts_.size()};
    test::device_array<release_report> const reports{reports_.size()};
    test::device_array<std::byte> const workspace{1 << 20};
    std::size_t claims = 0;
    for (operation const& o : operations_) {
      if (o.is_release) {
        diffkv::release(
          rings_.device(),
          {reinterpret_cast<page_id const*>(inputs.data() + o.input), nullptr, o.rows},
          workspace.data(), workspace.size(), reports.data() + o.report, rings_.stream().get());
      } else {
        diffkv::claim(rings_.device(),
                      {inputs.data() + o.input,
                       o.sequences,
                       o.rows,
                       offsets.data() + o.offsets,
                       ids.data() + o.ids,
                       granted.data() + o.flags,
                       {counts.data() + claims++, refused.data() + o.flags}},
                      workspace.data(), workspace.size(), rings_.stream().get());
      }
    }
    rings_.stream().wait();
    if (offsets.to_host() != offsets_) { return "offsets"; }
    if (granted.to_host() != granted_) { return "granted"; }
    if (refused.to_host() != refused_) { return "refused"; }
    if (ids.to_host() != ids_) { return "ids"; }
    if (counts.to_host() != counts_) { return "number of refused"; }
    auto const got = reports.to_host();
    if (!std::equal(got.begin(), got.end(), reports_.begin(), same)) { return "reports"; }
    std::string const ring = rings_.difference();
    operations_.clear();
    inputs_.clear();
    offsets_.clear();
    granted_.clear();
    refused_.clear();
    ids_.clear();
    counts_.clear();
    reports_.clear();
    return ring;
  }
  [[nodiscard]] std::size_t num_held() const { return held_.size(); }

 private:
  struct operation {
    bool is_release;
    std::uint32_t sequences, rows;
    std::size_t input, offsets, flags, ids, report;
  };
  twin_rings& rings_;
  std::vector<operation> operations_;
  std::vector<page_id> held_;
  std::vector<std::uint32_t> inputs_, refused_, counts_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint8_t> granted_;
  std::vector<page_id> ids_;
  std::vector<release_report> reports_;
};

//! @return number of refusals met
void run_randomly(std::uint32_t capacity, bool checked, int operations, std::uint64_t seed)
{
  CAPTURE(capacity, checked, seed);
  test::random random{seed};
  twin_rings rings{capacity, checked};
  script todo{rings};
  for (int i = 0; i < operations; ++i) {
    if (random.one_in(2)) {
      auto const sequences = static_cast<std::uint32_t>(random.between(1, 8));
      auto const rows      = static_cast<std::uint32_t>(random.between(1, 4));
      std::vector<std::uint32_t> demand(std::size_t{sequences} * rows);
      for (auto& d : demand) { d = random.below(random.one_in(20) ? capacity / 2 + 2 : 5); }
      todo.claim(sequences, rows, demand);
    } else {
      todo.release(random.below(static_cast<std::uint32_t>(todo.num_held()) + 1), random, checked);
    }
    if (i % 1000 == 999) {
      CAPTURE(i);
      REQUIRE(todo.run() == "");
      REQUIRE(rings.host().num_free() + todo.num_held() == capacity);
    }
  }
  REQUIRE(todo.run() == "");
  CHECK(*rings.host().head > 10 * std::uint64_t{capacity});  // it did wrap
}

}  // namespace

TEST_CASE("ring on the device: a hundred thousand random operations conserve the pages", "[pool]")
{
  run_randomly(1000, true, 40'000, 1);
  run_randomly(97, true, 20'000, 2);
  run_randomly(7, false, 20'000, 3);
  run_randomly(1, true, 5'000, 4);
  run_randomly(1024, false, 20'000, 5);
}

TEST_CASE("ring on the device: a short random run conserves the pages", "[pool][small]")
{
  run_randomly(50, true, 1000, 7);
}
