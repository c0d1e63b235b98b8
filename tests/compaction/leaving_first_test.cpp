// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Policies that decide about the leaving token first: planning that looks up one other token at most,
//! as the device does, reaches the plan of host::step, which looks up all of them.
#include <diffkv/compaction/step_plan.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/host_cache.hpp"

namespace {
using diffkv::row_step;
using diffkv::row_view;
using diffkv::step_role;
using diffkv::step_token;
using diffkv::tier;

constexpr int head_dim = 32;
constexpr int window   = 3;

auto members(row_step const& p)
{
  return std::make_tuple(p.append_slot, p.demote_from, p.demote_to, p.fill_from, p.fill_to,
                         p.tokens_after.high, p.tokens_after.low, p.high_page, p.low_page);
}

//! A row of any tokens and candidates, some of which are not where they were, or have no number.
class random_row {
 public:
  random_row(diffkv::tier_pages const& tiers, diffkv::test::random& r) : cache_{parts(tiers)}
  {
    diffkv::tier_counts tokens{1 + r.below(9), tiers.has_low ? r.below(9) : 0};
    num_tokens_ = static_cast<std::int32_t>(tokens.sum()) + r.between(0, 20);
    diffkv::test::reserve_row(cache_.context(), 0, tokens);
    std::vector<float> const x(head_dim, 1.0f);
    for (tier const t : {tier::high, tier::low}) {
      for (std::uint32_t s = 0; s < tokens.of(t); ++s) {
        float const score =
          r.one_in(12) ? std::numeric_limits<float>::quiet_NaN() : r.uniform(0.0f, 3.0f);
        diffkv::test::write_token(cache_.context(), 0, t, s, x.data(), x.data(), score,
                                  r.between(0, num_tokens_ - 1));
      }
    }
    auto const& state = cache_.ref().state;
    for (std::int32_t p = 0; p < window; ++p) { state.window_slot(0, p) = r.below(tokens.high); }
    row_view const row = this->row();
    for (tier const t : {tier::high, tier::low}) {
      for (std::uint32_t c = 0; c < state.candidates_per_tier; ++c) {
        if (tokens.of(t) == 0 || r.one_in(4)) { continue; }
        diffkv::slot_index const slot = r.below(tokens.of(t));
        std::int32_t const position =
          r.one_in(4) ? num_tokens_ : row.page_of(t, slot).position(row.token_in_page(t, slot));
        state.candidates_of(0, t)[c] = {position, r.one_in(6) ? slot + 20 : slot,
                                        r.uniform(0.0f, 1.0f)};
      }
    }
    queries_        = {r.between(0, num_tokens_), 0, num_tokens_};
    float const low = r.uniform(0.0f, 2.0f);
    limits_         = {low + r.uniform(0.0f, 2.0f), low};
  }

  [[nodiscard]] row_view row() const { return cache_.context().row(0); }

  template <class Policy>
  [[nodiscard]] row_step plan_all(Policy const& policy) const
  {
    return diffkv::plan_row_step(policy, row(), queries_, num_tokens_, limits_);
  }
  template <class Policy>
  [[nodiscard]] row_step plan_few(Policy const& policy) const
  {
    row_view const row            = this->row();
    auto const& [shape, tiers]    = std::tie(row.cache->shape, row.cache->tiers);
    diffkv::row_state const state = row.state();
    step_token found[3]{};
    auto const look = [&](step_role role) {
      found[static_cast<int>(role)] =
        diffkv::find_step_token(role, row, state.tokens, queries_, num_tokens_);
    };
    look(step_role::leaving);
    step_role const wanted = diffkv::role_after_leaving(
      policy, diffkv::view_of_leaving(found[0], state, tiers, shape.window, num_tokens_, limits_));
    if (wanted != step_role::leaving) { look(wanted); }
    return diffkv::plan_found_tokens(policy, found[0], found[1], found[2], state, tiers,
                                     shape.window, num_tokens_, limits_);
  }

 private:
  static diffkv::test::host_cache_parts parts(diffkv::tier_pages const& tiers)
  {
    diffkv::test::host_cache_parts p{};
    p.shape.head_dim    = head_dim;
    p.shape.max_tokens  = 50;
    p.shape.window      = window;
    p.shape.score_every = 4;
    p.tiers             = tiers;
    p.num_pages         = 30;
    return p;
  }

  diffkv::test::host_cache cache_;
  std::int32_t num_tokens_ = 0;
  diffkv::query_span queries_{};
  diffkv::thresholds limits_{};
};

//! @return how many kinds of plan there were
template <class Policy>
std::size_t compare(Policy const& policy, bool has_low, std::uint64_t seed)
{
  static_assert(diffkv::decides_leaving_first_v<Policy>);
  auto const spec = diffkv::k8v4::spec;
  diffkv::tier_pages const tiers =
    has_low ? diffkv::test::short_tiers(spec, 2, diffkv::k4v2::spec, 3, head_dim)
            : diffkv::make_tier_pages(diffkv::test::short_pages(spec, head_dim, 2));
  diffkv::test::random random{seed};
  std::set<std::tuple<bool, bool, bool>> kinds;
  for (int i = 0; i < 4000; ++i) {
    CAPTURE(has_low, i);
    random_row const row{tiers, random};
    row_step const plan   = row.plan_all(policy);
    std::uint32_t const n = row.row().state().tokens.high;
    REQUIRE(members(row.plan_few(policy)) == members(plan));
    kinds.insert({plan.append_slot == n, plan.demote_from != diffkv::no_slot,
                  plan.demote_to < row.row().state().tokens.low});
  }
  return kinds.size();
}
}  // namespace

TEST_CASE("role_after_leaving: a plan needs one token besides the leaving one at most",
          "[compaction]")
{
  diffkv::harmonic_table const table{50};
  diffkv::relative_policy const relative{table.ref()};
  // Growth; a token dropped; one demoted to the end of the low part, or in place of another one.
  CHECK(compare(diffkv::paper_policy{}, true, 1) == 4);
  CHECK(compare(relative, true, 2) == 4);
  CHECK(compare(diffkv::paper_policy{}, false, 3) == 2);
  CHECK(compare(relative, false, 4) == 2);
}
