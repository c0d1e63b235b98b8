// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The handles go into kernels by value: a device kernel that plans a step on a copy of a host cache
//! reaches the host's plan for every row.
#include <diffkv/cache/kv_cache.hpp>
#include <diffkv/compaction/step_plan.hpp>
#include <diffkv/policy/any_policy.hpp>

#include <random>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using namespace diffkv;

DIFFKV_HOST_DEVICE row_step plan_of(cache_ref const& cache, any_policy const& policy,
                                    std::size_t row)
{
  auto const per_slot       = cache.shape.rows_per_slot();
  auto const slot           = static_cast<std::uint32_t>(row / per_slot);
  auto const in_slot        = static_cast<std::uint32_t>(row % per_slot);
  std::uint32_t const layer = in_slot / cache.shape.num_heads;
  std::uint32_t const head  = in_slot % cache.shape.num_heads;
  layer_state const& state  = cache.layer(slot, layer);
  return plan_row_step(policy, row_view{&cache, row}, state.queries, state.num_tokens + 1,
                       cache.limits.of(slot, layer, head));
}

__global__ void plan_kernel(cache_ref cache, any_policy policy, row_step* out)
{
  std::size_t const row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < cache.shape.num_rows()) { out[row] = plan_of(cache, policy, row); }
}

bool same(row_step const& a, row_step const& b)
{
  return a.append_slot == b.append_slot && a.demote_from == b.demote_from &&
         a.demote_to == b.demote_to && a.fill_from == b.fill_from && a.fill_to == b.fill_to &&
         a.tokens_after == b.tokens_after && a.high_page == b.high_page && a.low_page == b.low_page;
}

}  // namespace

TEST_CASE("step_plan: a kernel on copied handles plans what the host plans", "[compaction]")
{
  constexpr int prompt    = 150;
  constexpr int new_steps = 60;
  cache_options options;
  options.shape     = {3, 2, 2, 2, 64, 400, 16, 4};
  options.num_pages = 200;
  options.limits    = {1.0f, 0.05f};
  harmonic_table const table{400};
  std::mt19937 engine{11};
  std::normal_distribution<float> normal;
  auto const random_vectors = [&](std::size_t heads, std::size_t tokens) {
    std::vector<float> x(tokens * heads * 64);
    for (auto& value : x) { value = normal(engine); }
    return x;
  };

  for (policy_kind kind : {policy_kind::paper, policy_kind::artifact, policy_kind::relative}) {
    CAPTURE(static_cast<int>(kind));
    any_policy policy;
    policy.kind              = kind;
    policy.relative.harmonic = table.ref();
    kv_cache<dynamic_config<any_policy>> cache{options, policy};
    attention_options const attention{0.125f};
    std::vector<std::uint32_t> const slots{0, 1, 2};
    for (std::uint32_t slot : slots) {
      REQUIRE(cache.admit(slot, prompt));
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        auto const q = random_vectors(4, prompt);
        auto const k = random_vectors(2, prompt);
        auto const v = random_vectors(2, prompt);
        std::vector<float> out(q.size());
        std::vector<float> importances(2 * prompt);
        cache.prefill_attention(slot, attention, packed(q.data(), 4, 64), packed(k.data(), 2, 64),
                                packed(v.data(), 2, 64), packed(out.data(), 4, 64), nullptr,
                                importances.data());
        cache.store_prompt(slot, layer, packed(k.data(), 2, 64), packed(v.data(), 2, 64),
                           importances.data());
      }
    }
    int moved = 0;
    for (int step = 0; step < new_steps; ++step) {
      cache_ref const& host      = cache.context().cache;
      std::size_t const rows     = host.shape.num_rows();
      std::size_t const per_tier = host.state.candidates_per_tier;
      test::device_stream stream;
      test::device_array<std::byte> const pool{
        host.pool.base, std::size_t{host.pool.num_pages} * host.pool.page_bytes};
      test::device_array<page_id> const entries{host.table.entries, rows * host.table.row_entries};
      test::device_array<row_state> const states{host.state.rows, rows};
      test::device_array<slot_index> const window{host.state.window, rows * 16};
      test::device_array<candidate> const candidates{host.state.candidates, rows * 2 * per_tier};
      test::device_array<layer_state> const layers{host.state.layers, 6};
      test::device_array<thresholds> const limits{host.limits.data, 1};
      test::device_array<double> const sums{table.ref().sums, 401};
      cache_ref device                = host;
      device.pool.base                = pool.data();
      device.table.entries            = entries.data();
      device.state.rows               = states.data();
      device.state.window             = window.data();
      device.state.candidates         = candidates.data();
      device.state.layers             = layers.data();
      device.limits.data              = limits.data();
      any_policy device_policy        = policy;
      device_policy.relative.harmonic = {sums.data(), 400};
      test::device_array<row_step> const out{rows};
      plan_kernel<<<1, 64, 0, stream.get()>>>(device, device_policy, out.data());
      stream.wait();
      auto const got = out.to_host();
      int different  = 0;
      for (std::size_t row = 0; row < rows; ++row) {
        row_step const wanted = plan_of(host, policy, row);
        different += same(wanted, got[row]) ? 0 : 1;
        moved += wanted.demote_from != no_slot ? 1 : 0;
      }
      REQUIRE(different == 0);

      REQUIRE(cache.step(slots.data(), 3) == 0);
      for (std::uint32_t layer = 0; layer < 2; ++layer) {
        auto const q = random_vectors(4, 3);
        auto const k = random_vectors(2, 3);
        auto const v = random_vectors(2, 3);
        std::vector<float> decoded(q.size());
        cache.append(slots.data(), 3, layer, packed(k.data(), 2, 64), packed(v.data(), 2, 64),
                     packed(q.data(), 4, 64));
        cache.decode(slots.data(), 3, layer, attention, packed(q.data(), 4, 64),
                     packed(decoded.data(), 4, 64), nullptr);
      }
    }
    CHECK(moved > 0);
  }
}
