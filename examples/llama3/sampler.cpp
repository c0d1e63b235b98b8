// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/sampler.hpp"

#include <algorithm>  // make_heap, min, pop_heap
#include <cmath>      // exp, isfinite, isnan
#include <limits>
#include <stdexcept>  // invalid_argument, runtime_error
#include <string>

namespace llama3 {
sampler::sampler(sampler_options const& options) : options_(options), engine_(options.seed)
{
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw std::invalid_argument("temperature must be 0 or more, not " +
                                std::to_string(options.temperature));
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw std::invalid_argument("top-p must be above 0 and at most 1, not " +
                                std::to_string(options.top_p));
  }
  if (options.num_ids == 0) { throw std::invalid_argument("num_ids must be at least 1"); }
}

token_id sampler::greedy(logits_view logits, std::size_t num_ids)
{
  std::size_t const count = std::min(logits.size, num_ids);
  token_id best           = -1;
  float best_logit        = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    // False for NaN and for -inf; of equal logits the first stays.
    if (logits.data[i] > best_logit) {
      best       = static_cast<token_id>(i);
      best_logit = logits.data[i];
    }
  }
  if (best < 0) {
    throw std::runtime_error("no token to choose: each of the " + std::to_string(count) +
                             " logits is NaN or -inf, so the model's output is broken");
  }
  return best;
}

token_id sampler::sample(logits_view logits)
{
  token_id const likeliest = greedy(logits, options_.num_ids);
  if (options_.temperature == 0.0) { return likeliest; }
  double const largest = logits.data[likeliest];
  if (std::isinf(largest)) { return likeliest; }

  std::size_t const count = std::min(logits.size, options_.num_ids);
  weights_.clear();
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(logits.data[i])) { continue; }
    double const weight = std::exp((logits.data[i] - largest) / options_.temperature);
    if (weight == 0.0) { continue; }
    weights_.emplace_back(weight, static_cast<token_id>(i));
    sum += weight;
  }

  auto first = weights_.begin();  // [first, end) may be chosen
  if (options_.top_p < 1.0) {
    auto const less_likely = [](auto const& a, auto const& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    };
    // A heap yields the few tokens that top-p keeps without sorting the whole vocabulary.
    std::make_heap(weights_.begin(), weights_.end(), less_likely);
    first               = weights_.end();
    double const wanted = options_.top_p * sum;
    double reached      = 0.0;
    while (first != weights_.begin() && reached < wanted) {
      std::pop_heap(weights_.begin(), first, less_likely);
      reached += (--first)->first;
    }
    sum = reached;
  }

  double left = unit_interval(engine_()) * sum;
  for (auto candidate = first; candidate != weights_.end(); ++candidate) {
    left -= candidate->first;
    if (left < 0.0) { return candidate->second; }
  }
  return weights_.back().second;  // rounding may leave a last sliver of the sum
}
}  // namespace llama3
