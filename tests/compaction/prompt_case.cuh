// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Some prompts, stored by the host twin and on the device from one state.
#include <diffkv/compaction/prompt.cuh>
#include <diffkv/host/prompt.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <cstring>  // memset
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/host_cache.hpp"

namespace diffkv::test {

struct prompt_case {
  std::vector<std::int32_t> lengths{};
  std::uint32_t num_layers = 2;
  std::uint32_t num_heads  = 2;
  layer_range layers{0, 0};  //!< count 0: all
  std::int32_t window = 64;
  int first_element   = 0;  //!< elements in front of the first vector
  int head_padding    = 0;  //!< elements behind each vector
  std::int32_t budget = 100;
  float clip          = 0.0f;   //!< of all codes; 0: the default
  bool ties           = false;  //!< importances take few values
  bool nasty          = false;  //!< NaN and Inf here and there
  bool in_graph       = false;
  unsigned char fill  = 0xFF;  //!< what pages hold before
  std::uint64_t seed  = 3;
};

//! A policy of a user's own, whose rows have parameters.
struct seen_policy {
  struct row_parameters {
    float greatest = 0.0f;
  };
  [[nodiscard]] DIFFKV_HOST_DEVICE std::int32_t prompt_queries(std::int32_t n) const noexcept
  {
    return n;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE row_parameters prepare(prompt_view const& row) const noexcept
  {
    row_parameters p;
    for (std::int32_t i = 0; i < row.num_tokens - row.window; ++i) {
      if (row.importances[i] > p.greatest) { p.greatest = row.importances[i]; }
    }
    return p;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE tier classify(float importance, std::int32_t, std::int32_t,
                                                 thresholds,
                                                 row_parameters const& row) const noexcept
  {
    return between(importance, 0.5f * row.greatest, 0.125f * row.greatest);
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE float priority(float importance, std::int32_t,
                                                  std::int32_t) const noexcept
  {
    return importance;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE step_decision step(step_view const&) const noexcept
  {
    return {};
  }
};

inline void make_policy(paper_policy&, std::int32_t, harmonic_ref) {}
inline void make_policy(artifact_policy&, std::int32_t, harmonic_ref) {}
inline void make_policy(seen_policy&, std::int32_t, harmonic_ref) {}
inline void make_policy(relative_policy& p, std::int32_t, harmonic_ref h) { p.harmonic = h; }
inline void make_policy(static_policy& p, std::int32_t budget, harmonic_ref) { p.budget = budget; }
inline void make_policy(any_policy& p, std::int32_t budget, harmonic_ref)
{
  p.kind          = policy_kind::static_budget;
  p.static_budget = {budget};
}

[[nodiscard]] inline std::vector<float> prompt_elements(std::size_t count, bool nasty, random& r)
{
  std::vector<float> x(count);
  float scale = 1.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 64 == 0) { scale = r.one_in(8) ? r.uniform(1e-6f, 1e5f) : r.uniform(0.1f, 4.0f); }
    x[i] = scale * (r.uniform(-1.0f, 1.0f) + r.uniform(-1.0f, 1.0f));
    // Values on a grid meet the middle between two codes exactly.
    if (i / 256 % 3 == 0) { x[i] = 0.25f * static_cast<float>(r.between(-12, 12)); }
    if (nasty && r.one_in(3000)) { x[i] = std::numeric_limits<float>::quiet_NaN(); }
    if (nasty && r.one_in(3000)) { x[i] = -std::numeric_limits<float>::infinity(); }
    if (nasty && r.one_in(2000)) { x[i] = r.one_in(2) ? 3e38f : -0.0f; }
  }
  return x;
}

//! [layers, num_heads, tokens]; about two fifths high, two fifths low under a_h = 1, a_l = 0.1.
[[nodiscard]] inline std::vector<float> prompt_importances(prompt_case const& work,
                                                           std::size_t rows, std::size_t tokens,
                                                           random& r)
{
  std::vector<float> all(rows * tokens);
  float const factors[] = {1.5f, 0.5f, 1.1f, 0.3f, 0.01f};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::size_t const divisor = r.one_in(4) ? tokens : i % tokens + 1;
    all[i] = factors[r.below(5)] * r.uniform(0.9f, 1.1f) / static_cast<float>(divisor);
    if (work.ties) { all[i] = 0.125f * static_cast<float>(r.below(6)); }
    if (work.nasty && r.one_in(20)) { all[i] = std::numeric_limits<float>::quiet_NaN(); }
  }
  return all;
}

//! Stores the same prompts twice and compares.
template <class Config, class T>
void same_after_prompts(prompt_case const& work)
{
  using layouts = typename Config::layouts;
  using policy  = typename Config::policy_type;
  random r{work.seed};
  auto const count         = static_cast<std::uint32_t>(work.lengths.size());
  layer_range const layers = work.layers.count == 0 ? layer_range{0, work.num_layers} : work.layers;

  host_cache_parts parts;
  parts.shape.num_slots   = count + 2;
  parts.shape.num_layers  = work.num_layers;
  parts.shape.num_heads   = work.num_heads;
  parts.shape.head_dim    = layouts::head_dim;
  parts.shape.window      = work.window;
  parts.tiers             = layouts::pages;
  parts.conditioned       = Config::conditioned;
  std::int32_t max_tokens = 1;
  for (std::int32_t n : work.lengths) { max_tokens = n > max_tokens ? n : max_tokens; }
  parts.shape.max_tokens = max_tokens + 10;
  for (code_spec* spec : {&parts.tiers.high.format.key, &parts.tiers.high.format.value,
                          &parts.tiers.low.format.key, &parts.tiers.low.format.value}) {
    spec->clip = work.clip > 0.0f ? work.clip : default_clip(spec->bits, Config::conditioned);
  }
  std::uint64_t pages = 7;
  for (std::int32_t n : work.lengths) {
    pages += std::uint64_t{parts.tiers.most_pages(static_cast<std::uint32_t>(n))} *
             parts.shape.rows_per_slot();
  }
  parts.num_pages = static_cast<std::uint32_t>(pages);
  if (has(Config::conditioned, conditioning::centred)) {
    parts.key_offsets =
      r.floats(std::size_t{parts.shape.rows_per_slot()} * layouts::head_dim, -2.0f, 2.0f);
  }
  parts.limits.resize(parts.shape.num_rows());
  for (thresholds& t : parts.limits) { t = {r.uniform(0.8f, 1.2f), r.uniform(0.0f, 0.2f)}; }
  std::size_t const num_limits = parts.limits.size();

  harmonic_table const harmonic{parts.shape.max_tokens};
  policy host_policy{};
  make_policy(host_policy, work.budget, harmonic.ref());

  host_cache host{parts};
  host.shuffle_pages(r);
  std::memset(host.ref().pool.base, work.fill,
              std::size_t{parts.num_pages} * host.ref().pool.page_bytes);
  // The ring has gone round before.
  *host.ref().ring.head += 5ull * parts.num_pages;
  *host.ref().ring.tail += 5ull * parts.num_pages;
  std::vector<std::uint32_t> slots;
  std::vector<host::admission> admissions;
  for (std::uint32_t s = 0; s < count; ++s) {
    slots.push_back(count - s);
    admissions.push_back({slots[s], work.lengths[s]});
  }
  REQUIRE(host::admit(host.context(), admissions.data(), count, host_policy) == 0);
  device_cache device{host.ref(), num_limits};

  // Inputs.
  std::vector<std::int64_t> first_tokens;
  std::int64_t tokens = 2;
  for (std::int32_t n : work.lengths) {
    first_tokens.push_back(tokens);
    tokens += n + 3;
  }
  first_tokens.push_back(0);
  auto const num_tokens   = static_cast<std::size_t>(tokens);
  auto const stride       = layouts::head_dim + work.head_padding;
  auto const token_stride = static_cast<std::ptrdiff_t>(work.num_heads) * stride;
  auto const layer_stride = static_cast<std::ptrdiff_t>(num_tokens) * token_stride;
  std::size_t const elements =
    static_cast<std::size_t>(work.first_element + layers.count * layer_stride);
  std::vector<T> side[2];
  for (auto& s : side) {
    auto const exact = prompt_elements(elements, work.nasty, r);
    s.resize(elements);
    for (std::size_t i = 0; i < elements; ++i) { from_f32(exact[i], s[i]); }
  }
  auto const importances =
    prompt_importances(work, std::size_t{layers.count} * work.num_heads, num_tokens, r);

  // Host.
  for (std::uint32_t s = 0; s < count; ++s) {
    auto const n = static_cast<std::size_t>(work.lengths[s]);
    for (std::uint32_t l = 0; l < layers.count; ++l) {
      std::vector<float> own;
      for (std::uint32_t h = 0; h < work.num_heads; ++h) {
        auto const from = importances.begin() +
                          static_cast<std::ptrdiff_t>((l * work.num_heads + h) * num_tokens) +
                          first_tokens[s];
        own.insert(own.end(), from, from + static_cast<std::ptrdiff_t>(n));
      }
      auto const of = [&](std::vector<T> const& x) {
        return vectors<T const>{
          x.data() + work.first_element + l * layer_stride + first_tokens[s] * token_stride,
          token_stride, stride};
      };
      host::store_prompt(host.context(), slots[s], layers.first + l, host_policy, of(side[0]),
                         of(side[1]), own.data());
    }
  }

  // Device. The batch has room for one more.
  device_stream stream;
  device_array<T> const keys{side[0]};
  device_array<T> const values{side[1]};
  device_array<float> const device_importances{importances};
  device_array<std::int64_t> const device_first{first_tokens};
  device_array<double> const device_harmonic{harmonic.ref().sums,
                                             static_cast<std::size_t>(parts.shape.max_tokens) + 1};
  std::vector<std::uint32_t> padded = slots;
  padded.push_back(0);
  device_array<std::uint32_t> const device_slots{padded};
  device_array<std::uint32_t> const device_count{&count, 1};
  policy device_policy{};
  make_policy(device_policy, work.budget, {device_harmonic.data(), parts.shape.max_tokens});
  prompt_source<T> source;
  source.key                     = {keys.data() + work.first_element, token_stride, stride};
  source.value                   = {values.data() + work.first_element, token_stride, stride};
  source.key_layer_stride        = layer_stride;
  source.value_layer_stride      = layer_stride;
  source.importances             = device_importances.data();
  source.importance_head_stride  = static_cast<std::ptrdiff_t>(num_tokens);
  source.importance_layer_stride = static_cast<std::ptrdiff_t>(work.num_heads * num_tokens);
  source.first_tokens            = device_first.data();
  source.max_tokens              = max_tokens;
  batch_ref const batch{device_slots.data(), device_count.data(), count + 1};
  std::size_t const bytes =
    store_prompt_workspace_bytes(device.ref(), batch.capacity, layers, max_tokens, device_policy);
  device_array<unsigned char> const workspace{bytes};
  auto const store = [&] {
    diffkv::store_prompt<Config>(device.ref(), batch, source, layers, device_policy,
                                 workspace.data(), bytes, stream.get());
  };
  if (work.in_graph) {
    cudaGraph_t graph          = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    store();
    check(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphLaunch(executable, stream.get()), "cudaGraphLaunch");
    stream.wait();
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  } else {
    store();
  }
  stream.wait();

  auto const after = std::make_unique<host_cache>(parts);
  device.download(after->ref());
  CHECK(difference_of(host.ref(), after->ref()) == "");
  if (layers.count == work.num_layers) { CHECK(page_trouble(after->ref()) == ""); }
  // What is stored is not stored again.
  store();
  stream.wait();
  device.download(after->ref());
  CHECK(difference_of(host.ref(), after->ref()) == "");
}

}  // namespace diffkv::test
