// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Says which token the kernel `sample` chooses; the kernel chooses the same, always.
//! Read before this: llama3/cuda/sampling.hpp.  Read next: llama3/cuda/kernels.hpp.
#include "llama3/cuda/sampling.hpp"
#include "llama3/token_id.hpp"

#include <algorithm>  // min, sort
#include <cmath>      // isinf
#include <cstddef>    // size_t
#include <vector>

namespace llama3 {
//! The next token of one sequence. NaN and -inf are passed over; +inf counts as certain; of equal
//! logits the lowest id wins (greedy) or is kept first (top-p).
//! @param logits    [vocab] f32
//! @param num_ids   ids from here on are never chosen
//! @param position  of the token that is chosen; with the seed all that chance depends on
//! @return  an id below num_ids and vocab, or nothing_to_choose
//! @pre     vocab <= max_sampled_ids
[[nodiscard]] inline token_id sample_on_host(float const* logits, int vocab, int num_ids,
                                             sampling const& options, std::int32_t position)
{
  struct candidate {
    std::uint32_t key;
    token_id id;
    std::uint64_t weight;
  };
  std::vector<candidate> candidates;
  for (token_id id = 0; id < std::min(vocab, num_ids); ++id) {
    std::uint32_t const key = logit_key(logits[id]);
    if (key != 0) { candidates.push_back({key, id, 0}); }
  }
  if (candidates.empty()) { return nothing_to_choose; }

  // The most likely first.
  std::sort(candidates.begin(), candidates.end(), [](candidate const& a, candidate const& b) {
    return a.key != b.key ? a.key > b.key : a.id < b.id;
  });
  float const largest = logit_of_key(candidates[0].key);
  if (!(options.temperature > 0.0f) || std::isinf(largest)) { return candidates[0].id; }

  std::uint64_t sum = 0;
  for (candidate& c : candidates) {
    c.weight = token_weight(logits[c.id], largest, weight_scale(options.temperature));
    sum += c.weight;
  }
  std::uint64_t const wanted = wanted_weight(sum, options.top_p);
  std::uint64_t kept         = 0;
  std::size_t num_kept       = 0;
  while (kept < wanted) { kept += candidates[num_kept++].weight; }

  // Inverse of the cumulative distribution, ids ascending.
  candidates.resize(num_kept);
  std::sort(candidates.begin(), candidates.end(),
            [](candidate const& a, candidate const& b) { return a.id < b.id; });
  std::uint64_t const drawn = scaled_word(random_word(options.seed, position), kept);
  std::uint64_t passed      = 0;
  std::size_t i             = 0;
  while ((passed += candidates[i].weight) <= drawn) { ++i; }
  return candidates[i].id;
}
}  // namespace llama3
