// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a launch of decode attention on the device left in a cache with scores, beside what the host
//! twin left.
#include <diffkv/host/decode_attention.hpp>

#include <cmath>
#include <cstring>  // memcmp
#include <string>

#include "reference/decode_bounds.hpp"
#include "support/device_cache.hpp"
#include "support/difference.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

//! Checks what may have changed, and takes it over into `before`: then the rest must be the same.
template <class Policy>
class score_comparison {
 public:
  //! @param twin, before, answer  what the twin left, what both started from, what the device left
  score_comparison(host_cache const& twin, host_cache const& before, host_cache const& answer,
                   Policy const& policy, attention_options const& options, bool exact_lag)
    : twin_{twin},
      before_{before},
      answer_{answer},
      policy_{policy},
      options_{options},
      exact_lag_{exact_lag}
  {}

  //! The new query of one (sequence, layer), its log-sum-exp and offset.
  //! @param query  [num_q_heads, head_dim] not conditioned
  void compare_ring(std::uint32_t slot, std::uint32_t layer, float const* query)
  {
    std::int32_t const position = before_.ref().layer(slot, layer).num_tokens - 1;
    std::size_t const index     = shape().layer_of(slot, layer);
    auto const dim              = static_cast<std::size_t>(shape().head_dim);
    decode_bounds const bounds  = bounds_of(before_.ref().tiers);
    for (std::uint32_t q_head = 0; q_head < shape().num_q_heads(); ++q_head, query += dim) {
      query_ring_ref const& wanted = twin_.ref().queries;
      query_ring_ref const& got    = answer_.ref().queries;
      query_ring_ref const& to     = before_.ref().queries;
      std::size_t const i          = wanted.index(index, position, q_head);
      if (!same_query(got, wanted, i)) { report("ring query; "); }
      copy_query(got, to, i);

      double const lse = wanted.lse[i];
      if (std::isfinite(lse)
            ? !(difference(got.lse[i], lse) <= bounds.lse * (1 + std::fabs(lse) / 25))
            : std::isfinite(got.lse[i])) {
        report("ring lse " + std::to_string(got.lse[i]) + " for " + std::to_string(lse) + "; ");
      }
      to.lse[i] = got.lse[i];

      float const* const centre = before_.ref().key_offset(layer, q_head / shape().group_size);
      double size               = 0.0;
      for (std::size_t d = 0; centre != nullptr && d < dim; ++d) {
        size += std::fabs(static_cast<double>(options_.scale * query[d] * centre[d]));
      }
      float const offset = wanted.offset_logits[i];
      if (std::isfinite(offset) && !(difference(got.offset_logits[i], offset) <= 1e-5 * size)) {
        report("ring offset logit; ");
      }
      to.offset_logits[i] = got.offset_logits[i];
    }
  }

  //! Scores and candidates, if the (sequence, layer) was to catch up; else they must be as before.
  //! @param turn  of the launch
  //! @return whether it was
  bool compare_rows(std::uint32_t slot, std::uint32_t layer, catch_up_turn const& turn)
  {
    layer_state& state = before_.ref().layer(slot, layer);
    if (!turn.queries_due(state).catches_up) { return false; }
    state.queries = twin_.ref().layer(slot, layer).queries;
    for (std::uint32_t head = 0; head < shape().num_heads; ++head) {
      std::size_t const row = shape().row(slot, layer, head);
      compare_scores(row);
      compare_candidates(row, state);
    }
    return true;
  }
  //! What was wrong; empty if nothing.
  [[nodiscard]] std::string finish()
  {
    report(difference_of(before_.ref(), answer_.ref()));
    return trouble_;
  }
  [[nodiscard]] int scored() const { return scored_; }
  [[nodiscard]] int candidates() const { return candidates_; }

 private:
  [[nodiscard]] cache_shape const& shape() const { return twin_.shape(); }
  void report(std::string const& text)
  {
    if (trouble_.size() < 1000) { trouble_ += text; }
  }

  //! Bit for bit, but for what NaN looks like.
  [[nodiscard]] static bool same_query(query_ring_ref const& a, query_ring_ref const& b,
                                       std::size_t i)
  {
    auto const dim = static_cast<std::size_t>(b.head_dim);
    if (b.rounding == lag_rounding::int8) {
      return std::memcmp(a.codes_of(i), b.codes_of(i), dim) == 0 &&
             same_numbers(a.largest + i, b.largest + i, 1);
    }
    return same_numbers(a.query(i), b.query(i), dim);
  }
  [[nodiscard]] static bool same_numbers(float const* a, float const* b, std::size_t n)
  {
    for (std::size_t i = 0; i < n; ++i) {
      bool const same = std::isnan(b[i]) ? std::isnan(a[i]) : std::memcmp(a + i, b + i, 4) == 0;
      if (!same) { return false; }
    }
    return true;
  }

  [[nodiscard]] double score_bound(tier t) const
  {
    if (!before_.ref().tiers.of(t).format.key.is_quantised()) { return bounds_of_f16.exact_score; }
    return exact_lag_ ? bounds_of_codes.exact_score : bounds_of_codes.int8_score;
  }

  void compare_scores(std::size_t row)
  {
    row_view const was    = before_.context().row(row);
    row_view const wanted = twin_.context().row(row);
    row_view const got    = answer_.context().row(row);
    for (tier t : {tier::high, tier::low}) {
      for (slot_index s = 0; s < was.state().tokens.of(t); ++s) {
        float const b = was.score(t, s);
        float const w = wanted.score(t, s);
        float const g = got.score(t, s);
        double const most =
          score_bound(t) * std::fabs(static_cast<double>(w) - static_cast<double>(b)) +
          0x1.0p-22 * std::fabs(static_cast<double>(w));
        if (std::isnan(w) ? !std::isnan(g) : !(difference(g, w) <= most)) {
          report("score " + std::to_string(g) + " for " + std::to_string(w) + ", was " +
                 std::to_string(b) + "; ");
        }
        scored_ += w != b ? 1 : 0;
        was.page_of(t, s).set_score(was.token_in_page(t, s), g);
      }
    }
  }

  //! The device's candidates follow from its own scores, and are as good as the twin's.
  void compare_candidates(std::size_t row, layer_state const& state)
  {
    std::uint32_t const places = before_.ref().state.candidates_per_tier;
    host::refresh_candidates(before_.context(), before_.context().row(row), policy_, state.queries,
                             state.num_tokens);
    for (tier t : {tier::high, tier::low}) {
      candidate* const own          = before_.ref().state.candidates_of(row, t);
      candidate const* const wanted = twin_.ref().state.candidates_of(row, t);
      candidate const* const got    = answer_.ref().state.candidates_of(row, t);
      for (std::uint32_t p = 0; p < places; ++p) {
        candidate const c = got[p];
        if (c.present() != own[p].present() || c.present() != wanted[p].present()) {
          report("a candidate is missing or too many; ");
        } else if (c.present()) {
          ++candidates_;
          if (!is_valid(row, t, p, c, state)) { report("a candidate that may not leave; "); }
          if (!near(c.priority, own[p].priority, 1e-6) ||
              !near(c.priority, wanted[p].priority, score_bound(t) + 1e-6)) {
            report("candidate of priority " + std::to_string(c.priority) + ", least is " +
                   std::to_string(own[p].priority) + "; ");
          }
        }
        own[p] = c;
      }
    }
  }
  [[nodiscard]] static bool near(float a, float b, double relative)
  {
    return difference(a, b) <= relative * std::fabs(static_cast<double>(b));
  }
  [[nodiscard]] bool is_valid(std::size_t row, tier t, std::uint32_t place, candidate const& c,
                              layer_state const& state) const
  {
    row_view const view = before_.context().row(row);
    if (c.slot >= view.state().tokens.of(t)) { return false; }
    return view.position(t, c.slot) == c.position &&
           c.slot / before_.ref().tiers.tokens_per_page(t) %
               before_.ref().state.candidates_per_tier ==
             place &&
           may_leave(t, c.position, state.num_tokens - 1, shape().window,
                     state.queries.count(c.position + 1));
  }

  host_cache const& twin_;
  host_cache const& before_;
  host_cache const& answer_;
  Policy policy_;
  attention_options options_;
  bool exact_lag_;
  std::string trouble_{};
  int scored_ = 0, candidates_ = 0;
};

}  // namespace diffkv::test
