// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Claim and release of pages for many rows at once. Items are page ids that go out and come back.
#include "bench_inputs.hpp"

#include <diffkv/host/claim.hpp>

#include <cstring>
#include <numeric>

namespace {

using namespace diffkv;

//! A ring, and rows of one sequence each that ask for 0, 1 or 2 pages.
struct claims {
  explicit claims(std::uint32_t rows, bool checked = false)
    : ring{2 * rows + 1, checked}, demand(rows), offsets(rows), granted(rows)
  {
    std::mt19937 random{7};
    for (auto& pages : demand) { pages = static_cast<std::uint32_t>(random() % 3); }
    ids.resize(std::accumulate(demand.begin(), demand.end(), std::size_t{0}));
  }
  void claim()
  {
    claim_request request;
    request.demand            = demand.data();
    request.num_sequences     = static_cast<std::uint32_t>(demand.size());
    request.rows_per_sequence = 1;
    request.offsets           = offsets.data();
    request.ids               = ids.data();
    request.granted           = granted.data();
    host::claim(ring.ref(), request);
  }
  release_report release() { return host::release(ring.ref(), ids.data(), ids.size()); }

  free_ring<> ring;
  std::vector<std::uint32_t> demand;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint8_t> granted;
  std::vector<page_id> ids;
};

//! Several rounds, so that the ring wraps: no page twice, none lost.
bool ring_is_right(std::uint32_t rows)
{
  claims work{rows, true};
  std::uint64_t const capacity = work.ring.ref().capacity;
  for (int round = 0; round < 5; ++round) {
    work.claim();
    if (work.ring.ref().num_free() + work.ids.size() != capacity) { return false; }
    release_report const report = work.release();  // a checked ring finds an id that is there twice
    if (report.released != work.ids.size() || report.repeated + report.foreign != 0) {
      return false;
    }
  }
  return work.ring.ref().num_free() == capacity;
}

void claim_and_release(benchmark::State& state)
{
  auto const rows = static_cast<std::uint32_t>(state.range(0));
  if (!ring_is_right(rows)) { return state.SkipWithError("pages are not conserved"); }
  claims work{rows};
  for (auto _ : state) {
    work.claim();
    work.release();
    benchmark::DoNotOptimize(work.ids.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, work.ids.size());
}
BENCHMARK(claim_and_release)->ArgNames({"rows"})->Arg(90)->Arg(1440)->Arg(23040);

//! Baseline: as many ids copied out and back.
void copy_ids(benchmark::State& state)
{
  claims work{static_cast<std::uint32_t>(state.range(0))};
  std::vector<page_id> out(work.ids.size());
  for (auto _ : state) {
    std::memcpy(out.data(), work.ids.data(), out.size() * sizeof(page_id));
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
    std::memcpy(work.ids.data(), out.data(), out.size() * sizeof(page_id));
    benchmark::DoNotOptimize(work.ids.data());
    benchmark::ClobberMemory();
  }
  bench::report_items(state, out.size());
}
BENCHMARK(copy_ids)->ArgNames({"rows"})->Arg(90)->Arg(1440)->Arg(23040);

}  // namespace
