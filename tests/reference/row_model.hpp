// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One row as two sets of token numbers, and the generation step of each policy told in terms of
//! those sets, sentence by sentence as docs/policies.md tells it. No slots, no pages, no actions.
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

namespace diffkv::test {

struct row_sets {
  std::set<int> high{};
  std::set<int> low{};

  friend bool operator==(row_sets const& a, row_sets const& b)
  {
    return a.high == b.high && a.low == b.low;
  }
};

//! What the sentences refer to. Importances and limits are f32 as in the library.
struct step_words {
  int n        = 0;  //!< the token being reserved
  int window   = 1;
  float a_high = 1.0f, a_low = 0.0f;
  bool has_low = true;
  std::function<float(int)> importance{};    //!< of a token now
  std::function<float(int)> reference{};     //!< what a_high and a_low multiply or divide, below
  std::function<float(float, int)> limit{};  //!< limit(a, token)
  std::function<float(int)> turn{};          //!< least first
};

namespace row_words {

//! The member of `set` numbered at most `last` whose turn is first; 0 if there is none. Ties: lowest.
[[nodiscard]] inline int least(std::set<int> const& set, int last, step_words const& w)
{
  int best = 0;
  for (int const token : set) {
    if (token > last) { break; }
    if (best == 0 || w.turn(token) < w.turn(best)) { best = token; }
  }
  return best;
}

}  // namespace row_words

//! `paper` and `relative`.
inline void threshold_step_in_words(row_sets& row, step_words const& w)
{
  auto const is_high = [&](int t) {
    bool const above = w.importance(t) > w.limit(w.a_high, t);
    // Without low tier, what would be low is high.
    bool const between = !above && !(w.importance(t) < w.limit(w.a_low, t));
    return above || (between && !w.has_low);
  };
  auto const is_pruned = [&](int t) {
    return !(w.importance(t) > w.limit(w.a_high, t)) && w.importance(t) < w.limit(w.a_low, t);
  };
  int const leaving = w.n - w.window;
  int const victim  = row_words::least(row.high, leaving - 1, w);
  int const lowest  = row_words::least(row.low, w.n, w);
  bool const exists = leaving >= 1;
  row.high.insert(w.n);
  if (exists && is_pruned(leaving)) {
    row.high.erase(leaving);
    return;
  }
  if (exists && !is_high(leaving)) {
    row.high.erase(leaving);
    row.low.insert(leaving);
    if (lowest != 0 && is_pruned(lowest)) { row.low.erase(lowest); }
    return;
  }
  if (victim == 0 || is_high(victim)) { return; }
  row.high.erase(victim);
  if (!is_pruned(victim)) { row.low.insert(victim); }
}

//! `artifact`.
inline void artifact_step_in_words(row_sets& row, step_words const& w)
{
  int const victim = row_words::least(row.high, w.n - w.window - 1, w);
  int const lowest = row_words::least(row.low, w.n, w);
  row.high.insert(w.n);
  if (victim == 0) { return; }
  float const m_h       = w.importance(victim);
  bool const below_low  = m_h < w.limit(w.a_low, victim);
  bool const below_high = m_h < w.limit(w.a_high, victim);
  if (below_low && (lowest == 0 || m_h < w.importance(lowest))) {
    row.high.erase(victim);
    return;
  }
  if (below_high && w.has_low) {
    row.high.erase(victim);
    row.low.insert(victim);
    if (lowest != 0 && w.importance(lowest) < w.limit(w.a_low, lowest)) { row.low.erase(lowest); }
  }
}

//! `static`: before the new token comes, what is over budget outside the window loses its least.
inline void static_step_in_words(row_sets& row, step_words const& w, int budget)
{
  std::set<int> outside;
  for (int const token : row.high) {
    if (token <= w.n - w.window) { outside.insert(token); }
  }
  row.high.insert(w.n);
  if (static_cast<int>(outside.size()) <= budget) { return; }
  int const victim = row_words::least(outside, w.n, w);
  if (victim != 0) { row.high.erase(victim); }
}

}  // namespace diffkv::test
