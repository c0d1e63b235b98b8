// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/claim.hpp>

#include <set>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {
using diffkv::free_ring;
using diffkv::page_id;

//! A claim and everything it answers; cells that the claim must not write start at a mark.
struct answer {
  static constexpr page_id untouched{0xAAAA'AAAAu};
  std::vector<std::uint64_t> offsets;
  std::vector<page_id> ids;
  std::vector<std::uint8_t> granted;
  std::vector<std::uint32_t> refused;
};

answer claim(diffkv::free_ring_ref const& ring, std::vector<std::uint32_t> const& demand,
             std::uint32_t rows_per_sequence)
{
  std::size_t total = 0;
  for (std::uint32_t const d : demand) { total += d; }
  auto const sequences = static_cast<std::uint32_t>(demand.size()) / rows_per_sequence;
  answer a{std::vector<std::uint64_t>(demand.size(), 77),
           std::vector<page_id>(total, answer::untouched), std::vector<std::uint8_t>(sequences, 9),
           std::vector<std::uint32_t>(sequences, 99)};
  std::uint32_t count = 55;
  diffkv::host::claim(ring, {demand.data(),
                             sequences,
                             rows_per_sequence,
                             a.offsets.data(),
                             a.ids.data(),
                             a.granted.data(),
                             {&count, a.refused.data()}});
  a.refused.resize(count);
  return a;
}
}  // namespace

TEST_CASE("claim: a ring that is exactly exhausted serves no one more", "[host][pool]")
{
  free_ring<> owner{8, true};
  auto const all = claim(owner.ref(), {3, 5, 0}, 1);
  CHECK(all.refused.empty());
  CHECK(std::set<page_id>(all.ids.begin(), all.ids.end()).size() == 8);
  CHECK(all.offsets == std::vector<std::uint64_t>{0, 3, 8});
  CHECK(owner.ref().num_free() == 0);

  CHECK(claim(owner.ref(), {0, 0, 0}, 1).refused.empty());

  auto const more = claim(owner.ref(), {1}, 1);
  CHECK(more.refused == std::vector<std::uint32_t>{0});
  CHECK(more.granted == std::vector<std::uint8_t>{0});
  CHECK(more.ids[0] == answer::untouched);
  CHECK(*owner.ref().head == 8);
}

TEST_CASE("claim: a sequence whose rows do not all fit gets nothing", "[host][pool]")
{
  free_ring<> owner{8, true};
  auto const held         = claim(owner.ref(), {3}, 1);
  auto const short_of_one = claim(owner.ref(), {2, 2, 2}, 3);
  CHECK(short_of_one.refused == std::vector<std::uint32_t>{0});
  CHECK(owner.ref().num_free() == 5);
  for (page_id const id : short_of_one.ids) { CHECK(id == answer::untouched); }

  auto const fits = claim(owner.ref(), {2, 2, 1}, 3);
  CHECK(fits.refused.empty());
  std::set<page_id> both(fits.ids.begin(), fits.ids.end());
  both.insert(held.ids.begin(), held.ids.end());
  CHECK(both.size() == 8);
}

TEST_CASE("claim: later sequences that still fit go on", "[host][pool]")
{
  free_ring<> owner{10, true};
  auto const a = claim(owner.ref(), {4, 9, 6, 1, 0}, 1);  // 4 fits, 9 not, 6 fits exactly, 1 not
  CHECK(a.granted == std::vector<std::uint8_t>{1, 0, 1, 0, 1});
  CHECK(a.refused == std::vector<std::uint32_t>{1, 3});
  CHECK(a.offsets == std::vector<std::uint64_t>{0, 4, 4, 10, 10});
  CHECK(owner.ref().num_free() == 0);
}

TEST_CASE("claim: nothing to do changes nothing", "[host][pool]")
{
  free_ring<> owner{4, true};
  diffkv::host::claim(owner.ref(), {});
  CHECK(claim(owner.ref(), {}, 1).refused.empty());
  CHECK(claim(owner.ref(), {0, 0, 0, 0, 0}, 1).refused.empty());
  CHECK(claim(owner.ref(), {0, 0, 0, 0, 0, 0}, 3).granted == std::vector<std::uint8_t>{1, 1});
  CHECK(diffkv::host::release(owner.ref(), nullptr, 0).released == 0);
  std::uint32_t const demand = 2;
  diffkv::host::claim(owner.ref(), {&demand, 1, 1, nullptr, nullptr, nullptr, {}});  // no answers
  CHECK(owner.ref().num_free() == 2);
}

TEST_CASE("claim: offsets are the exclusive sum of the demand, whatever the number of rows",
          "[host][pool]")
{
  for (std::uint32_t const rows :
       {1u, 31u, 32u, 33u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 65'537u}) {
    CAPTURE(rows);
    std::vector<std::uint32_t> demand(rows);
    std::vector<std::uint64_t> sums(rows);
    std::uint64_t total = 0;
    for (std::uint32_t r = 0; r < rows; ++r) {
      demand[r] = r % 3;
      sums[r]   = total;
      total += demand[r];
    }
    auto const capacity = static_cast<std::uint32_t>(total) + 5;
    free_ring<> owner{capacity, true};
    auto const a = claim(owner.ref(), demand, 1);
    CHECK(a.offsets == sums);
    CHECK(std::set<page_id>(a.ids.begin(), a.ids.end()).size() == total);
    CHECK(owner.ref().num_free() == 5);
  }
}

TEST_CASE("claim: demand whose sum exceeds 32 bits is refused, not wrapped", "[host][pool]")
{
  free_ring<> owner{8, true};
  std::vector<std::uint32_t> const demand{0xFFFF'FFFFu, 3};  // wraps to 2
  std::uint8_t granted = 7;
  diffkv::host::claim(owner.ref(), {demand.data(), 1, 2, nullptr, nullptr, &granted, {}});
  CHECK(granted == 0);
  CHECK(owner.ref().num_free() == 8);
}

TEST_CASE("claim: random batches are served by exact first fit in sequence order", "[host][pool]")
{
  std::uint64_t const seed = 3;
  CAPTURE(seed);
  diffkv::test::random random{seed};
  free_ring<> owner{1000, true};
  diffkv::free_ring_ref const ring = owner.ref();
  std::set<page_id> held;
  for (int step = 0; step < 10'000; ++step) {
    if (random.one_in(2)) {
      auto const rows = static_cast<std::uint32_t>(random.between(1, 4));
      std::vector<std::uint32_t> demand(rows * static_cast<std::size_t>(random.between(1, 8)));
      for (auto& d : demand) { d = random.below(random.one_in(8) ? 200 : 5); }
      std::uint64_t const before = ring.num_free();
      auto const a               = claim(ring, demand, rows);
      std::uint64_t left         = before;
      std::size_t next           = 0;
      bool right                 = true;
      for (std::size_t s = 0; s < a.granted.size(); ++s) {
        std::uint64_t wanted = 0;
        for (std::uint32_t r = 0; r < rows; ++r) { wanted += demand[s * rows + r]; }
        right = right && (a.granted[s] == 1) == (wanted <= left);
        if (wanted > left) { continue; }
        left -= wanted;
        for (std::uint32_t r = 0; r < rows; ++r) {
          right = right && a.offsets[s * rows + r] == next;
          for (std::uint32_t i = 0; i < demand[s * rows + r]; ++i) {
            right = right && held.insert(a.ids[next++]).second;
          }
        }
      }
      for (; next < a.ids.size(); ++next) { right = right && a.ids[next] == answer::untouched; }
      REQUIRE(right);
      REQUIRE(ring.num_free() == left);
    } else {
      std::vector<page_id> back;
      for (auto it = held.begin(); it != held.end();) {
        bool const goes = random.one_in(3);
        if (goes) { back.push_back(*it); }
        it = goes ? held.erase(it) : std::next(it);
      }
      shuffle(back.data(), static_cast<std::uint32_t>(back.size()), random);
      REQUIRE(diffkv::host::release(ring, back.data(), back.size()).released == back.size());
    }
    REQUIRE(ring.num_free() + held.size() == 1000);
    REQUIRE((held.empty() || static_cast<std::uint32_t>(*held.rbegin()) < 1000));
  }
}
