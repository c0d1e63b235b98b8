// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/comparison.hpp"

#include "llama3/sampler.hpp"

#include <algorithm>  // max_element
#include <cmath>      // exp, log

namespace llama3 {

namespace {

//! log softmax in f64.
std::vector<double> log_probabilities(std::vector<float> const& logits)
{
  double const max = *std::max_element(logits.begin(), logits.end());
  double sum       = 0.0;
  for (float logit : logits) { sum += std::exp(logit - max); }
  double const lse = max + std::log(sum);
  std::vector<double> result;
  result.reserve(logits.size());
  for (float logit : logits) { result.push_back(logit - lse); }
  return result;
}

}  // namespace

double comparison::mean_kl() const
{
  double sum = 0.0;
  for (auto const& p : positions) { sum += p.kl; }
  return positions.empty() ? 0.0 : sum / static_cast<double>(positions.size());
}

double comparison::agreement() const
{
  auto const agreeing = std::count_if(positions.begin(), positions.end(),
                                      [](compared_position const& p) { return p.agrees; });
  return positions.empty() ? 1.0
                           : static_cast<double>(agreeing) / static_cast<double>(positions.size());
}

double comparison::perplexity_ratio() const
{
  double sum = 0.0;
  for (auto const& p : positions) { sum += p.log_probability - p.log_probability_compressed; }
  return positions.empty() ? 1.0 : std::exp(sum / static_cast<double>(positions.size()));
}

compared_position compare_logits(std::vector<float> const& reference,
                                 std::vector<float> const& other, token_id next)
{
  auto const p = log_probabilities(reference);
  auto const q = log_probabilities(other);
  compared_position result;
  for (std::size_t i = 0; i < p.size(); ++i) {
    double const probability = std::exp(p[i]);
    if (probability > 0.0) { result.kl += probability * (p[i] - q[i]); }  // 0 log 0 is 0
  }
  result.agrees                     = sampler::greedy(reference) == sampler::greedy(other);
  result.log_probability            = p.at(static_cast<std::size_t>(next));
  result.log_probability_compressed = q.at(static_cast<std::size_t>(next));
  return result;
}

comparison compare(session& reference, session& other, std::vector<token_id> const& prompt,
                   std::vector<token_id> const& continuation, int count,
                   compare_progress const& progress)
{
  auto const token_at = [&](std::size_t i, std::vector<float> const& logits) {
    return i < continuation.size() ? continuation[i] : sampler::greedy(logits);
  };
  comparison result;
  std::vector<float> const start = reference.prompt(prompt, progress.reference_prompt);
  other.clear_times();
  static_cast<void>(other.prompt(prompt, progress.other_prompt));
  result.prompt_time = other.times();

  other.clear_times();
  token_id next = token_at(0, start);
  for (int i = 0; i < count; ++i) {
    std::vector<float> const a = reference.decode(next);
    std::vector<float> const b = other.decode(next);
    next                       = token_at(static_cast<std::size_t>(i) + 1, a);
    result.positions.push_back(compare_logits(a, b, next));
    if (progress.tokens) { progress.tokens(i + 1, count); }
  }
  result.decode_time = other.times();
  return result;
}

}  // namespace llama3
