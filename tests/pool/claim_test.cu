// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The claim on the device answers what its host twin answers, bit by bit.
#include <set>

#include "support/catch.hpp"
#include "support/device_ring.cuh"
#include "support/random.hpp"

namespace {

using namespace diffkv;
using test::claim_case;
using test::twin_rings;

//! Demand as a generation step has it: few rows want one or two pages.
claim_case few_pages(std::uint32_t sequences, std::uint32_t rows, test::random& random)
{
  claim_case c{sequences, rows, std::vector<std::uint32_t>(std::size_t{sequences} * rows)};
  for (auto& d : c.demand) { d = random.one_in(8) ? random.below(3) : 0; }
  return c;
}
claim_case pattern(std::uint32_t sequences, std::uint32_t rows, std::uint32_t factor,
                   std::uint32_t modulus)
{
  claim_case c{sequences, rows, std::vector<std::uint32_t>(std::size_t{sequences} * rows)};
  for (std::uint32_t i = 0; i < c.demand.size(); ++i) { c.demand[i] = i * factor % modulus; }
  return c;
}

//! Runs a case on both rings; what differs.
std::string difference(twin_rings& rings, claim_case const& c, test::device_claim const& on_device)
{
  std::uint64_t const pages = std::min<std::uint64_t>(c.total(), rings.host().capacity);
  auto const expected       = test::claim_on_host(rings.host(), c, pages);
  on_device.forget(rings.stream().get());
  on_device(rings.device(), rings.stream().get());
  rings.stream().wait();
  auto const got = on_device.answer();
  if (got.offsets != expected.offsets) { return "offsets"; }
  if (got.granted != expected.granted) { return "granted"; }
  if (got.num_refused != expected.num_refused) { return "number of refused"; }
  if (got.refused != expected.refused) { return "refused"; }
  if (got.ids != expected.ids) { return "ids"; }
  return rings.difference();
}
std::string difference(twin_rings& rings, claim_case const& c)
{
  std::uint64_t const pages = std::min<std::uint64_t>(c.total(), rings.host().capacity);
  return difference(rings, c, test::device_claim{c, pages});
}

}  // namespace

TEST_CASE("claim on the device: a ring that is exactly exhausted serves no one more",
          "[pool][small]")
{
  twin_rings rings{8, true};
  CHECK(difference(rings, {3, 1, {3, 5, 0}}) == "");
  CHECK(rings.host().num_free() == 0);
  CHECK(difference(rings, {3, 1, {0, 0, 0}}) == "");
  CHECK(difference(rings, {1, 1, {1}}) == "");
  CHECK(*rings.host().head == 8);
}

TEST_CASE("claim on the device: a sequence whose rows do not all fit gets nothing", "[pool][small]")
{
  twin_rings rings{8, true};
  CHECK(difference(rings, {1, 1, {3}}) == "");
  CHECK(difference(rings, {1, 3, {2, 2, 2}}) == "");
  CHECK(rings.host().num_free() == 5);
  CHECK(difference(rings, {1, 3, {2, 2, 1}}) == "");
  CHECK(rings.host().num_free() == 0);
}

TEST_CASE("claim on the device: later sequences that still fit go on", "[pool][small]")
{
  twin_rings rings{10, true};
  CHECK(difference(rings, {5, 1, {4, 9, 6, 1, 0}}) == "");
  rings.reset(10);
  CHECK(difference(rings, {4, 2, {0, 0, 5, 6, 5, 5, 1, 0}}) == "");
}

TEST_CASE("claim on the device: nothing to do succeeds and changes nothing", "[pool][small]")
{
  twin_rings rings{4, true};
  CHECK(difference(rings, {0, 0, {}}) == "");
  CHECK(difference(rings, {0, 5, {}}) == "");
  CHECK(difference(rings, {5, 0, {}}) == "");
  CHECK(difference(rings, {20'000, 0, {}}) == "");
  CHECK(difference(rings, {5, 1, {0, 0, 0, 0, 0}}) == "");
  CHECK(difference(rings, {2, 3, {0, 0, 0, 0, 0, 0}}) == "");
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(rings.host().num_free() == 4);
}

TEST_CASE("claim on the device: answers that nobody wants are not written", "[pool][small]")
{
  twin_rings rings{9, true};
  claim_case const c{3, 2, {1, 1, 4, 4, 2, 3}};
  test::device_claim const on_device{c, 9};
  test::device_array<std::byte> const workspace{claim_workspace_bytes(3, 2)};
  claim_request request;
  request.demand            = on_device.request().demand;
  request.num_sequences     = 3;
  request.rows_per_sequence = 2;
  claim(rings.device(), request, workspace.data(), workspace.size(), rings.stream().get());
  request.demand = c.demand.data();
  host::claim(rings.host(), request);
  CHECK(rings.difference() == "");
  CHECK(rings.host().num_free() == 2);
}

TEST_CASE("claim on the device: offsets are the exclusive sum at every edge of a warp or CTA",
          "[pool]")
{
  for (std::uint32_t const rows : {1u, 31u, 32u, 33u, 255u, 256u, 257u, 1023u, 1024u, 1025u}) {
    CAPTURE(rows);
    claim_case const c = pattern(rows, 1, 1, 3);
    twin_rings rings{static_cast<std::uint32_t>(c.total()) + 5, true};
    test::device_claim const on_device{c, c.total()};
    for (int repeat = 0; repeat < 20; ++repeat) {
      rings.reset(rings.host().capacity);
      REQUIRE(difference(rings, c, on_device) == "");
    }
    CHECK(rings.host().num_free() == 5);
    CHECK(difference(rings, pattern(1, rows, 1, 3)) == "");  // refused, unless it wants little
  }
}

TEST_CASE("claim on the device: many rows are served as on the host", "[pool]")
{
  for (std::uint32_t const rows : {4097u, 65'535u, 65'537u, 1'000'000u}) {
    CAPTURE(rows);
    claim_case const c = pattern(rows, 1, 7, 4);
    twin_rings rings{static_cast<std::uint32_t>(c.total()), true, 1'000'003};
    CHECK(difference(rings, c) == "");
    CHECK(rings.host().num_free() == 0);
    rings.reset(c.total() / 2);
    CHECK(difference(rings, c) == "");
  }
}

TEST_CASE("claim on the device: claims of several CTAs, few enough for compute-sanitizer",
          "[pool][small]")
{
  for (std::uint32_t const rows : {4097u, 65'537u}) {
    CAPTURE(rows);
    claim_case const one_each = pattern(rows, 1, 7, 4);
    claim_case const many     = pattern(3, rows / 3, 7, 4);
    for (claim_case const* c : {&one_each, &many}) {
      twin_rings rings{static_cast<std::uint32_t>(c->total()), true, 1'000'003};
      CHECK(difference(rings, *c) == "");
      rings.reset(c->total() / 2);
      CHECK(difference(rings, *c) == "");
    }
  }
}

TEST_CASE("claim on the device: 2000 claims of 4097 rows are all alike", "[pool]")
{
  claim_case const c = pattern(4097, 1, 7, 4);
  twin_rings rings{static_cast<std::uint32_t>(c.total()) + 1, false, 12'345};
  auto const expected = test::claim_on_host(rings.host(), c, c.total());
  test::device_claim const on_device{c, c.total()};
  cudaStream_t const stream = rings.stream().get();
  std::uint64_t const head  = 12'345;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    on_device.forget(stream);
    test::check(cudaMemcpyAsync(rings.device().head, &head, 8, cudaMemcpyHostToDevice, stream),
                "head");
    on_device(rings.device(), stream);
    rings.stream().wait();
    REQUIRE(on_device.answer() == expected);
  }
}

TEST_CASE("claim on the device: sequences of every shape and rings of every fill", "[pool]")
{
  std::uint64_t const seed = 5;
  CAPTURE(seed);
  test::random random{seed};
  struct shape {
    std::uint32_t sequences, rows;
  };
  for (shape const s : {shape{1, 1},
                        {1, 9},
                        {3, 7},
                        {128, 256},
                        {37, 640},
                        {3907, 256},
                        {33, 5000},
                        {3, 20'000},
                        {1, 100'003},
                        {100'000, 3},
                        {777, 33},
                        {1000, 1025},
                        {8193, 1},
                        {2, 8192},
                        {1, 1'000'000}}) {
    claim_case c = few_pages(s.sequences, s.rows, random);
    if (c.total() == 0) { c.demand.back() = 3; }
    std::uint64_t const total = c.total();
    twin_rings rings{static_cast<std::uint32_t>(total + total / 3 + 8), s.rows % 2 == 0,
                     (std::uint64_t{1} << 33) + total};
    test::device_claim const on_device{c, total};
    for (std::uint64_t const room :
         {total + 8, total, total - 1, total / 2, total / 7, total / 100, std::uint64_t{0}}) {
      CAPTURE(s.sequences, s.rows, total, room);
      rings.reset(room);
      REQUIRE(difference(rings, c, on_device) == "");
    }
  }
}

TEST_CASE("claim on the device: first fit is exact whatever the sequences want", "[pool]")
{
  std::uint64_t const seed = 6;
  CAPTURE(seed);
  test::random random{seed};
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    auto const sequences =
      static_cast<std::uint32_t>(random.between(1, round % 3 == 0 ? 3000 : 70));
    auto const rows = static_cast<std::uint32_t>(random.between(1, round % 5 == 0 ? 300 : 5));
    claim_case c{sequences, rows, std::vector<std::uint32_t>(std::size_t{sequences} * rows)};
    int const kind = random.between(0, 3);
    for (std::size_t i = 0; i < c.demand.size(); ++i) {
      auto const falling = static_cast<std::uint32_t>((c.demand.size() - i) / (rows * 3) + 1);
      c.demand[i]        = kind == 0   ? random.below(5)
                           : kind == 1 ? (random.one_in(3) ? random.below(400) : 0)
                           : kind == 2 ? falling
                                       : (random.one_in(50) ? 0xFFFF'FFFFu - random.below(2) : 1);
    }
    std::uint32_t const capacity = 1 + random.below(3000);
    twin_rings rings{capacity, random.one_in(2), random.next() >> 20};
    rings.reset(random.below(capacity + 1));
    REQUIRE(difference(rings, c) == "");
  }
}

TEST_CASE("claim on the device: demand whose sum exceeds 32 bits is refused, not wrapped",
          "[pool][small]")
{
  twin_rings rings{8, true};
  CHECK(difference(rings, {1, 2, {0xFFFF'FFFFu, 3}}) == "");
  claim_case split{2, 30'000, std::vector<std::uint32_t>(60'000, 0xFFFF'FFFFu)};
  std::fill(split.demand.begin() + 30'000, split.demand.end(), 0u);
  split.demand[59'999] = 8;
  CHECK(difference(rings, split) == "");
  CHECK(rings.host().num_free() == 0);
}

TEST_CASE("claim on the device: a captured claim serves other demand in every replay", "[pool]")
{
  std::uint64_t const seed = 8;
  CAPTURE(seed);
  test::random random{seed};
  claim_case c = few_pages(64, 64, random);
  twin_rings rings{2000, true};
  test::device_claim const on_device{c, 2000};
  cudaStream_t const stream = rings.stream().get();
  cudaGraph_t graph         = nullptr;
  cudaGraphExec_t replay    = nullptr;
  test::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  on_device.forget(stream);
  on_device(rings.device(), stream);
  test::check(cudaStreamEndCapture(stream, &graph), "capture");
  test::check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  for (int step = 0; step < 100; ++step) {
    c = few_pages(64, 64, random);
    if (step % 10 == 0) { rings.reset(random.below(2001)); }
    on_device.set_demand(c.demand, stream);
    test::check(cudaGraphLaunch(replay, stream), "replay");
    auto const expected = test::claim_on_host(rings.host(), c, 2000);
    rings.stream().wait();
    REQUIRE(on_device.answer() == expected);
    REQUIRE(rings.difference() == "");
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

TEST_CASE("claim on the device: wrong arguments are refused before anything is launched",
          "[pool][small]")
{
  twin_rings rings{8, true};
  claim_case const c{2, 2, {1, 1, 1, 1}};
  test::device_claim const on_device{c, 8};
  test::device_array<std::byte> const workspace{claim_workspace_bytes(2, 2) + 16};
  auto const run = [&](free_ring_ref const& ring, claim_request const& request, void* at,
                       std::size_t bytes) {
    claim(ring, request, at, bytes, rings.stream().get());
  };
  std::size_t const enough = claim_workspace_bytes(2, 2);
  auto const request       = on_device.request();
  auto no_demand           = request;
  no_demand.demand         = nullptr;
  CHECK_THROWS_WITH(run({}, request, workspace.data(), enough), test::contains("ring"));
  CHECK_THROWS_WITH(run(rings.device(), no_demand, workspace.data(), enough),
                    test::contains("demand"));
  CHECK_THROWS_WITH(run(rings.device(), request, workspace.data(), enough - 1),
                    test::contains("workspace"));
  CHECK_THROWS_WITH(run(rings.device(), request, workspace.data() + 4, enough),
                    test::contains("workspace"));
  CHECK_THROWS_WITH(run(rings.device(), request, nullptr, enough), test::contains("workspace"));
  CHECK(rings.difference() == "");
}
