// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The write path and the score path against a slow model of them, over random lives of sequences.
#include "support/catch.hpp"
#include "support/model_run.hpp"

namespace {
using diffkv::conditioning;
using diffkv::policy_kind;
using diffkv::test::model_run;
using diffkv::test::model_setup;

std::vector<policy_kind> const all_policies{policy_kind::paper, policy_kind::artifact,
                                            policy_kind::relative, policy_kind::static_budget};
std::vector<diffkv::format_spec> const some_formats{
  diffkv::k16v16::spec, diffkv::k8v8::spec,     diffkv::k8v4::spec, diffkv::k4v4::spec,
  diffkv::k4v2::spec,   {{8, 1}, {2, 1, 0.8f}}, diffkv::k4v1::spec};

model_setup random_setup(diffkv::test::random& r, policy_kind policy)
{
  model_setup setup{};
  auto& shape       = setup.shape;
  shape.num_slots   = static_cast<std::uint32_t>(r.between(1, 3));
  shape.num_layers  = static_cast<std::uint32_t>(r.between(1, 3));
  shape.num_heads   = static_cast<std::uint32_t>(r.between(1, 2));
  shape.group_size  = static_cast<std::uint32_t>(r.between(1, 3));
  shape.head_dim    = 32;
  shape.max_tokens  = 90;
  shape.window      = r.pick(std::vector<int>{1, 1, 2, 3, 4, 7, 16, 64});
  shape.score_every = r.pick(std::vector<int>{0, 1, 1, 2, 4, 4});
  shape.schedule =
    r.one_in(3) ? diffkv::catch_up_schedule::by_position : diffkv::catch_up_schedule::by_batch;
  int const high = r.pick(std::vector<int>{1, 2, 3, 5, 16});
  int const low  = r.pick(std::vector<int>{1, 2, 4, 7, 16});
  setup.tiers =
    diffkv::test::short_tiers(r.pick(some_formats), high, r.pick(some_formats), low, 32);
  if (r.one_in(4)) { setup.tiers = diffkv::make_tier_pages(setup.tiers.high); }
  setup.conditioned = static_cast<conditioning>(r.between(0, 3));
  if (has(setup.conditioned, conditioning::centred)) {
    setup.key_offsets = r.floats(shape.rows_per_slot() * std::size_t{32}, -1.0f, 1.0f);
  }
  setup.policy = {policy, r.between(0, 12)};
  for (std::size_t i = 0; i < shape.num_rows(); ++i) {
    float const low_limit = r.pick(std::vector<float>{0.0f, 0.02f, 0.3f, 0.8f, 1.0f});
    setup.limits.push_back({low_limit + r.pick(std::vector<float>{0.0f, 0.2f, 1.0f}), low_limit});
  }
  setup.options.scale                = 0.25f;
  setup.options.soft_cap             = r.one_in(4) ? 3.0f : 0.0f;
  setup.options.sliding_window       = r.one_in(5) ? 20 : 0;
  setup.options.splits               = r.between(1, 3);
  setup.options.exact_lagged_queries = r.one_in(3);
  return setup;
}

//! Admissions, steps of random subsets in random order, releases, in a pool that is too small.
void live(model_run& run, model_setup const& setup, int rounds)
{
  diffkv::test::random& r = run.numbers();
  for (int round = 0; round < rounds && run.trouble().empty(); ++round) {
    std::vector<std::uint32_t> active;
    for (std::uint32_t slot = 0; slot < setup.shape.num_slots; ++slot) {
      if (!run.is_active(slot)) { run.admit(slot, r.one_in(6) ? 0 : r.between(1, 50)); }
      if (!run.is_active(slot)) { continue; }
      if (run.num_tokens(slot) == setup.shape.max_tokens || r.one_in(60)) {
        run.release(slot);
      } else if (!r.one_in(5)) {
        active.push_back(slot);
      }
    }
    diffkv::test::shuffle(active.data(), static_cast<std::uint32_t>(active.size()), r);
    run.step(active);
  }
  for (std::uint32_t slot = 0; slot < setup.shape.num_slots; ++slot) {
    if (run.is_active(slot)) { run.release(slot); }
  }
}
}  // namespace

TEST_CASE("step: tiers, places, scores and pages are those of a slow model, for random lives",
          "[host]")
{
  int steps   = 0;
  int refused = 0, refused_first = 0;
  for (policy_kind const policy : all_policies) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      CAPTURE(static_cast<int>(policy), seed);
      diffkv::test::random r{seed * 1000 + static_cast<std::uint64_t>(policy)};
      model_setup const setup = random_setup(r, policy);
      std::uint64_t const all =
        setup.tiers.most_pages(static_cast<std::uint32_t>(setup.shape.max_tokens)) *
        setup.shape.num_rows();
      // From "one sequence hardly fits" to "all fit".
      auto const pages =
        static_cast<std::uint32_t>(all * static_cast<std::uint64_t>(r.between(2, 8)) / 8);
      model_run run{setup, pages, {r.one_in(6) ? 0.0f : 1.0f, r.one_in(3), r.one_in(5)}, r.next()};
      live(run, setup, 120);
      INFO(run.trouble());
      CHECK(run.trouble().empty());
      CHECK(run.cache().ref().ring.num_free() == pages);
      steps += run.steps();
      refused += run.refused();
      refused_first += run.refused_first();
    }
  }
  CHECK(steps > 20'000);
  CHECK(refused > 1000);
  CHECK(refused_first > 100);
}
