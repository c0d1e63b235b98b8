// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Scores that arrive late: every query reaches every older token exactly once, rounded as promised.
#include <diffkv/host/decode_attention.hpp>
#include <diffkv/host/prompt.hpp>
#include <diffkv/host/step.hpp>
#include <diffkv/policy/paper.hpp>

#include <algorithm>
#include <memory>

#include "reference/attention_f64.hpp"
#include "support/catch.hpp"
#include "support/difference.hpp"

namespace {
using diffkv::attention_options;
using diffkv::paper_policy;
using diffkv::tier;
using diffkv::test::difference;
using diffkv::test::host_cache;

//! A sequence whose keys, values and queries are made by functions of (position, layer); a window
//! that keeps every token unless told otherwise.
struct sequence {
  diffkv::test::host_cache_parts parts{};
  attention_options options{};
  std::unique_ptr<host_cache> cache;
  diffkv::test::random random{51};
  float key_size   = 1.0f;
  float query_size = 1.0f;
  bool keeps_f32   = false;  //!< the lag ring, though queries are rounded

  explicit sequence(int k, std::uint32_t num_layers, std::uint32_t group_size = 1)
  {
    parts.shape.num_layers  = num_layers;
    parts.shape.group_size  = group_size;
    parts.shape.head_dim    = 64;
    parts.shape.max_tokens  = 80;
    parts.shape.window      = 80;
    parts.shape.score_every = k;
    parts.tiers     = diffkv::test::short_tiers(diffkv::k8v4::spec, 5, diffkv::k4v2::spec, 7, 64);
    parts.num_pages = 20 * num_layers;
    parts.limits    = {{0.0f, 0.0f}};
    options         = {0.125f};
  }
  void admit(int num_tokens)
  {
    parts.exact_lagged_queries = options.exact_lagged_queries || keeps_f32;
    cache                      = std::make_unique<host_cache>(parts);
    diffkv::host::admission const one{0, num_tokens};
    REQUIRE(diffkv::host::admit(cache->context(), &one, 1, paper_policy{}) == 0);
    auto const n = static_cast<std::size_t>(num_tokens);
    for (std::uint32_t l = 0; l < parts.shape.num_layers; ++l) {
      auto const x = random.floats(n * 64, -key_size, key_size);
      std::vector<float> const importances(n, 0.0f);
      auto const v = diffkv::packed<float const>(x.data(), 1, 64);
      diffkv::host::store_prompt(cache->context(), 0, l, paper_policy{}, v, v, importances.data());
      diffkv::host::scan_candidates(cache->context(), 0, l, paper_policy{});
    }
  }
  void step()
  {
    std::uint32_t const slot = 0;
    REQUIRE(diffkv::host::step(cache->context(), &slot, 1, paper_policy{}) == 0);
    for (std::uint32_t l = 0; l < parts.shape.num_layers; ++l) {
      auto const k = random.floats(64, -key_size, key_size);
      auto const q =
        random.floats(parts.shape.group_size * std::size_t{64}, -query_size, query_size);
      append_and_decode(l, k, q);
    }
  }
  void append_and_decode(std::uint32_t layer, std::vector<float> const& k,
                         std::vector<float> const& q)
  {
    std::uint32_t const slot = 0;
    std::vector<float> out(q.size());
    auto const queries = diffkv::packed<float const>(q.data(), parts.shape.group_size, 64);
    auto const keys    = diffkv::packed<float const>(k.data(), 1, 64);
    diffkv::host::append(cache->context(), &slot, 1, layer, keys, keys, queries);
    diffkv::host::decode_attention(cache->context(), &slot, 1, layer, paper_policy{}, options,
                                   queries, diffkv::packed(out.data(), parts.shape.group_size, 64),
                                   nullptr, true);
  }
  //! Score by position; all tokens are in the high tier here.
  std::vector<double> scores(std::uint32_t layer) const
  {
    diffkv::row_view const row = cache->context().row(cache->shape().row(0, layer, 0));
    std::vector<double> all(row.state().tokens.high, -1.0);
    for (std::uint32_t s = 0; s < row.state().tokens.high; ++s) {
      all[static_cast<std::size_t>(row.position(tier::high, s))] =
        static_cast<double>(row.score(tier::high, s));
    }
    return all;
  }
};
}  // namespace

TEST_CASE("decode_attention: every query reaches every older token exactly once", "[host]")
{
  // Keys of zeros: the query at position j gives 1 / (j + 1) to each token, so that the sum over
  // any set of queries tells which they were.
  for (int const k : {1, 2, 4}) {
    for (int const prompt : {0, 1, 2, 3, 4, 5, 17}) {
      sequence s{k, 6};
      s.key_size = 0.0f;
      s.admit(prompt);
      for (int t = prompt; t < prompt + 14; ++t) {
        s.step();
        for (std::uint32_t layer = 0; layer < 6; ++layer) {
          CAPTURE(k, prompt, t, layer);
          // The last launch of this layer that caught up, if there was one.
          int last = t;
          while (last >= prompt && (last + static_cast<int>(layer)) % k != 0) { --last; }
          std::vector<double> expected(static_cast<std::size_t>(t) + 1, 0.0);
          for (int query = prompt; query < last; ++query) {
            for (int token = 0; token < query; ++token) {
              expected[static_cast<std::size_t>(token)] += 1.0 / (query + 1);
            }
          }
          CHECK(difference(s.scores(layer), expected) <= 1e-6);
          // Counts match what is in the scores.
          diffkv::query_span const& queries = s.cache->ref().layer(0, layer).queries;
          CHECK(queries.last_query == std::max(prompt, last));
          if (last > prompt && last > 1) {
            int const in_first = queries.count(1) - (prompt > 0 ? prompt - 1 : 0);
            CHECK(in_first == last - std::max(prompt, 1));
          }
        }
      }
    }
  }
}

TEST_CASE("decode_attention: after each catch-up all lags have the same scores", "[host]")
{
  // Exact queries: the sums differ by rounding alone, whatever k.
  std::vector<std::vector<double>> by_lag;
  for (int const k : {1, 2, 4}) {
    sequence s{k, 1, 3};
    s.options.exact_lagged_queries = true;
    s.query_size                   = 3.0f;
    s.admit(8);
    for (int i = 0; i < 17; ++i) { s.step(); }  // the last at position 24, a multiple of 4
    CHECK(s.cache->ref().layer(0, 0).queries.last_query == 24);
    by_lag.push_back(s.scores(0));
  }
  CHECK(difference(by_lag[0], by_lag[1]) <= 1e-5);
  CHECK(difference(by_lag[0], by_lag[2]) <= 1e-5);
}

TEST_CASE("decode_attention: scores do not depend on when a query is rounded", "[host]")
{
  sequence rounded_at_once{4, 2, 3};
  sequence kept_whole{4, 2, 3};
  kept_whole.keeps_f32 = true;
  for (sequence* s : {&rounded_at_once, &kept_whole}) {
    s->admit(8);
    for (int i = 0; i < 17; ++i) { s->step(); }
  }
  CHECK(rounded_at_once.cache->ref().queries.rounding == diffkv::lag_rounding::int8);
  CHECK(kept_whole.cache->ref().queries.rounding == diffkv::lag_rounding::none);
  for (std::uint32_t layer : {0u, 1u}) {
    CHECK(rounded_at_once.scores(layer) == kept_whole.scores(layer));
  }
}

TEST_CASE("decode_attention: exact queries from a ring of codes are refused", "[host]")
{
  sequence s{1, 1};
  s.admit(3);
  s.step();
  s.options.exact_lagged_queries = true;
  CHECK_THROWS_WITH(s.step(), diffkv::test::contains("exact_lagged_queries"));
}

TEST_CASE("decode_attention: each query adds the maximum of its group's probabilities", "[host]")
{
  for (bool const centred : {false, true}) {
    for (float const soft_cap : {0.0f, 2.0f}) {
      CAPTURE(centred, soft_cap);
      sequence s{1, 1, 3};
      s.options.exact_lagged_queries = true;
      s.options.soft_cap             = soft_cap;
      if (centred) {
        s.parts.conditioned = diffkv::conditioning::centred | diffkv::conditioning::rotated;
        s.parts.key_offsets = s.random.floats(64, -2.0f, 2.0f);
      }
      s.admit(6);
      std::vector<double> expected(6, 0.0);
      std::vector<double> pending;  // of the query not yet summed
      std::uint32_t const slot = 0;
      for (int i = 0; i < 12; ++i) {
        REQUIRE(diffkv::host::step(s.cache->context(), &slot, 1, paper_policy{}) == 0);
        auto const q = s.random.floats(3 * 64, -2.0f, 2.0f);
        s.append_and_decode(0, s.random.floats(64, -1.0f, 1.0f), q);
        for (std::size_t token = 0; token < pending.size(); ++token) {
          expected[token] += pending[token];
        }
        expected.push_back(0.0);
        auto const tokens = diffkv::test::tokens_of(s.cache->context(), 0, 0, 0);
        pending.assign(tokens.size() - 1, 0.0);
        for (std::size_t g = 0; g < 3; ++g) {
          auto const a = diffkv::test::attend_f64(tokens, q.data() + g * 64, 64,
                                                  static_cast<int>(tokens.size()) - 1, s.options);
          for (std::size_t slot_of = 0; slot_of < tokens.size(); ++slot_of) {
            auto const position = static_cast<std::size_t>(tokens[slot_of].position);
            if (position == pending.size()) { continue; }  // its own query does not count
            pending[position] = std::max(pending[position], a.probabilities[slot_of]);
          }
        }
        CHECK(difference(s.scores(0), expected) <= 1e-5);
      }
    }
  }
}

TEST_CASE("decode_attention: 8-bit lagged queries stay within their bound, exact ones exact",
          "[host]")
{
  std::uint32_t const slot = 0;
  for (bool const exact : {false, true}) {
    double moved = 0.0;
    for (int run = 0; run < 10; ++run) {
      sequence s{1, 1, 1};
      for (int skip = 0; skip < run; ++skip) { static_cast<void>(s.random.next()); }
      s.options.exact_lagged_queries = exact;
      s.admit(20);
      REQUIRE(diffkv::host::step(s.cache->context(), &slot, 1, paper_policy{}) == 0);
      auto const q = s.random.floats(64, -8.0f, 8.0f);
      s.append_and_decode(0, s.random.floats(64, -1.0f, 1.0f), q);
      auto const tokens = diffkv::test::tokens_of(s.cache->context(), 0, 0, 0);
      auto const asked  = diffkv::test::attend_f64(tokens, q.data(), 64, 20, s.options);
      s.step();  // adds the query of position 20
      auto const scores = s.scores(0);
      double m          = 0.0;
      for (float const x : q) { m = std::fmax(m, std::fabs(static_cast<double>(x))); }
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        auto const position = static_cast<std::size_t>(tokens[i].position);
        if (position == 20) { continue; }
        double size = 0.0;  // sum of |k'|
        for (double const x : tokens[i].key) { size += std::fabs(x); }
        double const logit_by = 0.125 * (m / 254.0) * size;  // half a step of each element
        double const p        = asked.probabilities[i];
        double const error    = std::fabs(scores[position] - p);
        CHECK(error <= (exact ? 1e-6 : p * (std::exp(logit_by) - 1.0) + 1e-6));
        moved = std::fmax(moved, error);
      }
    }
    CHECK((moved > 1e-5) == !exact);  // 8-bit queries really are rounded
  }
}

TEST_CASE("decode_attention: with score_every = 0 nothing is scored and no generated token leaves",
          "[host]")
{
  sequence s{0, 2};
  s.parts.shape.window = 2;
  s.parts.limits       = {{1e6f, 1e6f}};  // everything that may leave does
  s.admit(10);
  CHECK(s.cache->ref().state.rows[0].tokens.high == 2);
  for (int i = 0; i < 6; ++i) {
    std::uint32_t const slot = 0;
    for (std::uint32_t l = 0; l < 2; ++l) {
      diffkv::host::scan_candidates(s.cache->context(), slot, l, paper_policy{});
    }
    s.step();
    CHECK(s.cache->ref().layer(0, 1).queries.last_query == 10);
    CHECK(s.cache->ref().layer(0, 1).queries.prompt_tokens == 10);
  }
  // Position 8 was seen by one prompt query and left; 9 has no query and stays, as the new ones do.
  diffkv::row_view const row = s.cache->context().row(0);
  CHECK(row.state().tokens == diffkv::tier_counts{7, 0});
  std::vector<int> positions;
  for (std::uint32_t t = 0; t < 7; ++t) {
    positions.push_back(row.position(tier::high, t));
    CHECK(row.score(tier::high, t) == 0.0f);
  }
  std::sort(positions.begin(), positions.end());
  CHECK(positions == std::vector<int>{9, 10, 11, 12, 13, 14, 15});
}

TEST_CASE("decode_attention: a bad query adds nothing to the scores", "[host]")
{
  for (float const bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (bool const exact : {false, true}) {
      std::uint32_t const slot = 0;
      sequence clean{1, 1, 2};
      sequence spoilt{1, 1, 2};
      for (sequence* s : {&clean, &spoilt}) {
        s->options.exact_lagged_queries = exact;
        s->admit(9);
        s->step();
        REQUIRE(diffkv::host::step(s->cache->context(), &slot, 1, paper_policy{}) == 0);
        auto q = s->random.floats(2 * 64, -1.0f, 1.0f);
        for (std::size_t d = 64; d < 128; ++d) { q[d] = q[d - 64]; }  // the group agrees
        if (s == &spoilt) { q[70] = bad; }
        s->append_and_decode(0, s->random.floats(64, -1.0f, 1.0f), q);
        s->step();
      }
      // The other q_head of the group still counts.
      CHECK(spoilt.scores(0) == clean.scores(0));
    }
  }
}

TEST_CASE("decode_attention: without record nothing but the output is written", "[host]")
{
  sequence s{1, 1};
  s.admit(5);
  s.step();
  s.step();
  auto const scores = s.scores(0);
  auto const span   = s.cache->ref().layer(0, 0).queries;
  std::vector<float> const q(64, 1.0f);
  std::vector<float> out(64);
  std::uint32_t const slot = 0;
  diffkv::host::decode_attention(s.cache->context(), &slot, 1, 0, paper_policy{}, s.options,
                                 diffkv::packed(q.data(), 1, 64), diffkv::packed(out.data(), 1, 64),
                                 nullptr, false);
  CHECK(s.scores(0) == scores);
  CHECK(s.cache->ref().layer(0, 0).queries.last_query == span.last_query);
}
