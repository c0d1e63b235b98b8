// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The rows laid out by hand of tests/host/step_cases_test.cpp, on the device: who leaves is said there,
//! here that the device does the same, byte for byte.
#include <diffkv/compaction/append.cuh>
#include <diffkv/compaction/scan_candidates.cuh>
#include <diffkv/compaction/step.cuh>
#include <diffkv/policy/any_policy.hpp>

#include <cmath>  // nextafter
#include <limits>

#include "support/device_cache.hpp"
#include "support/laid_out_row.hpp"

namespace {

using namespace diffkv;
using row    = test::laid_out_row;
using config = static_config<any_policy, k8v8, k8v8, 64, conditioning::none, std::uint32_t{2304}>;
static_assert(config::layouts::high::tokens_per_page == 16);

any_policy policy_of(policy_kind kind)
{
  any_policy policy;
  policy.kind = kind;
  return policy;
}

//! One step of the same row by both.
void same_step(row::tokens const& high, row::tokens const& low, float leaving, thresholds limits,
               policy_kind kind = policy_kind::paper, std::uint32_t batch = 1)
{
  CAPTURE(high.size(), low.size(), leaving, batch);
  any_policy const policy = policy_of(kind);
  tier_pages const tiers  = config::layouts::pages;
  auto const parts        = row::parts_of(limits, batch, tiers);
  row laid{high, low, leaving, limits, batch, tiers};
  test::device_cache const device{laid.cache->ref(), 1};
  laid.step(policy);

  test::device_stream stream;
  test::device_array<std::uint32_t> const slots{laid.all_slots()};
  test::device_array<float> const x{laid.new_vectors()};
  test::device_array<std::byte> const workspace{step_workspace_bytes(parts.shape, batch)};
  batch_ref const all{slots.data(), nullptr, batch};
  auto const v = packed<float const>(x.data(), 1, parts.shape.head_dim);
  scan_candidates<config>(device.ref(), all, {0, 1}, policy, stream.get());
  step<config>(device.ref(), all, policy, workspace.data(), workspace.size(), {}, stream.get());
  append<config>(device.ref(), all, 0, v, v, v, stream.get());
  stream.wait();
  test::host_cache after{parts};
  device.download(after.ref());
  CHECK(test::difference_of(laid.cache->ref(), after.ref()) == "");
}

thresholds const usual{1.0f, 0.02f};  // at N = 100: 0.01 and 0.0002
row::tokens const start_high{{10, 0.5f}, {11, 0.005f}, {12, 0.3f}};
float const not_a_number = std::numeric_limits<float>::quiet_NaN();
float const infinite     = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("step on the device: each line of the decision table is taken as on the host",
          "[compaction][small]")
{
  same_step(start_high, {{5, 0.001f}}, 0.02f, usual);
  same_step({{10, 0.5f}, {11, 0.0001f}, {12, 0.3f}}, {{5, 0.001f}}, 0.02f, usual);
  same_step(start_high, {{5, 0.001f}, {6, 0.0001f}}, 0.005f, usual);
  same_step(start_high, {{5, 0.001f}, {6, 0.0003f}}, 0.005f, usual);
  same_step(start_high, {{5, 0.00001f}}, 0.00001f, usual);
  same_step({{10, 0.5f}, {11, 0.011f}}, {{5, 0.00001f}}, 0.02f, usual);
  same_step({}, {}, 0.0f, usual);
  auto const artifact = policy_kind::artifact;
  same_step({{10, 0.5f}, {11, 0.0001f}}, {{5, 0.001f}}, 0.5f, usual, artifact);
  same_step({{10, 0.5f}, {11, 0.0001f}}, {{5, 0.00005f}, {6, 0.1f}}, 0.5f, usual, artifact);
  same_step(start_high, {{5, 0.001f}}, 0.5f, usual, artifact);
  same_step({{10, 0.5f}, {11, 0.02f}}, {{5, 0.00001f}}, 0.0f, usual, artifact);
}

TEST_CASE("step on the device: importances on a threshold fall as on the host", "[compaction]")
{
  for (float const limit : {0.25f, 0.0625f}) {  // of N = 100
    for (float const score : {limit, std::nextafter(limit, 1.0f), std::nextafter(limit, 0.0f)}) {
      for (policy_kind kind : {policy_kind::paper, policy_kind::artifact}) {
        same_step({}, {}, score, {25.0f, 6.25f}, kind);
        same_step({{10, score}}, {{5, score}}, score, {25.0f, 6.25f}, kind);
        same_step({{10, score}}, {{5, score}}, 1.0f, {25.0f, 6.25f}, kind);
      }
    }
  }
}

TEST_CASE("step on the device: scores that are NaN, infinite or negative send whom the host sends",
          "[compaction]")
{
  for (float const bad : {not_a_number, infinite, -infinite, -1.0f, -0.0f}) {
    for (policy_kind kind : {policy_kind::paper, policy_kind::artifact}) {
      same_step(start_high, {}, bad, usual, kind);
      same_step({{10, bad}, {11, 0.005f}, {12, bad}}, {}, 0.02f, usual, kind);
      same_step(start_high, {{5, bad}, {6, 0.0001f}}, 0.005f, usual, kind);
      same_step({{10, bad}}, {{5, bad}}, 0.02f, usual, kind);
    }
  }
}

TEST_CASE("step on the device: of equally important tokens the one with the lowest position goes",
          "[compaction]")
{
  std::uint64_t const seed = 43;
  CAPTURE(seed);
  test::random random{seed};
  row::tokens many;
  for (int i = 0; i < 70; ++i) { many.push_back({10 + i, 0.25f}); }  // five pages
  row::tokens few(many.begin(), many.begin() + 5);
  for (int run = 0; run < 20; ++run) {
    test::shuffle(few.data(), 5, random);
    test::shuffle(many.data(), 70, random);
    for (std::uint32_t const batch : {1u, 64u}) {
      same_step(few, {}, 0.6f, {50.0f, 0.0f}, policy_kind::paper, batch);
      same_step(few, many, 0.4f, {50.0f, 30.0f}, policy_kind::paper, batch);
    }
    same_step(many, few, 0.6f, {50.0f, 30.0f}, policy_kind::paper, 3);
  }
}

TEST_CASE("step on the device: whoever is removed, the part's last token takes the place whole",
          "[compaction]")
{
  // The low part lies in two pages; its last token moves across their boundary.
  row::tokens low;
  for (int i = 0; i < 18; ++i) { low.push_back({10 + i, 0.5f + 0.01f * static_cast<float>(i)}); }
  for (std::size_t victim = 0; victim < low.size(); ++victim) {
    CAPTURE(victim);
    auto changed           = low;
    changed[victim].second = 0.0001f;
    same_step({{9, 0.5f}}, changed, 0.005f, usual);   // pushed out by the leaving token
    same_step(changed, {{9, 0.001f}}, 0.02f, usual);  // and out of the high part
    same_step(changed, {{9, 0.001f}}, 0.5f, usual, policy_kind::artifact);
  }
}
