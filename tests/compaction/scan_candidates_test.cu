// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Candidates found on the device equal those of the host twin, for every policy and score lag.
#include <diffkv/compaction/scan_candidates.cuh>
#include <diffkv/host/scores.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <cstring>  // memcmp
#include <limits>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace {

using namespace diffkv;
using test::check;

void set_harmonic(paper_policy&, harmonic_ref) {}
void set_harmonic(artifact_policy&, harmonic_ref) {}
void set_harmonic(static_policy&, harmonic_ref) {}
void set_harmonic(relative_policy& p, harmonic_ref h) { p.harmonic = h; }
void set_harmonic(any_policy& p, harmonic_ref h)
{
  p.kind              = policy_kind::relative;
  p.relative.harmonic = h;
}

//! Rows of any tokens in any order: some without scores, ties, NaN and infinite scores.
template <class Config>
void same_candidates(std::int32_t score_every, std::uint64_t seed)
{
  test::random r{seed};
  test::host_cache_parts parts;
  parts.shape     = {5, 3, 2, 2, Config::layouts::head_dim, 700, 64, score_every};
  parts.tiers     = Config::layouts::pages;
  parts.num_pages = 5 * 3 * 2 * parts.tiers.most_pages(700);
  test::host_cache host{parts};
  host.shuffle_pages(r);
  cache_ref const& cache = host.ref();
  for (std::uint32_t slot = 0; slot < parts.shape.num_slots; ++slot) {
    for (std::uint32_t layer = 0; layer < parts.shape.num_layers; ++layer) {
      std::int32_t const n      = slot == 0 ? 1 : r.between(1, 700);
      std::int32_t const prompt = r.between(0, n);
      cache.layer(slot, layer)  = {n, {prompt, r.between(0, prompt), r.between(prompt, n)}};
      for (std::uint32_t head = 0; head < parts.shape.num_heads; ++head) {
        std::size_t const row = parts.shape.row(slot, layer, head);
        auto const high       = r.below(static_cast<std::uint32_t>(n) + 1);
        auto const low =
          parts.tiers.has_low ? r.below(static_cast<std::uint32_t>(n) - high + 1) : 0u;
        test::reserve_row(host.context(), row, {high, low});
        std::vector<std::int32_t> positions(static_cast<std::size_t>(n));
        for (std::int32_t i = 0; i < n; ++i) { positions[static_cast<std::size_t>(i)] = i; }
        test::shuffle(positions.data(), static_cast<std::uint32_t>(n), r);
        row_view const view = host.context().row(row);
        for (std::uint32_t i = 0; i < high + low; ++i) {
          tier const t         = i < high ? tier::high : tier::low;
          slot_index const s   = i < high ? i : i - high;
          page_view const page = view.page_of(t, s);
          float score          = r.one_in(3) ? 0.25f : r.uniform(0.0f, 1.0f);
          if (r.one_in(30)) { score = std::numeric_limits<float>::quiet_NaN(); }
          if (r.one_in(30)) { score = std::numeric_limits<float>::infinity(); }
          page.set_score(view.token_in_page(t, s), score);
          page.set_position(view.token_in_page(t, s), positions[i]);
        }
      }
    }
  }
  std::size_t const count =
    parts.shape.num_rows() * num_stored_tiers * parts.shape.candidates_per_tier();
  for (std::size_t i = 0; i < count; ++i) { cache.state.candidates[i] = {7, 7, -1.0f}; }
  test::device_cache device{cache, 1};

  harmonic_table const harmonic{701};
  test::device_array<double> const sums{harmonic.ref().sums, 702};
  typename Config::policy_type host_policy{};
  typename Config::policy_type device_policy{};
  set_harmonic(host_policy, harmonic.ref());
  set_harmonic(device_policy, {sums.data(), 701});

  // Two of three layers, three of five slots; all others stay as they are.
  std::vector<std::uint32_t> const slots{4, 0, 2, 9};
  layer_range const layers{1, 2};
  for (int s = 0; s < 3; ++s) {
    for (std::uint32_t l = 1; l < 3; ++l) {
      host::scan_candidates(host.context(), slots[static_cast<std::size_t>(s)], l, host_policy);
    }
  }
  std::uint32_t const used = 3;
  test::device_array<std::uint32_t> const device_slots{slots};
  test::device_array<std::uint32_t> const device_count{&used, 1};
  test::device_stream stream;
  scan_candidates<Config>(device.ref(), {device_slots.data(), device_count.data(), 4}, layers,
                          device_policy, stream.get());
  stream.wait();
  std::vector<candidate> got(count);
  check(cudaMemcpy(got.data(), device.ref().state.candidates, count * sizeof(candidate),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  CHECK(std::memcmp(got.data(), cache.state.candidates, count * sizeof(candidate)) == 0);
}

}  // namespace

TEST_CASE("scan_candidates: one scan, small enough for compute-sanitizer", "[compaction][small]")
{
  same_candidates<static_config<paper_policy, k8v4, k4v2, 128>>(2, 1);
}

TEMPLATE_TEST_CASE("scan_candidates: device and host name the same tokens", "[compaction]",
                   paper_policy, artifact_policy, relative_policy, static_policy, any_policy)
{
  for (std::int32_t score_every : {0, 1, 2, 4}) {
    for (std::uint64_t seed : {1u, 2u, 3u}) {
      CAPTURE(score_every, seed);
      same_candidates<static_config<TestType, k8v4, k4v2, 128>>(score_every, seed);
      same_candidates<static_config<TestType, k16v16, void, 64>>(score_every, seed);
    }
  }
}

TEST_CASE("scan_candidates: layers that the cache has not are refused", "[compaction]")
{
  using config = static_config<paper_policy, k8v4, k4v2, 128>;
  test::host_cache_parts parts;
  parts.shape.head_dim   = 128;
  parts.shape.max_tokens = 10;
  parts.tiers            = config::layouts::pages;
  parts.num_pages        = 2;
  test::host_cache cache{parts};
  CHECK_THROWS_WITH(scan_candidates<config>(cache.ref(), {}, {0, 2}, {}, nullptr),
                    test::contains("layers"));
  scan_candidates<config>(cache.ref(), {}, {0, 1}, {}, nullptr);  // an empty batch launches nothing
}
