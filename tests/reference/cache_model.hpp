// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A sequence's life as lists of tokens: prompt, step, scores. Written for comparison with the twins,
//! slot by slot; shares with them the codec and the conditioning of single vectors, nothing else.
#include <diffkv/attention/attention_options.hpp>  // attention_options
#include <diffkv/page/tier_pages.hpp>
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/vector_codec.hpp>
#include <diffkv/table/cache_shape.hpp>

#include <map>

#include "reference/policy_model.hpp"

namespace diffkv::test {

struct model_token {
  int number  = 0;
  float score = 0.0f;
  std::vector<float> key;  //!< decoded, conditioned
  std::vector<float> value;
};

//! A token that may leave, as it was when scores were last updated.
struct model_candidate {
  int number       = 0;
  std::size_t slot = 0;
  float priority   = 0.0f;
};

struct model_row {
  std::vector<model_token> high;
  std::vector<model_token> low;
  std::vector<model_candidate> leave_high;
  std::vector<model_candidate> leave_low;
  std::size_t append_slot = 0;

  [[nodiscard]] std::vector<model_token> const& of(tier t) const
  {
    return t == tier::high ? high : low;
  }
  [[nodiscard]] std::vector<model_candidate> const& leave(tier t) const
  {
    return t == tier::high ? leave_high : leave_low;
  }
};

//! A query as it was asked, and the log-sum-exp it met.
struct model_query {
  std::vector<float> q;  //!< conditioned
  double offset = 0.0;   //!< scale * q.c
  double lse    = 0.0;   //!< over the conditioned logits
};

struct model_setup {
  cache_shape shape{};
  tier_pages tiers{};
  conditioning conditioned = conditioning::none;
  std::vector<float> key_offsets{};  //!< [num_layers * num_heads, head_dim] or empty
  model_policy policy{};
  std::vector<thresholds> limits{};  //!< [num_slots, num_layers, num_heads]
  attention_options options{};
};

//! One (sequence, layer): its rows, and which queries they have seen.
class model_layer {
 public:
  model_layer(model_setup const& setup, std::uint32_t slot, std::uint32_t layer)
    : setup_{&setup}, slot_{slot}, layer_{layer}, rows_(setup.shape.num_heads)
  {}

  [[nodiscard]] std::vector<model_row>& rows() { return rows_; }
  [[nodiscard]] int num_tokens() const { return num_tokens_; }
  [[nodiscard]] model_queries const& queries() const { return queries_; }

  //! @param key, value  [tokens][head] vectors as the model of the LLM makes them
  void store_prompt(std::vector<std::vector<std::vector<float>>> const& key,
                    std::vector<std::vector<std::vector<float>>> const& value,
                    std::vector<std::vector<float>> const& importances)
  {
    int const n = static_cast<int>(key.size());
    num_tokens_ = n;
    queries_    = {n, setup_->policy.prompt_queries(n), n};
    for (std::uint32_t head = 0; head < rows_.size(); ++head) {
      auto const tiers = setup_->policy.prompt_tiers(importances[head], setup_->shape.window,
                                                     limits(head), setup_->tiers.has_low);
      for (int number = 1; number <= n; ++number) {
        auto const i    = static_cast<std::size_t>(number - 1);
        int const count = queries_.count(number);
        if (tiers[i] == tier::pruned) { continue; }
        model_token token = encode(key[i][head], value[i][head], head, tiers[i]);
        token.number      = number;
        token.score       = count > 0 ? importances[head][i] * static_cast<float>(count) : 0.0f;
        (tiers[i] == tier::high ? rows_[head].high : rows_[head].low).push_back(token);
      }
    }
    find_candidates(n);
  }

  //! Which tokens leave which part when token number N = num_tokens + 1 arrives; no page is asked.
  void step()
  {
    if (setup_->shape.score_every == 0) { find_candidates(num_tokens_); }
    ++num_tokens_;
    for (std::uint32_t head = 0; head < rows_.size(); ++head) { step_row(head); }
  }

  void append(std::uint32_t head, std::vector<float> const& key, std::vector<float> const& value)
  {
    model_token token                         = encode(key, value, head, tier::high);
    token.number                              = num_tokens_;
    rows_[head].high[rows_[head].append_slot] = token;
  }

  //! Attention of one q_head of the newest token: remembered for the scores.
  //! @return the output; `lse` gets the log-sum-exp over the logits without conditioning
  std::vector<float> attend(std::uint32_t q_head, std::vector<float> q, double& lse)
  {
    auto const dim           = q.size();
    std::uint32_t const head = q_head / setup_->shape.group_size;
    model_query query{};
    if (float const* c = centre(head)) {
      double dot = 0.0;
      for (std::size_t d = 0; d < dim; ++d) {
        dot += static_cast<double>(q[d]) * static_cast<double>(c[d]);
      }
      query.offset = static_cast<double>(setup_->options.scale) * dot;
    }
    condition_rotation(q.data(), static_cast<int>(dim), setup_->conditioned);
    query.q = q;
    std::vector<double> logits;
    std::vector<model_token const*> tokens;
    double largest = -std::numeric_limits<double>::infinity();
    for (tier t : {tier::high, tier::low}) {
      for (model_token const& token : rows_[head].of(t)) {
        if (outside_window(token.number, num_tokens_)) { continue; }
        logits.push_back(logit(q, 1.0, token, query.offset));
        tokens.push_back(&token);
        largest = std::isnan(logits.back()) ? largest : std::fmax(largest, logits.back());
      }
    }
    double sum = 0.0;
    std::vector<double> out(dim, 0.0);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      double const weight = std::exp(logits[i] - largest);
      sum += weight;
      for (std::size_t d = 0; d < dim; ++d) {
        out[d] += weight * static_cast<double>(tokens[i]->value[d]);
      }
    }
    for (double& x : out) { x = sum == 0.0 ? 0.0 : x / sum; }
    query.lse                     = largest + std::log(sum);
    asked_[{num_tokens_, q_head}] = query;
    lse = query.lse + (setup_->options.soft_cap > 0.0f ? 0.0 : query.offset);
    std::vector<float> back(out.begin(), out.end());
    condition_rotation(back.data(), static_cast<int>(dim), setup_->conditioned);
    return back;
  }

  //! After all q_heads have attended: at a catch-up every query not yet summed adds to the tokens
  //! older than itself. @return the new scores, f64, [head][high slots, then low slots]
  //! @param tokens_of_first  of the batch's first sequence
  std::vector<std::vector<double>> catch_up(int tokens_of_first)
  {
    std::vector<std::vector<double>> scores(rows_.size());
    int const k         = setup_->shape.score_every;
    bool const by_batch = setup_->shape.schedule == catch_up_schedule::by_batch;
    int const position  = (by_batch ? tokens_of_first : num_tokens_) - 1;
    bool const is_turn  = k > 0 && (position + static_cast<int>(layer_)) % k == 0;
    caught_up_          = is_turn || (k > 0 && num_tokens_ - 1 - queries_.last == k);
    for (std::uint32_t head = 0; head < rows_.size(); ++head) {
      for (tier t : {tier::high, tier::low}) {
        bool const rounds =
          setup_->tiers.of(t).format.key.bits < 16 && !setup_->options.exact_lagged_queries;
        for (model_token const& token : rows_[head].of(t)) {
          double score = static_cast<double>(token.score);
          for (int query = queries_.last + 1; caught_up_ && query < num_tokens_; ++query) {
            if (token.number < query) { score += probability(token, head, query, rounds); }
          }
          scores[head].push_back(score);
        }
      }
    }
    if (caught_up_) { queries_.last = num_tokens_ - 1; }
    for (auto it = asked_.begin(); it != asked_.end();) {
      it = k == 0 || it->first.first <= queries_.last ? asked_.erase(it) : std::next(it);
    }
    return scores;
  }
  //! Once the scores have been compared and taken over from the twin, to the bit.
  void after_catch_up()
  {
    if (caught_up_) { find_candidates(num_tokens_); }
  }

  //! Pages that the tokens of a row need.
  [[nodiscard]] tier_counts pages(std::uint32_t head) const
  {
    return {
      setup_->tiers.pages_for(tier::high, static_cast<std::uint32_t>(rows_[head].high.size())),
      setup_->tiers.pages_for(tier::low, static_cast<std::uint32_t>(rows_[head].low.size()))};
  }

 private:
  [[nodiscard]] thresholds limits(std::uint32_t head) const
  {
    return setup_->limits[setup_->shape.row(slot_, layer_, head)];
  }
  [[nodiscard]] float const* centre(std::uint32_t head) const
  {
    if (setup_->key_offsets.empty()) { return nullptr; }
    return setup_->key_offsets.data() + (layer_ * setup_->shape.num_heads + head) *
                                          static_cast<std::size_t>(setup_->shape.head_dim);
  }
  [[nodiscard]] bool outside_window(int number, int query) const
  {
    int const window = setup_->options.sliding_window;
    return window > 0 && number <= query - window;
  }

  [[nodiscard]] static std::vector<float> through(std::vector<float> const& x, code_spec spec)
  {
    coded_vector coded{};
    std::vector<float> decoded(x.size());
    encode_vector(x.data(), static_cast<int>(x.size()), spec, coded);
    decode_vector(coded, static_cast<int>(x.size()), spec, decoded.data());
    return decoded;
  }
  [[nodiscard]] model_token encode(std::vector<float> key, std::vector<float> value,
                                   std::uint32_t head, tier t) const
  {
    auto const dim = setup_->shape.head_dim;
    condition_key(key.data(), centre(head), dim, setup_->conditioned);
    condition_rotation(value.data(), dim, setup_->conditioned);
    format_spec const& format = setup_->tiers.of(t).format;
    return {0, 0.0f, through(key, format.key), through(value, format.value)};
  }
  [[nodiscard]] model_token demoted(model_token token) const
  {
    format_spec const& format = setup_->tiers.low.format;
    token.key                 = through(token.key, format.key);
    token.value               = through(token.value, format.value);
    return token;
  }

  [[nodiscard]] double logit(std::vector<float> const& q, double factor, model_token const& token,
                             double offset) const
  {
    double dot = 0.0;
    for (std::size_t d = 0; d < q.size(); ++d) {
      dot += static_cast<double>(q[d]) * static_cast<double>(token.key[d]);
    }
    double const product = static_cast<double>(setup_->options.scale) * factor * dot;
    double const cap     = static_cast<double>(setup_->options.soft_cap);
    return cap > 0.0 ? cap * std::tanh((product + offset) / cap) : product;
  }

  [[nodiscard]] double probability(model_token const& token, std::uint32_t head, int query,
                                   bool rounds) const
  {
    if (outside_window(token.number, query)) { return 0.0; }
    double largest = 0.0;
    for (std::uint32_t g = 0; g < setup_->shape.group_size; ++g) {
      model_query const& asked = asked_.at({query, head * setup_->shape.group_size + g});
      std::vector<float> q     = asked.q;
      double factor            = 1.0;
      if (rounds) {
        float m = 0.0f;
        for (float const x : q) { m = std::fabs(x) > m ? std::fabs(x) : m; }
        for (float& x : q) { x = m == 0.0f ? 0.0f : std::nearbyint(x * 127.0f / m); }
        factor = static_cast<double>(m) / 127.0;
      }
      double const p = std::exp(logit(q, factor, token, asked.offset) - asked.lse);
      largest        = std::isfinite(p) ? std::fmax(largest, p) : largest;
    }
    return largest;
  }

  void step_row(std::uint32_t head);
  void find_candidates(int num_tokens);

  model_setup const* setup_;
  std::uint32_t slot_;
  std::uint32_t layer_;
  std::vector<model_row> rows_;
  int num_tokens_ = 0;
  bool caught_up_ = false;
  model_queries queries_{};
  std::map<std::pair<int, std::uint32_t>, model_query> asked_;  // all not yet summed
};

//! Per tier and page ordinal mod max(1, k): the eligible token with the least priority, of equals the
//! one with the lowest position.
inline void model_layer::find_candidates(int num_tokens)
{
  int const places = std::max(1, setup_->shape.score_every);
  for (model_row& row : rows_) {
    for (tier t : {tier::high, tier::low}) {
      std::map<int, model_candidate> best;
      for (std::size_t slot = 0; slot < row.of(t).size(); ++slot) {
        model_token const& token = row.of(t)[slot];
        int const count          = queries_.count(token.number);
        if (count == 0 || std::isnan(token.score)) { continue; }
        if (t == tier::high && token.number > num_tokens - setup_->shape.window) { continue; }
        float const importance = token.score / static_cast<float>(count);
        model_candidate const c{token.number, slot,
                                setup_->policy.priority(importance, token.number, num_tokens)};
        auto const page = slot / static_cast<std::size_t>(setup_->tiers.of(t).tokens_per_page);
        auto const [at, is_new] = best.insert({static_cast<int>(page) % places, c});
        if (!is_new && (c.priority < at->second.priority ||
                        (c.priority == at->second.priority && c.number < at->second.number))) {
          at->second = c;
        }
      }
      auto& all = t == tier::high ? row.leave_high : row.leave_low;
      all.clear();
      for (auto const& [place, c] : best) { all.push_back(c); }
    }
  }
}

}  // namespace diffkv::test
