// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Runs the host operations and the model of tests/reference side by side and compares them.
#include <diffkv/host/decode_attention.hpp>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>

#include <algorithm>  // find
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "reference/step_model.hpp"
#include "support/difference.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

class model_run {
 public:
  //! What keys, importances and queries are like.
  struct habits {
    float key_size   = 1.0f;   //!< 0: every token is equally important
    bool ties        = false;  //!< importances from a few values
    bool not_numbers = false;  //!< now and then a NaN among keys, values, importances
  };

  model_run(model_setup setup, std::uint32_t num_pages, habits h, std::uint64_t seed)
    : setup_{std::move(setup)},
      habits_{h},
      random_{seed},
      harmonic_{setup_.shape.max_tokens},
      cache_{{setup_.shape, setup_.tiers, num_pages, setup_.conditioned, setup_.key_offsets,
              setup_.limits, setup_.options.exact_lagged_queries}},
      sequences_(setup_.shape.num_slots)
  {
    policy_.kind                 = setup_.policy.kind;
    policy_.relative.harmonic    = harmonic_.ref();
    policy_.static_budget.budget = setup_.policy.budget;
    cache_.shuffle_pages(random_);
  }

  [[nodiscard]] host_cache& cache() { return cache_; }
  [[nodiscard]] any_policy const& policy() const { return policy_; }
  [[nodiscard]] random& numbers() { return random_; }
  [[nodiscard]] bool is_active(std::uint32_t slot) const { return sequences_[slot].has_value(); }
  [[nodiscard]] int num_tokens(std::uint32_t slot) const
  {
    return sequences_[slot]->front().num_tokens();
  }
  [[nodiscard]] model_layer& layer(std::uint32_t slot, std::uint32_t layer)
  {
    return (*sequences_[slot])[layer];
  }
  [[nodiscard]] int refused() const { return refused_; }
  //! Batches whose first sequence was refused its step.
  [[nodiscard]] int refused_first() const { return refused_first_; }
  [[nodiscard]] int steps() const { return steps_; }
  //! The first thing that did not agree; empty if nothing.
  [[nodiscard]] std::string const& trouble() const { return trouble_; }

  //! @return whether it was admitted
  bool admit(std::uint32_t slot, int num_tokens)
  {
    host::admission const one{slot, num_tokens};
    bool const fits = setup_.tiers.most_pages(static_cast<std::uint32_t>(num_tokens)) *
                        setup_.shape.rows_per_slot() <=
                      cache_.ref().ring.num_free();
    bool const admitted = host::admit(cache_.context(), &one, 1, policy_) == 0;
    expect(admitted == fits, "admission");
    if (!admitted) {
      ++refused_;
      return false;
    }
    auto& layers = sequences_[slot].emplace();
    for (std::uint32_t l = 0; l < setup_.shape.num_layers; ++l) {
      layers.emplace_back(setup_, slot, l);
      store(slot, l, num_tokens);
    }
    compare(slot);
    return true;
  }

  //! One step of all `slots`, in this order; those that get their pages are decoded.
  void step(std::vector<std::uint32_t> const& slots)
  {
    for (std::uint32_t const slot : slots) {
      for (std::uint32_t l = 0; setup_.shape.score_every == 0 && l < setup_.shape.num_layers; ++l) {
        host::scan_candidates(cache_.context(), slot, l, policy_);
      }
    }
    // Exact first fit, from the pages the model needs before and after.
    std::uint64_t left = cache_.ref().ring.num_free();
    std::vector<std::uint32_t> granted;
    std::vector<std::uint32_t> refused;
    std::vector<std::vector<char>> before;
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      auto next            = *sequences_[slots[i]];
      std::uint64_t demand = 0;
      for (std::uint32_t l = 0; l < next.size(); ++l) {
        std::vector<tier_counts> held;
        for (std::uint32_t h = 0; h < setup_.shape.num_heads; ++h) {
          held.push_back(next[l].pages(h));
        }
        next[l].step();
        for (std::uint32_t h = 0; h < setup_.shape.num_heads; ++h) {
          tier_counts const need = next[l].pages(h);
          expect(need.high <= held[h].high + 1 && need.low <= held[h].low + 1, "growth");
          demand += need.sum() - held[h].sum();
        }
      }
      if (demand <= left) {
        left -= demand;
        granted.push_back(slots[i]);
        sequences_[slots[i]] = std::move(next);
      } else {
        refused.push_back(i);
        before.push_back(bytes_of(slots[i]));
      }
    }
    std::uint32_t count = 0;
    std::vector<std::uint32_t> named(slots.size());
    host::step(cache_.context(), slots.data(), static_cast<std::uint32_t>(slots.size()), policy_,
               {&count, named.data()});
    named.resize(count);
    expect(named == refused, "refusals");
    expect(cache_.ref().ring.num_free() == left, "pages left");
    for (std::size_t i = 0; i < refused.size(); ++i) {
      expect(bytes_of(slots[refused[i]]) == before[i], "a refused sequence changed");
    }
    refused_ += static_cast<int>(refused.size());
    steps_ += static_cast<int>(granted.size());
    for (std::uint32_t l = 0; l < setup_.shape.num_layers && trouble_.empty(); ++l) {
      decode(slots, refused, l);
    }
    for (std::size_t i = 0; i < refused.size(); ++i) {
      expect(bytes_of(slots[refused[i]]) == before[i], "a launch changed a refused sequence");
    }
    refused_first_ += refused.empty() || refused.front() != 0 ? 0 : 1;
    for (std::uint32_t const slot : granted) { compare(slot); }
  }

  void release(std::uint32_t slot)
  {
    auto const report = host::release_slots(cache_.context(), &slot, 1);
    expect(report.foreign + report.repeated == 0, "release");
    sequences_[slot].reset();
    trouble_ = trouble_.empty() ? page_trouble(cache_.ref()) : trouble_;
  }

 private:
  void expect(bool holds, std::string const& what)
  {
    if (!holds && trouble_.empty()) { trouble_ = what + " (step " + std::to_string(steps_) + ")"; }
  }

  [[nodiscard]] std::vector<float> vector(float size)
  {
    auto x = random_.floats(static_cast<std::size_t>(setup_.shape.head_dim), -size, size);
    if (habits_.not_numbers && random_.one_in(200)) { x[3] = std::nanf(""); }
    return x;
  }

  void store(std::uint32_t slot, std::uint32_t layer, int num_tokens)
  {
    cache_shape const& shape = setup_.shape;
    auto const n             = static_cast<std::size_t>(num_tokens);
    std::vector<std::vector<std::vector<float>>> keys(n);
    std::vector<std::vector<std::vector<float>>> values(n);
    std::vector<float> flat_keys;
    std::vector<float> flat_values;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::uint32_t h = 0; h < shape.num_heads; ++h) {
        keys[i].push_back(vector(habits_.key_size));
        values[i].push_back(vector(1.0f));
        flat_keys.insert(flat_keys.end(), keys[i][h].begin(), keys[i][h].end());
        flat_values.insert(flat_values.end(), values[i][h].begin(), values[i][h].end());
      }
    }
    std::vector<std::vector<float>> importances(shape.num_heads);
    std::vector<float> flat;
    for (auto& row : importances) {
      for (std::size_t i = 0; i < n; ++i) {
        float x = random_.uniform(0.0f, 4.0f / static_cast<float>(num_tokens));
        if (habits_.ties) { x = static_cast<float>(random_.between(0, 3)) * 0.0625f; }
        if (habits_.not_numbers && random_.one_in(30)) { x = std::nanf(""); }
        row.push_back(x);
      }
      flat.insert(flat.end(), row.begin(), row.end());
    }
    host::store_prompt(cache_.context(), slot, layer, policy_,
                       packed<float const>(flat_keys.data(), shape.num_heads, shape.head_dim),
                       packed<float const>(flat_values.data(), shape.num_heads, shape.head_dim),
                       flat.data());
    host::scan_candidates(cache_.context(), slot, layer, policy_);
    this->layer(slot, layer).store_prompt(keys, values, importances);
  }

  //! @param refused  of `slots`, by index: they are in the launch and record nothing
  void decode(std::vector<std::uint32_t> const& slots, std::vector<std::uint32_t> const& refused,
              std::uint32_t layer)
  {
    auto const is_refused = [&](std::size_t s) {
      return std::find(refused.begin(), refused.end(), s) != refused.end();
    };
    cache_shape const& shape = setup_.shape;
    auto const count         = static_cast<std::uint32_t>(slots.size());
    std::uint32_t const nq   = shape.num_q_heads();
    std::vector<float> key;
    std::vector<float> value;
    std::vector<float> query;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      for (std::uint32_t h = 0; h < shape.num_heads; ++h) {
        auto const k = vector(habits_.key_size);
        auto const v = vector(1.0f);
        if (!is_refused(s)) { this->layer(slots[s], layer).append(h, k, v); }
        key.insert(key.end(), k.begin(), k.end());
        value.insert(value.end(), v.begin(), v.end());
      }
      for (std::uint32_t q = 0; q < nq; ++q) {
        auto const x = vector(2.0f);
        query.insert(query.end(), x.begin(), x.end());
      }
    }
    host::append(cache_.context(), slots.data(), count, layer,
                 packed<float const>(key.data(), shape.num_heads, shape.head_dim),
                 packed<float const>(value.data(), shape.num_heads, shape.head_dim),
                 packed<float const>(query.data(), nq, shape.head_dim));
    std::vector<float> out(query.size());
    std::vector<float> lse(count * std::size_t{nq});
    host::decode_attention(cache_.context(), slots.data(), count, layer, policy_, setup_.options,
                           packed<float const>(query.data(), nq, shape.head_dim),
                           packed(out.data(), nq, shape.head_dim), lse.data(), true);
    auto const dim            = static_cast<std::size_t>(shape.head_dim);
    int const tokens_of_first = slots.empty() ? 0 : this->layer(slots[0], layer).num_tokens();
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (is_refused(s)) { continue; }
      model_layer& model = this->layer(slots[s], layer);
      for (std::uint32_t q = 0; q < nq; ++q) {
        std::size_t const at = s * nq + q;
        auto const first     = query.begin() + static_cast<std::ptrdiff_t>(at * dim);
        double expected_lse  = 0.0;
        auto const expected  = model.attend(
           q, std::vector<float>(first, first + static_cast<std::ptrdiff_t>(dim)), expected_lse);
        double worst = same(lse[at], expected_lse);
        for (std::size_t d = 0; d < dim; ++d) {
          worst = std::fmax(worst, same(out[at * dim + d], expected[d]));
        }
        expect(worst <= 2e-4, "attention");
      }
      take_scores(slots[s], layer, model.catch_up(tokens_of_first));
      model.after_catch_up();
      compare_candidates(slots[s], layer);
    }
  }

  //! NaN equals NaN here: both sides must show it.
  [[nodiscard]] static double same(double a, double b)
  {
    return std::isnan(a) && std::isnan(b) ? 0.0 : difference(a, b);
  }

  //! Scores of the twin against those of the model; then the model goes on from the twin's, so that
  //! rounding cannot make decisions differ.
  void take_scores(std::uint32_t slot, std::uint32_t layer,
                   std::vector<std::vector<double>> const& scores)
  {
    model_layer& model = this->layer(slot, layer);
    for (std::uint32_t h = 0; h < setup_.shape.num_heads; ++h) {
      row_view const row = cache_.context().row(setup_.shape.row(slot, layer, h));
      std::size_t i      = 0;
      for (tier t : {tier::high, tier::low}) {
        auto& tokens = t == tier::high ? model.rows()[h].high : model.rows()[h].low;
        for (slot_index s = 0; s < tokens.size() && s < row.state().tokens.of(t); ++s, ++i) {
          expect(same(row.score(t, s), scores[h][i]) <= 1e-4, "score");
          tokens[s].score = row.score(t, s);
        }
      }
      expect(i == scores[h].size(), "number of tokens");
    }
    expect(cache_.ref().layer(slot, layer).queries.last_query == model.queries().last,
           "queries summed");
  }

  void compare_candidates(std::uint32_t slot, std::uint32_t layer)
  {
    if (setup_.shape.score_every == 0) { return; }  // made before each step
    for (std::uint32_t h = 0; h < setup_.shape.num_heads; ++h) {
      std::size_t const row = setup_.shape.row(slot, layer, h);
      for (tier t : {tier::high, tier::low}) {
        auto const& expected = this->layer(slot, layer).rows()[h].leave(t);
        std::size_t i        = 0;
        for (std::uint32_t c = 0; c < setup_.shape.candidates_per_tier(); ++c) {
          candidate const& found = cache_.ref().state.candidates_of(row, t)[c];
          if (!found.present()) { continue; }
          expect(i < expected.size() && found.position == expected[i].number - 1 &&
                   found.slot == expected[i].slot && found.priority == expected[i].priority,
                 "candidates");
          ++i;
        }
        expect(i == expected.size(), "number of candidates");
      }
    }
  }

  //! Tokens slot by slot: positions, decoded vectors bit for bit, scores; pages; lengths.
  void compare(std::uint32_t slot)
  {
    for (std::uint32_t l = 0; l < setup_.shape.num_layers; ++l) {
      model_layer& model = this->layer(slot, l);
      expect(cache_.ref().layer(slot, l).num_tokens == model.num_tokens(), "length");
      for (std::uint32_t h = 0; h < setup_.shape.num_heads; ++h) {
        std::size_t const row  = setup_.shape.row(slot, l, h);
        row_state const& state = cache_.ref().state.rows[row];
        expect(state.pages == model.pages(h), "pages");
        for (tier t : {tier::high, tier::low}) {
          auto const& tokens = model.rows()[h].of(t);
          expect(state.tokens.of(t) == tokens.size(), "tokens in a tier");
          if (!trouble_.empty()) { return; }
          auto const keys   = read_keys(cache_.context(), row, t);
          auto const values = read_values(cache_.context(), row, t);
          auto const dim    = static_cast<std::size_t>(setup_.shape.head_dim);
          for (slot_index s = 0; s < tokens.size(); ++s) {
            expect(cache_.context().row(row).position(t, s) == tokens[s].number - 1, "position");
            expect(std::memcmp(keys.data() + s * dim, tokens[s].key.data(), dim * 4) == 0, "key");
            expect(std::memcmp(values.data() + s * dim, tokens[s].value.data(), dim * 4) == 0,
                   "value");
            expect(same(cache_.context().row(row).score(t, s), tokens[s].score) == 0.0, "score");
          }
        }
      }
    }
    trouble_ = trouble_.empty() ? page_trouble(cache_.ref()) : trouble_;
  }

  template <class T>
  static void add_bytes(std::vector<char>& all, T const* from, std::size_t count)
  {
    auto const* bytes = reinterpret_cast<char const*>(from);
    all.insert(all.end(), bytes, bytes + count * sizeof(T));
  }
  //! Everything a sequence owns, but for the append slots that tell of the refusal.
  [[nodiscard]] std::vector<char> bytes_of(std::uint32_t slot)
  {
    cache_ref const& cache = cache_.ref();
    std::vector<char> all;
    add_bytes(all, &cache.layer(slot, 0), setup_.shape.num_layers);
    for (std::size_t r = setup_.shape.row(slot, 0, 0);
         r < setup_.shape.row(slot, 0, 0) + setup_.shape.rows_per_slot(); ++r) {
      row_state const& row = cache.state.rows[r];
      add_bytes(all, &row.tokens, 1);
      add_bytes(all, &row.pages, 1);
      add_bytes(all, &cache.table.entries[r * cache.table.row_entries], cache.table.row_entries);
      add_bytes(all, &cache.state.window_slot(r, 0), static_cast<std::size_t>(setup_.shape.window));
      add_bytes(all, cache.state.candidates_of(r, tier::high),
                std::size_t{2} * setup_.shape.candidates_per_tier());
      for (tier t : {tier::high, tier::low}) {
        for (std::uint32_t p = 0; p < row.pages.of(t); ++p) {
          add_bytes(all, cache.pool.page(cache.table.entry(r, t, p)), cache.pool.page_bytes);
        }
      }
    }
    return all;
  }

  model_setup setup_;
  habits habits_;
  random random_;
  harmonic_table harmonic_;
  any_policy policy_{};
  host_cache cache_;
  std::vector<std::optional<std::vector<model_layer>>> sequences_;
  int refused_       = 0;
  int refused_first_ = 0;
  int steps_         = 0;
  std::string trouble_;
};

}  // namespace diffkv::test
