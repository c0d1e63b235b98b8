// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/claim.hpp>
#include <diffkv/pool/free_ring.hpp>

#include <algorithm>
#include <set>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {
using diffkv::free_ring;
using diffkv::free_ring_ref;
using diffkv::page_id;

page_id page(std::uint32_t p) { return page_id{p}; }

//! One row's claim; no ids if it was refused.
std::vector<page_id> claim(free_ring_ref const& ring, std::uint32_t demand)
{
  std::vector<page_id> ids(demand);
  std::uint8_t granted = 0;
  diffkv::host::claim(ring, {&demand, 1, 1, nullptr, ids.data(), &granted, {}});
  if (granted == 0) { ids.clear(); }
  return ids;
}

diffkv::release_report release(free_ring_ref const& ring, std::vector<page_id> const& ids)
{
  return diffkv::host::release(ring, ids.data(), ids.size());
}

//! The ids between the counters, by value.
std::multiset<page_id> free_ids(free_ring_ref const& ring)
{
  std::multiset<page_id> all;
  for (std::uint64_t i = *ring.head; i < *ring.tail; ++i) { all.insert(ring.cell(i)); }
  return all;
}
}  // namespace

TEST_CASE("free_ring: counters that land on the end lose no page and repeat none", "[pool]")
{
  for (std::uint32_t const capacity : {8u, 7u, 9u, 1u}) {
    CAPTURE(capacity);
    free_ring<> owner{capacity, true};
    free_ring_ref const ring = owner.ref();
    std::uint32_t const most = capacity - capacity / 3;
    for (int round = 0; round < 3; ++round) {
      auto const first = claim(ring, most);
      CHECK(ring.num_free() == capacity - most);
      CHECK(release(ring, first).released == most);
      CHECK(ring.num_free() == capacity);
      auto const rest = claim(ring, capacity - most);  // ends where the cells end
      auto const over = claim(ring, most);             // begins with cell 0
      CHECK(ring.num_free() == 0);
      std::set<page_id> held(rest.begin(), rest.end());
      held.insert(over.begin(), over.end());
      CHECK(held.size() == capacity);
      CHECK(*held.rbegin() == page(capacity - 1));
      release(ring, over);
      release(ring, rest);
    }
    for (int round = 0; round < 3; ++round) {
      auto const all = claim(ring, capacity);
      CHECK(std::set<page_id>(all.begin(), all.end()).size() == capacity);
      CHECK(ring.num_free() == 0);
      release(ring, all);
      CHECK(ring.num_free() == capacity);
    }
  }
}

TEST_CASE("free_ring: a ring that wrapped behaves like a fresh one", "[pool]")
{
  free_ring<> worn{5, true};
  for (int i = 0; i < 1234; ++i) { release(worn.ref(), claim(worn.ref(), 3)); }
  CHECK(worn.ref().num_free() == 5);
  CHECK(*worn.ref().head == 3 * 1234);
  CHECK(claim(worn.ref(), 5).size() == 5);
  CHECK(claim(worn.ref(), 1).empty());
}

TEST_CASE("free_ring: counters beyond 32 bits still name the right cells", "[pool]")
{
  free_ring<> owner{6, true};
  free_ring_ref const ring = owner.ref();
  // As after 2^32 + 2 claims: 2^32 + 2 is a multiple of 6, so cells and counters agree.
  *ring.head = (std::uint64_t{1} << 32) + 2 - 6;
  *ring.tail = *ring.head + 6;
  for (int i = 0; i < 20; ++i) {
    auto const ids = claim(ring, 5);
    CHECK(std::set<page_id>(ids.begin(), ids.end()).size() == 5);
    CHECK(release(ring, ids).released == 5);
  }
  CHECK(*ring.head > (std::uint64_t{1} << 32));
  CHECK(free_ids(ring).size() == 6);
}

TEST_CASE("free_ring: pages are conserved over a million random operations", "[pool]")
{
  std::uint64_t const seed = 1;
  CAPTURE(seed);
  for (std::uint32_t const capacity : {1u, 3u, 7u, 97u, 1000u, 1024u}) {
    CAPTURE(capacity);
    diffkv::test::random random{seed + capacity};
    free_ring<> owner{capacity, true};
    free_ring_ref const ring = owner.ref();
    std::vector<page_id> held;
    std::vector<char> is_held(capacity, 0);
    int wrong            = 0;  // counted, not asserted: a million assertions take minutes
    int const operations = 1'000'000 / 6 + 1;
    for (int operation = 0; operation < operations; ++operation) {
      if (random.one_in(2)) {
        std::uint32_t const demand = random.below(capacity / 4 + 2);
        bool const fits            = demand <= capacity - held.size();
        auto const ids             = claim(ring, demand);
        wrong += ids.size() != (fits ? demand : 0) ? 1 : 0;
        for (page_id const id : ids) {
          auto const p = static_cast<std::uint32_t>(id);
          wrong += p >= capacity || is_held[p] != 0 ? 1 : 0;
          if (p < capacity) { is_held[p] = 1; }
          held.push_back(id);
        }
      } else if (!held.empty()) {
        auto const count = random.below(static_cast<std::uint32_t>(held.size()) + 1);
        std::vector<page_id> back;
        for (std::uint32_t i = 0; i < count; ++i) {
          std::swap(held[random.below(static_cast<std::uint32_t>(held.size()))], held.back());
          back.push_back(held.back());
          held.pop_back();
        }
        auto const report = release(ring, back);
        wrong += report.released != count || report.foreign + report.repeated != 0 ? 1 : 0;
        for (page_id const id : back) { is_held[static_cast<std::uint32_t>(id)] = 0; }
      }
      wrong += ring.num_free() + held.size() != capacity ? 1 : 0;
      if (operation % 997 == 0) {
        std::multiset<page_id> all = free_ids(ring);
        all.insert(held.begin(), held.end());
        bool const each_once = all.size() == capacity && *all.begin() == page(0) &&
                               *all.rbegin() == page(capacity - 1) &&
                               std::adjacent_find(all.begin(), all.end()) == all.end();
        wrong += each_once ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
    CHECK(*ring.head > 10 * std::uint64_t{capacity});  // it did wrap
  }
}

TEST_CASE("free_ring: a page that is given back twice is reported and handed out once", "[pool]")
{
  free_ring<> owner{4, true};
  free_ring_ref const ring = owner.ref();
  auto const ids           = claim(ring, 4);
  CHECK(release(ring, {ids[3]}).repeated == 0);
  auto const second = release(ring, {ids[3]});
  CHECK(second.released == 0);
  CHECK(second.repeated == 1);
  CHECK(ring.num_free() == 1);
  CHECK(claim(ring, 2).empty());
  CHECK(claim(ring, 1) == std::vector<page_id>{ids[3]});

  auto const twice_in_one = release(ring, {ids[0], ids[1], ids[0]});
  CHECK(twice_in_one.released == 2);
  CHECK(twice_in_one.repeated == 1);
  CHECK(ring.num_free() == 2);
}

TEST_CASE("free_ring: ids that are no page are skipped and reported", "[pool]")
{
  for (std::uint32_t const capacity : {8u, 31u, 32u, 33u}) {  // the record of held pages has words
    CAPTURE(capacity);
    free_ring<> owner{capacity, true};
    free_ring_ref const ring = owner.ref();
    auto const held          = claim(ring, 2);
    for (std::uint32_t const id : {0xFFFF'FFFFu, capacity, capacity + 1, 0x7FFF'FFFFu, 64u}) {
      CAPTURE(id);
      auto const report = release(ring, {page(id)});
      CHECK(report.foreign == 1);
      CHECK(report.released + report.repeated == 0);
    }
    CHECK(ring.num_free() == capacity - 2);
    auto const mixed = release(ring, {held[0], diffkv::no_page, held[1], held[0]});
    CHECK(mixed.released == 2);
    CHECK(mixed.foreign == 1);
    CHECK(mixed.repeated == 1);
    auto const all = claim(ring, capacity);
    CHECK(std::set<page_id>(all.begin(), all.end()).size() == capacity);
    CHECK(*std::max_element(all.begin(), all.end()) == page(capacity - 1));
  }
}

TEST_CASE("free_ring: a fresh ring whose pages were never claimed takes none back", "[pool]")
{
  free_ring<> owner{5, true};
  auto const report = release(owner.ref(), {page(0), page(4)});
  CHECK(report.repeated == 2);
  CHECK(owner.ref().num_free() == 5);
}

TEST_CASE("free_ring: an unchecked ring keeps no record and still hands out each page once",
          "[pool]")
{
  free_ring<> owner{10, false};
  CHECK_FALSE(owner.ref().is_checked());
  for (int i = 0; i < 100; ++i) {
    auto const ids = claim(owner.ref(), 7);
    CHECK(std::set<page_id>(ids.begin(), ids.end()).size() == 7);
    CHECK(release(owner.ref(), ids).released == 7);
  }
}

TEST_CASE("free_ring: a capacity of no page, or of more than ids can name, is refused", "[pool]")
{
  CHECK_THROWS_AS(free_ring<>(0), diffkv::invalid_argument);
  CHECK_THROWS_WITH(free_ring<>(0xFFFF'FFFFu), diffkv::test::contains("capacity"));
  CHECK_NOTHROW(free_ring<>(1));
}
