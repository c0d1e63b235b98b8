// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One generation step of one row, case by case as docs/policies.md tells it.
#include "reference/cache_model.hpp"

namespace diffkv::test {

inline void model_layer::step_row(std::uint32_t head)
{
  model_row& row             = rows_[head];
  model_policy const& policy = setup_->policy;
  thresholds const a         = limits(head);
  int const n                = num_tokens_;
  int const window           = setup_->shape.window;
  bool const has_low         = setup_->tiers.has_low;
  constexpr std::size_t none = static_cast<std::size_t>(-1);

  // A token's importance now; NaN if it has none, and then it is left alone.
  auto const importance = [&](model_token const& token) {
    int const count = queries_.count(token.number);
    return count == 0 ? std::nanf("") : token.score / static_cast<float>(count);
  };
  auto const winner = [&](tier t) {
    model_candidate const* best = nullptr;
    for (model_candidate const& c : row.leave(t)) {
      bool const holds = c.slot < row.of(t).size() && row.of(t)[c.slot].number == c.number;
      if (!holds) { continue; }
      if (best == nullptr || c.priority < best->priority ||
          (c.priority == best->priority && c.number < best->number)) {
        best = &c;
      }
    }
    bool const moves = best != nullptr && !std::isnan(importance(row.of(t)[best->slot]));
    return moves ? best->slot : none;
  };
  auto const tier_of = [&](model_token const& token) {
    tier const t = policy.classify(importance(token), token.number, n, a, false);
    return t == tier::low && !has_low ? tier::high : t;
  };

  std::size_t leaving = none;
  for (std::size_t slot = 0; slot < row.high.size(); ++slot) {
    if (row.high[slot].number == n - window && !std::isnan(importance(row.high[slot]))) {
      leaving = slot;
    }
  }
  std::size_t const high = winner(tier::high);
  std::size_t const low  = winner(tier::low);

  std::size_t freed     = none;   // high slot that the new token takes
  bool demotes          = false;  // its token goes low
  std::size_t low_place = none;   // into this slot, whose token is pruned; none: a new one
  if (policy.kind == policy_kind::static_budget) {
    int outside = 0;
    for (model_token const& token : row.high) { outside += token.number <= n - window ? 1 : 0; }
    if (outside > policy.budget) {
      bool const first = leaving != none && (high == none || importance(row.high[leaving]) <
                                                               importance(row.high[high]));
      freed            = first ? leaving : high;
    }
  } else if (policy.kind == policy_kind::artifact) {
    if (high != none) {
      float const m_h = importance(row.high[high]);
      float const m_l =
        low == none ? std::numeric_limits<float>::infinity() : importance(row.low[low]);
      float const by = static_cast<float>(n);
      if (m_h < a.low / by && m_h < m_l) {
        freed = high;
      } else if (m_h < a.high / by && has_low) {
        freed     = high;
        demotes   = true;
        low_place = m_l < a.low / by ? low : none;
      }
    }
  } else {
    tier const where = leaving == none ? tier::high : tier_of(row.high[leaving]);
    if (where == tier::high) {
      tier const victim = high == none ? tier::high : tier_of(row.high[high]);
      freed             = victim == tier::high ? none : high;
      demotes           = victim == tier::low;
    } else {
      freed   = leaving;
      demotes = where == tier::low;
      if (demotes && low != none && tier_of(row.low[low]) == tier::pruned) { low_place = low; }
    }
  }

  if (demotes) {
    model_token const token = demoted(row.high[freed]);
    if (low_place == none) {
      row.low.push_back(token);
    } else {
      row.low[low_place] = token;
    }
  }
  if (freed == none) {
    freed = row.high.size();
    row.high.emplace_back();
  }
  row.high[freed]        = model_token{};
  row.high[freed].number = n;
  row.append_slot        = freed;
}

}  // namespace diffkv::test
