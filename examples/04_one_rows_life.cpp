// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What this teaches: one row's life, from its prompt to its release.
//   1. admit: pages are claimed for the worst case; store_prompt: each token gets the tier that it
//      deserves, surplus pages go back.
//   2. step, append, decode: the newest tokens are always high; what leaves the window is judged by
//      the attention that it gets: it stays high, goes low or is pruned.
//   3. Attention over what is left stays near the exact answer, at less than a third of the bytes.
//   4. release: every page is free again.
// No GPU is needed. The program ends with 0 if every answer is as it must be.
#include <diffkv/cache/kv_cache.hpp>
#include <diffkv/policy/relative.hpp>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

constexpr int head_dim      = 64;
constexpr int prompt_tokens = 30;
constexpr int all_tokens    = 90;
constexpr int topic_tokens  = 6;

int main()
{
  bool right = true;

  // --- The row's vectors. The first tokens speak of topic A, and the prompt's queries ask for it;
  // the answer asks for topic B, of which every fifth of its own tokens speaks.
  std::vector<float> keys(all_tokens * head_dim);     // [all_tokens, head_dim] f32
  std::vector<float> values(all_tokens * head_dim);   // [all_tokens, head_dim] f32
  std::vector<float> queries(all_tokens * head_dim);  // [all_tokens, head_dim] f32
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  for (int t = 0; t < all_tokens; ++t) {
    for (int d = 0; d < head_dim; ++d) {
      bool const topic_a = d < 8;
      bool const topic_b = d >= 8 && d < 16;
      float key          = 0.3f * normal(random);
      float query        = 0.3f * normal(random);
      if (topic_a && t < topic_tokens) { key += 3.0f; }
      if (topic_b && t >= prompt_tokens && t % 5 == 0) { key += 3.0f; }
      if (topic_a && t < prompt_tokens) { query += 1.5f; }
      if (topic_b && t >= prompt_tokens) { query += 1.5f; }
      std::size_t const i = static_cast<std::size_t>(t * head_dim + d);
      keys[i]             = key;
      queries[i]          = query;
      values[i]           = normal(random);
    }
  }
  auto const from = [&](std::vector<float>& x, int token) {
    return diffkv::packed(x.data() + token * head_dim, /*num_heads=*/1, head_dim);
  };

  // --- A cache for one sequence of one layer and one head, in pages of 16 tokens.
  diffkv::cache_options options;
  options.shape.head_dim    = head_dim;
  options.shape.max_tokens  = all_tokens;
  options.shape.window      = 8;
  options.shape.score_every = 1;  // queries are added to the scores one step late
  options.high              = diffkv::k8v4::spec;
  options.low               = diffkv::k4v2::spec;
  options.limits            = {/*high=*/2.0f, /*low=*/0.1f};
  options.page_bytes        = 1792;
  options.num_pages         = 8;
  options.checked_ring      = true;
  diffkv::harmonic_table const harmonic{all_tokens};
  diffkv::relative_policy const policy{harmonic.ref()};
  diffkv::kv_cache<diffkv::dynamic_config<diffkv::relative_policy>> cache{options, policy};
  diffkv::row_view const row = cache.context().row(0);
  std::uint32_t const slot   = 0;  // our sequence's place in the cache

  // The tier of each token as one letter: H high, l low, . pruned.
  auto const tiers = [&](int num_tokens) {
    std::string letters(static_cast<std::size_t>(num_tokens), '.');
    for (diffkv::tier t : {diffkv::tier::high, diffkv::tier::low}) {
      for (std::uint32_t s = 0; s < row.state().tokens.of(t); ++s) {
        char& letter = letters[static_cast<std::size_t>(row.position(t, s))];
        right        = right && letter == '.';  // a token is in one place only
        letter       = t == diffkv::tier::high ? 'H' : 'l';
      }
    }
    return letters;
  };
  auto const show = [&](int num_tokens) {
    std::printf("%2d tokens, %u + %u pages, %llu free: %s\n", num_tokens, row.state().pages.high,
                row.state().pages.low, static_cast<unsigned long long>(cache.num_free_pages()),
                tiers(num_tokens).c_str());
  };

  // --- 1. The prompt. Attention says how important each token is, the policy which tier it gets.
  right = right && cache.admit(slot, prompt_tokens);
  std::printf("admitted: %llu of 8 pages are free\n",
              static_cast<unsigned long long>(cache.num_free_pages()));
  diffkv::attention_options attention;
  attention.scale = 0.125f;                                 // 1 / sqrt(head_dim)
  std::vector<float> prompt_out(prompt_tokens * head_dim);  // [prompt_tokens, head_dim] f32
  std::vector<float> importances(prompt_tokens);            // [num_heads = 1, prompt_tokens] f32
  cache.prefill_attention(slot, attention, from(queries, 0), from(keys, 0), from(values, 0),
                          from(prompt_out, 0), /*lse=*/nullptr, importances.data());
  cache.store_prompt(slot, /*layer=*/0, from(keys, 0), from(values, 0), importances.data());
  show(prompt_tokens);
  std::string before = tiers(prompt_tokens);

  // --- 2. Generation, token by token.
  std::vector<float> out(head_dim);  // [num_q_heads = 1, head_dim] f32
  bool was_demoted = false;
  bool was_pruned  = false;
  double errors    = 0.0;  // sum of squares over all outputs
  double lengths   = 0.0;
  for (int t = prompt_tokens; t < all_tokens; ++t) {
    right = right && cache.step(&slot, 1) == 0;  // 0 sequences refused: there were pages enough
    cache.append(&slot, 1, /*layer=*/0, from(keys, t), from(values, t), from(queries, t));
    cache.decode(&slot, 1, /*layer=*/0, attention, from(queries, t), from(out, 0), /*lse=*/nullptr);
    if (t % 7 == 0 || t == all_tokens - 1) { show(t + 1); }

    // A token only ever goes down: high, low, pruned.
    std::string const after = tiers(t + 1);
    for (std::size_t i = 0; i < before.size(); ++i) {
      was_demoted = was_demoted || (before[i] == 'H' && after[i] == 'l');
      was_pruned  = was_pruned || (before[i] != '.' && after[i] == '.');
      right       = right && (after[i] == before[i] || before[i] == 'H' || after[i] == '.');
    }
    for (int i = t + 1 - options.shape.window; i <= t; ++i) {
      right = right && after[static_cast<std::size_t>(i)] == 'H';  // the window
    }
    before = after;

    // --- 3. The exact answer, over all tokens, pruned ones too, from the original vectors.
    std::vector<double> exact(head_dim);  // [head_dim] f64
    double sum = 0.0;
    for (int i = 0; i <= t; ++i) {
      double logit = 0.0;
      for (int d = 0; d < head_dim; ++d) {
        logit += attention.scale * queries[static_cast<std::size_t>(t * head_dim + d)] *
                 keys[static_cast<std::size_t>(i * head_dim + d)];
      }
      sum += std::exp(logit);
      for (int d = 0; d < head_dim; ++d) {
        exact[static_cast<std::size_t>(d)] +=
          std::exp(logit) * values[static_cast<std::size_t>(i * head_dim + d)];
      }
    }
    for (std::size_t d = 0; d < head_dim; ++d) {
      double const right_one = exact[d] / sum;
      errors += (out[d] - right_one) * (out[d] - right_one);
      lengths += right_one * right_one;
    }
  }
  right = right && was_demoted && was_pruned;

  diffkv::sequence_usage const usage = cache.usage(slot);
  std::printf("of %d tokens: %llu high, %llu low, %llu pruned; %llu bytes instead of %llu\n",
              usage.num_tokens, static_cast<unsigned long long>(usage.high_tokens),
              static_cast<unsigned long long>(usage.low_tokens),
              static_cast<unsigned long long>(usage.pruned),
              static_cast<unsigned long long>(usage.bytes),
              static_cast<unsigned long long>(usage.bytes_16bit));
  double const error = std::sqrt(errors / lengths);
  std::printf("relative error of the outputs: %.3f\n", error);
  right = right && usage.high_tokens + usage.low_tokens + usage.pruned == all_tokens;
  right = right && error < 0.2 && usage.bytes * 3 < usage.bytes_16bit;

  // --- 4. The end: all pages are free again.
  diffkv::release_report const report = cache.release(&slot, 1);
  right = right && report.released == usage.pages && cache.num_free_pages() == options.num_pages;

  std::puts(right ? "every answer is right" : "WRONG");
  return right ? 0 : 1;
}
