// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Running out of pages is data: who is refused waits unchanged and is served later.
#include <cstring>

#include "support/cache_life.hpp"
#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::test::request;
using paper_cache = diffkv::kv_cache<diffkv::dynamic_config<diffkv::paper_policy>>;
using turns       = diffkv::test::turns<paper_cache>;

//! One layer and head, pages of 16 high tokens, everything stays high: a page every 16 steps.
diffkv::cache_options page_by_page(std::uint32_t num_pages)
{
  diffkv::cache_options o = diffkv::test::small_options();
  o.shape.num_slots       = 3;
  o.shape.num_layers      = 1;
  o.shape.num_heads       = 1;
  o.limits                = {0.0f, 0.0f};
  o.num_pages             = num_pages;
  o.has_low               = false;
  return o;
}

bool same_bytes(std::vector<float> const& a, std::vector<float> const& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::byte> pages_of(paper_cache const& cache, std::uint32_t slot)
{
  std::vector<std::byte> bytes;
  diffkv::row_view const row = cache.context().row(slot);
  for (std::uint32_t p = 0; p < row.state().pages.high; ++p) {
    std::byte const* page = row.page(diffkv::tier::high, p).bytes;
    bytes.insert(bytes.end(), page, page + cache.options().page_bytes);
  }
  return bytes;
}
}  // namespace

TEST_CASE("kv_cache: the last free page goes to the first in line, the others are named", "[cache]")
{
  paper_cache cache{page_by_page(5)};
  std::vector<turns> requests;
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    // Slot 1 has room for one more token, 0 and 2 stand before a new page.
    requests.emplace_back(cache, request{slot, slot == 1 ? 15 : 16, 0, slot + 1});
    REQUIRE(requests.back().start());
  }
  REQUIRE(cache.num_free_pages() == 2);
  std::uint32_t const first = 0;
  REQUIRE(requests[0].step());  // 0 takes one
  REQUIRE(cache.num_free_pages() == 1);

  // In the order of the call: 2 gets the last page, then 1 needs none.
  std::vector<std::uint32_t> const order{2, 1, 0};
  std::vector<std::uint32_t> refused(3, 99);
  std::uint32_t count = 99;
  CHECK(cache.step(order.data(), 3, {&count, refused.data()}) == 0);
  CHECK(count == 0);
  for (std::uint32_t const slot : order) { requests[slot].decode(); }
  CHECK(cache.num_free_pages() == 0);

  // Now 1 needs a page and there is none; 0 and 2 go on.
  auto const before = pages_of(cache, 1);
  auto const state  = cache.context().cache.layer(1, 0);
  for (int i = 0; i < 10; ++i) {
    CHECK(cache.step(order.data(), 3, {&count, refused.data()}) == 1);
    CHECK(refused[0] == 1);  // its place in the call
    CHECK(cache.usage(1).num_tokens == 16);
    CHECK(cache.context().cache.state.rows[1].append_slot == diffkv::no_slot);
    CHECK(pages_of(cache, 1) == before);
    CHECK(cache.context().cache.layer(1, 0).queries.last_query == state.queries.last_query);
    requests[0].decode();
    requests[2].decode();
    CHECK(diffkv::test::page_trouble(cache.context().cache).empty());
  }
  // A token for a sequence that was refused goes nowhere.
  std::vector<float> const x(3 * 64, 7.0f);
  std::uint32_t const waiting = 1;
  cache.append(&waiting, 1, 0, diffkv::packed(x.data(), 1, 64), diffkv::packed(x.data(), 1, 64),
               diffkv::packed(x.data(), 3, 64));
  CHECK(pages_of(cache, 1) == before);
  cache.release(&first, 1);
  CHECK(requests[1].step());
  CHECK(cache.usage(1).num_tokens == 17);
}

TEST_CASE("kv_cache: a sequence that had to wait computes what it computes without waiting",
          "[cache]")
{
  int waits = 0;
  for (int const k : {0, 1, 4}) {
    CAPTURE(k);
    diffkv::cache_options options = diffkv::test::small_options();
    options.shape.num_slots       = 3;
    options.shape.score_every     = k;
    request const asked[3]{{0, 20, 60, 1}, {1, 17, 20, 2}, {2, 30, 35, 3}};
    std::vector<std::vector<float>> alone;
    for (request const& r : asked) {
      paper_cache cache{options};
      alone.push_back(diffkv::test::run(cache, r).outputs);
    }
    options.num_pages = 28;
    paper_cache cache{options};
    std::vector<turns> requests;
    for (request const& r : asked) { requests.emplace_back(cache, r); }
    for (int round = 0; round < 1000; ++round) {
      std::vector<std::uint32_t> going;
      for (std::uint32_t slot = 0; slot < 3; ++slot) {
        diffkv::test::life const& l = requests[slot].so_far();
        if (l.new_tokens == asked[slot].new_tokens) { continue; }
        if (l.admitted || requests[slot].start()) { going.push_back(slot); }
        waits += requests[slot].so_far().admitted ? 0 : 1;
      }
      if (going.empty()) { break; }
      std::vector<std::uint32_t> refused(going.size());
      std::uint32_t count = 0;
      auto const asking   = static_cast<std::uint32_t>(going.size());
      cache.step(going.data(), asking, {&count, refused.data()});
      waits += static_cast<int>(count);
      if (count == asking) {  // nobody goes on: the last one gives up its pages and begins anew
        cache.release(&going.back(), 1);
        requests[going.back()] = turns{cache, asked[going.back()]};
        continue;
      }
      for (std::uint32_t i = 0, next = 0; i < asking; ++i) {
        if (next < count && refused[next] == i) {
          ++next;
          continue;
        }
        requests[going[i]].decode();
        if (requests[going[i]].so_far().new_tokens == asked[going[i]].new_tokens) {
          cache.release(&going[i], 1);
        }
      }
      REQUIRE(diffkv::test::page_trouble(cache.context().cache).empty());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(same_bytes(requests[i].so_far().outputs, alone[i]));
    }
    CHECK(cache.num_free_pages() == 28);
  }
  CHECK(waits > 50);
}
