// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The generation step on the device leaves what its host twin leaves, byte for byte: codes, scales,
//! scores, positions, tables, windows, counts, ring, refusals.
#include "support/catch.hpp"
#include "support/step_run.cuh"
#include "support/twin_policies.hpp"

namespace step_test {

using namespace diffkv;

//! Goes through every action in turn, so that rows fill holes and lend pages from tier to tier.
struct rotating_policy : paper_policy {
  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const& row) const noexcept
  {
    bool const prune_low = row.least_low.present && row.num_tokens % 3 != 0;
    switch (row.num_tokens / 7 % 5) {
      case 0:
        return {step_action::grow, prune_low};
      case 1:
        if (row.leaving.present && row.has_low) { return {step_action::demote_leaving, prune_low}; }
        break;
      case 2:
        if (row.leaving.present) { return {step_action::prune_leaving, prune_low}; }
        break;
      case 3:
        if (row.least_high.present && row.has_low) { return {step_action::demote_high, false}; }
        break;
      default:
        if (row.least_high.present) { return {step_action::prune_high, prune_low}; }
        break;
    }
    return {step_action::grow, prune_low};
  }
};
static_assert(is_policy_v<rotating_policy>);

}  // namespace step_test

namespace {

using namespace diffkv;
using step_test::rotating_policy;
constexpr auto both = conditioning::centred | conditioning::rotated;

cache_shape shape_of(int head_dim, std::uint32_t slots, int window, int score_every)
{
  return {slots, 3, 2, 2, head_dim, 150, window, score_every};
}

//! Every policy, on pages that are too few.
template <class Policy, class High, class Low, int HeadDim, conditioning Set = conditioning::none,
          std::uint32_t PageBytes = 0, class T = __half>
void compare(Policy const& on_host, Policy const& on_device, cache_shape const& shape, int rounds,
             std::uint64_t seed, bool captured = false)
{
  using config = static_config<Policy, High, Low, HeadDim, Set, PageBytes>;
  CAPTURE(HeadDim, seed, shape.score_every, shape.window);
  test::step_run_setup setup;
  setup.shape    = shape;
  auto const all = config::layouts::pages.most_pages(static_cast<std::uint32_t>(shape.max_tokens)) *
                   shape.num_rows();
  setup.num_pages   = static_cast<std::uint32_t>(all * (2 + seed % 3) / 6);
  setup.low_clip    = seed % 2 == 0 ? 0.8f : 1.0f;
  setup.not_numbers = seed % 3 == 0;
  setup.aligned     = seed % 4 != 1;
  setup.captured    = captured;
  test::step_run<config, T> run{setup, on_host, on_device, seed};
  run.live(rounds);
  CHECK(run.trouble() == "");
  CHECK(run.steps() > rounds / 4);
  if constexpr (config::layouts::has_low) { CHECK(run.demoted() + run.filled() > 0); }
}

}  // namespace

TEST_CASE("step: the device equals its host twin for every built-in policy and score lag",
          "[compaction]")
{
  test::twin_policies const all{200, 40};
  std::uint64_t seed = 1;
  for (policy_kind kind : {policy_kind::paper, policy_kind::artifact, policy_kind::relative}) {
    for (int score_every : {0, 1, 2, 4}) {
      CAPTURE(static_cast<int>(kind));
      compare<any_policy, k8v4, k4v2, 64, conditioning::none, 1792>(
        all.host(kind), all.device(kind), shape_of(64, 5, 16, score_every), 120, seed++);
    }
  }
  using config = static_config<any_policy, k8v4, k4v2, 64, conditioning::none, 1792>;
  test::step_run_setup setup;
  setup.shape     = shape_of(64, 5, 16, 4);
  setup.num_pages = 90;
  test::step_run<config, float> run{setup, all.host(policy_kind::static_budget),
                                    all.device(policy_kind::static_budget), seed};
  run.live(150);
  CHECK(run.trouble() == "");
  CHECK(run.refused() > 0);
}

TEST_CASE("step: policies that decide about the leaving token first equal the twin", "[compaction]")
{
  test::twin_policies const all{200, 40};
  std::uint64_t seed = 81;
  for (int score_every : {0, 1, 4}) {
    compare<paper_policy, k8v4, k4v2, 128, both>({}, {}, shape_of(128, 5, 16, score_every), 120,
                                                 seed++);
    compare<relative_policy, k8v4, k4v2, 64, conditioning::none, 1792>(
      all.host(policy_kind::relative).relative, all.device(policy_kind::relative).relative,
      shape_of(64, 5, 16, score_every), 120, seed++);
    compare<relative_policy, k8v4, void, 64>(all.host(policy_kind::relative).relative,
                                             all.device(policy_kind::relative).relative,
                                             shape_of(64, 5, 16, score_every), 120, seed++);
  }
}

TEST_CASE("step: the device equals its host twin for formats, head dims and conditioning",
          "[compaction]")
{
  rotating_policy const p;
  compare<rotating_policy, k8v4, k4v2, 128, both, 3584>(p, p, shape_of(128, 4, 8, 4), 150, 21);
  compare<rotating_policy, k8v4, k4v2, 128>(p, p, shape_of(128, 4, 64, 1), 100, 22);
  compare<rotating_policy, k8v8, k4v4, 64, both, 2304>(p, p, shape_of(64, 4, 5, 2), 150, 23);
  compare<rotating_policy, k8v8, k4v4, 128>(p, p, shape_of(128, 4, 8, 2), 100, 24);
  compare<rotating_policy, k16v16, void, 64, both, 4224>(p, p, shape_of(64, 4, 8, 4), 100, 25);
  compare<rotating_policy, k16v16, void, 128>(p, p, shape_of(128, 4, 8, 0), 80, 26);
  compare<rotating_policy, k16v16, k8v8, 64, both, 4224>(p, p, shape_of(64, 4, 8, 4), 100, 27);
  compare<rotating_policy, format<8, 4, 2, 2>, format<4, 2, 2, 2>, 128, both, 3840>(
    p, p, shape_of(128, 4, 8, 4), 150, 28);
  compare<rotating_policy, format<8, 4, 2, 1>, format<4, 2, 4, 2>, 128, both, 4096>(
    p, p, shape_of(128, 4, 8, 4), 150, 29);
  compare<rotating_policy, k4v8, k2v2, 64, conditioning::rotated, 1792>(p, p, shape_of(64, 4, 8, 4),
                                                                        150, 30);
  compare<rotating_policy, k8v4, k4v1, 64, conditioning::centred, 1792>(p, p, shape_of(64, 4, 8, 4),
                                                                        150, 31);
}

TEST_CASE("step: the device equals its host twin at every head dim", "[compaction]")
{
  rotating_policy const p;
  compare<rotating_policy, k8v4, k4v2, 80, both>(p, p, shape_of(80, 4, 8, 4), 100, 41);
  compare<rotating_policy, k8v4, format<2, 1>, 96, both>(p, p, shape_of(96, 4, 8, 4), 100, 42);
  compare<rotating_policy, format<8, 4, 2, 2>, format<4, 2, 2, 2>, 112, both>(
    p, p, shape_of(112, 4, 8, 4), 100, 43);
  compare<rotating_policy, k8v4, format<4, 2, 4, 4>, 256, both>(p, p, shape_of(256, 3, 8, 4), 100,
                                                                44);
}

TEST_CASE("step: a graph captured once serves 1,000 steps of changing batches", "[compaction]")
{
  test::twin_policies const all{200, 40};
  compare<any_policy, k8v4, k4v2, 64, both, 1792>(all.host(policy_kind::relative),
                                                  all.device(policy_kind::relative),
                                                  shape_of(64, 6, 16, 4), 1000, 51, true);
}

TEST_CASE("step: short rings refuse whole sequences, in order, with many sequences", "[compaction]")
{
  rotating_policy const p;
  using config = static_config<rotating_policy, k8v4, k4v2, 64, conditioning::none, 1792>;
  test::step_run_setup setup;
  setup.shape     = {70, 2, 1, 1, 64, 60, 4, 1};
  setup.num_pages = 260;
  test::step_run<config, __nv_bfloat16> run{setup, p, p, 61};
  run.live(150);
  CHECK(run.trouble() == "");
  CHECK(run.refused() > 100);
  CHECK(run.lent_pages() > 0);
  CHECK(run.filled() > 0);
}

TEST_CASE("step: more rows than a CTA has threads", "[compaction]")
{
  rotating_policy const p;
  using config = static_config<rotating_policy, k8v4, k4v2, 64, conditioning::none, 1792>;
  test::step_run_setup setup;
  setup.shape     = {2, 130, 9, 1, 64, 60, 4, 1};
  setup.num_pages = 11000;
  test::step_run<config, float> run{setup, p, p, 71};
  run.live(12);
  CHECK(run.trouble() == "");
  CHECK(run.steps() > 0);
}

TEST_CASE("step: a full sequence, and one with a row whose sides would meet, are refused",
          "[compaction][small]")
{
  using config = static_config<any_policy, k8v4, k4v2, 64, conditioning::none, 1792>;
  harmonic_table const table{150};  // no further than the longest sequence
  test::device_array<double> const sums{table.ref().sums, 151};
  any_policy p;
  p.relative.harmonic             = table.ref();
  any_policy device_p             = p;
  device_p.relative.harmonic.sums = sums.data();
  test::host_cache_parts parts;
  parts.shape     = shape_of(64, 3, 8, 4);
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 300;
  test::host_cache twin{parts};
  test::random random{5};
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    host::admission const one{slot, slot == 0 ? parts.shape.max_tokens : 20};
    auto const count = static_cast<std::size_t>(one.num_tokens) * parts.shape.num_heads;
    REQUIRE(host::admit(twin.context(), &one, 1, p) == 0);
    for (std::uint32_t layer = 0; layer < parts.shape.num_layers; ++layer) {
      auto const x           = random.floats(count * 64, -1.0f, 1.0f);
      auto const importances = random.floats(count, 0.0f, 0.1f);
      auto const vectors     = packed(x.data(), parts.shape.num_heads, 64);
      host::store_prompt(twin.context(), slot, layer, p, vectors, vectors, importances.data());
    }
  }
  // Damaged: the row says that it holds more than its entries.
  std::size_t const damaged                = parts.shape.row(1, 2, 1);
  twin.ref().state.rows[damaged].pages.low = twin.ref().table.row_entries;
  test::device_cache const device{twin.ref(), 1};
  test::device_stream const stream;
  test::device_array<std::uint32_t> const slots{std::vector<std::uint32_t>{0, 1, 2}};
  test::device_array<std::uint32_t> const refused{4};
  std::size_t const bytes = step_workspace_bytes(parts.shape, 3);
  test::device_array<std::byte> const workspace{bytes};
  step<config>(device.ref(), {slots.data(), nullptr, 3}, device_p, workspace.data(), bytes,
               {refused.data(), refused.data() + 1}, stream.get());
  stream.wait();

  auto const named = refused.to_host();
  CHECK(named[0] == 2);
  CHECK(named[1] == 0);
  CHECK(named[2] == 1);
  std::uint32_t const served = 2;
  REQUIRE(host::step(twin.context(), &served, 1, p) == 0);
  test::host_cache const answer{parts};
  device.download(answer.ref());
  CHECK(test::difference_of(twin.ref(), answer.ref()) == "");
}

TEST_CASE("step: an empty batch launches nothing and clears the refusals", "[compaction]")
{
  rotating_policy const p;
  using config = static_config<rotating_policy, k8v4, k4v2, 64>;
  test::host_cache_parts parts;
  parts.shape     = shape_of(64, 1, 8, 4);
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 4;
  test::host_cache const cache{parts};
  test::device_stream const stream;
  test::device_array<std::uint32_t> const count{1};
  step<config>(cache.ref(), batch_ref{}, p, nullptr, 0, {count.data(), nullptr}, stream.get());
  stream.wait();
  CHECK(count.to_host()[0] == 0);
}

TEST_CASE("step: handles of another configuration and short workspaces are refused", "[compaction]")
{
  rotating_policy const p;
  using config = static_config<rotating_policy, k8v4, k4v2, 64>;
  using other  = static_config<rotating_policy, k8v8, k4v4, 64>;
  test::host_cache_parts parts;
  parts.shape     = shape_of(64, 1, 8, 4);
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 4;
  test::host_cache const cache{parts};
  batch_ref const batch{nullptr, nullptr, 1};
  std::byte* const somewhere = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  CHECK_THROWS_AS(step<other>(cache.ref(), batch, p, somewhere, 1u << 20, {}, nullptr),
                  invalid_argument);
  CHECK_THROWS_AS(step<config>(cache.ref(), batch, p, somewhere, 8, {}, nullptr), invalid_argument);
  CHECK_THROWS_AS(step<config>(cache.ref(), batch, p, somewhere + 4, 1u << 20, {}, nullptr),
                  invalid_argument);
  CHECK_THROWS_AS((append<config, float>(cache.ref(), batch, 3, {}, {}, {}, nullptr)),
                  invalid_argument);
}
