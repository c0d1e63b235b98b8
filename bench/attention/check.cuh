// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One row of a launch against the host twin: wrong answers are not timed.
#include "attention/workload.cuh"

#include <diffkv/host/decode_attention.hpp>
#include <diffkv/policy/paper.hpp>

#include <memory>
#include <string>

#include "support/host_cache.hpp"

namespace bench {

template <class T>
std::vector<T> copy_to_host(T const* device, std::size_t count)
{
  std::vector<T> host(count);
  DIFFKV_CUDA_TRY(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

//! One row of a workload, copied into a cache of one sequence and one head.
class checked_row {
 public:
  checked_row(attention_workload const& work, std::uint32_t slot, std::uint32_t layer,
              std::uint32_t head)
    : work_{work}, slot_{slot}, layer_{layer}, head_{head}
  {
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(work.stream()));
    cache_ref const& from    = work.cache();
    cache_shape const& shape = from.shape;
    auto const dim           = static_cast<std::size_t>(shape.head_dim);
    state_                   = copy_to_host(from.state.rows + shape.row(slot, layer, head), 1)[0];

    test::host_cache_parts parts;
    parts.shape                = shape;
    parts.shape.num_slots      = 1;
    parts.shape.num_heads      = 1;
    parts.tiers                = from.tiers;
    parts.num_pages            = state_.pages.sum();
    parts.conditioned          = from.conditioned;
    parts.exact_lagged_queries = from.queries.rounding == lag_rounding::none;
    if (from.key_offsets != nullptr) {
      parts.key_offsets.resize(shape.num_layers * dim);
      auto const offset = copy_to_host(from.key_offset(layer, head), dim);
      std::copy(offset.begin(), offset.end(), parts.key_offsets.data() + layer * dim);
    }
    twin_ = std::make_unique<test::host_cache>(parts);
    test::reserve_row(twin_->context(), layer, state_.tokens);
    copy_pages(twin_->context());
    twin_->ref().state.rows[parts.shape.row(0, layer, 0)].append_slot = state_.append_slot;
    twin_->ref().layer(0, layer) =
      copy_to_host(from.state.layers + shape.layer_of(slot, layer), 1)[0];
    query_ring_ref const& ring = twin_->ref().queries;
    for (std::int32_t place = 0; place < static_cast<std::int32_t>(ring.places); ++place) {
      std::size_t const at =
        from.queries.index(shape.layer_of(slot, layer), place, head * shape.group_size);
      std::size_t const to = ring.index(layer, place, 0);
      if (ring.rounding == lag_rounding::int8) {
        copy(ring.codes_of(to), from.queries.codes_of(at), shape.group_size * dim);
        copy(ring.largest + to, from.queries.largest + at, shape.group_size);
      } else {
        copy(ring.query(to), from.queries.query(at), shape.group_size * dim);
      }
      copy(ring.lse + to, from.queries.lse + at, shape.group_size);
      copy(ring.offset_logits + to, from.queries.offset_logits + at, shape.group_size);
    }
    scores_ = scores_of(twin_->context());
  }

  //! What differs after the device has attended to the row; empty if it is right.
  [[nodiscard]] std::string trouble()
  {
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(work_.stream()));
    cache_shape const& shape  = work_.shape();
    auto const dim            = static_cast<std::size_t>(shape.head_dim);
    std::size_t const first   = std::size_t{slot_} * shape.num_q_heads() + head_ * shape.group_size;
    std::size_t const numbers = shape.group_size * dim;
    auto const query          = copy_to_host(work_.queries().data + first * dim, numbers);
    auto const out            = copy_to_host(work_.outputs().data + first * dim, numbers);
    auto const lse            = copy_to_host(work_.lse() + first, shape.group_size);

    std::vector<float> expected(numbers), expected_lse(shape.group_size);
    std::uint32_t const slot = 0;
    host::decode_attention(twin_->context(), &slot, 1, layer_, paper_policy{}, work_.options(),
                           packed<__half const>(query.data(), shape.group_size, shape.head_dim),
                           packed(expected.data(), shape.group_size, shape.head_dim),
                           expected_lse.data(), shape.score_every > 0);
    double difference = 0.0, size = 0.0, of_lse = 0.0;
    for (std::size_t i = 0; i < numbers; ++i) {
      double const d = to_f32(out[i]) - expected[i];
      difference += d * d;
      size += double{expected[i]} * expected[i];
    }
    for (std::size_t g = 0; g < shape.group_size; ++g) {
      of_lse = std::max(of_lse, std::fabs(double{lse[g]} - expected_lse[g]));
      if (std::isnan(lse[g])) { return "the log-sum-exp was not written"; }
    }
    // Wider than the bounds of docs/numerics.md, which the tests hold: rounding to f16 is not taken
    // off.
    if (!(difference <= 2e-3 * 2e-3 * size)) {
      return "the output is off by " + std::to_string(std::sqrt(difference / size));
    }
    if (!(of_lse <= 2e-3)) { return "the log-sum-exp is off by " + std::to_string(of_lse); }
    return shape.score_every > 0 ? score_trouble() : std::string{};
  }

 private:
  template <class T>
  static void copy(T* host, T const* device, std::size_t count)
  {
    DIFFKV_CUDA_TRY(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost));
  }
  void copy_pages(host::context const& to) const
  {
    cache_ref const& from = work_.cache();
    std::size_t const row = from.shape.row(slot_, layer_, head_);
    auto const entries =
      copy_to_host(from.table.entries + row * from.table.row_entries, from.table.row_entries);
    for (tier t : {tier::high, tier::low}) {
      for (std::uint32_t p = 0; p < state_.pages.of(t); ++p) {
        page_id const id = entries[t == tier::high ? p : from.table.row_entries - 1 - p];
        copy(to.row(layer_).page(t, p).bytes, from.pool.page(id), from.pool.page_bytes);
      }
    }
  }
  [[nodiscard]] std::vector<double> scores_of(host::context const& ctx) const
  {
    std::vector<double> scores;
    for (tier t : {tier::high, tier::low}) {
      for (slot_index s = 0; s < state_.tokens.of(t); ++s) {
        scores.push_back(ctx.row(layer_).score(t, s));
      }
    }
    return scores;
  }
  //! What the launch added to scores, and whom it names to leave.
  [[nodiscard]] std::string score_trouble()
  {
    auto const expected   = scores_of(twin_->context());
    candidate const* want = twin_->ref().state.candidates_of(layer_, tier::high);
    std::size_t const num = num_stored_tiers * twin_->ref().state.candidates_per_tier;
    std::vector<candidate> const wanted(want, want + num);
    copy_pages(twin_->context());
    auto const got    = scores_of(twin_->context());
    double difference = 0.0, added = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += std::fabs(got[i] - expected[i]);
      added += expected[i] - scores_[i];
    }
    if (!(added > 0.0)) { return "no query was due"; }
    if (!(difference <= 0.01 * added)) {
      return "scores are off by " + std::to_string(difference / added) + " of what was added";
    }
    std::size_t const row = work_.shape().row(slot_, layer_, head_);
    auto const found      = copy_to_host(work_.cache().state.candidates_of(row, tier::high), num);
    for (std::size_t i = 0; i < num; ++i) {
      bool const same = found[i].present() == wanted[i].present();
      double const d  = double{found[i].priority} - wanted[i].priority;
      if (!same || (wanted[i].present() && !(std::fabs(d) <= 0.01 * wanted[i].priority))) {
        return "candidate " + std::to_string(i) + " is another";
      }
    }
    return {};
  }

  attention_workload const& work_;
  std::uint32_t slot_, layer_, head_;
  row_state state_{};
  std::unique_ptr<test::host_cache> twin_;
  std::vector<double> scores_;
};

//! Runs one layer, and compares two of its rows; empty if they are right.
[[nodiscard]] inline std::string trouble_of(attention_workload const& work)
{
  cache_shape const& shape = work.shape();
  // A layer whose turn it is to catch up.
  auto const k              = static_cast<std::uint32_t>(std::max(1, shape.score_every));
  std::uint32_t const layer = (k - static_cast<std::uint32_t>(shape.max_tokens - 1) % k) % k;
  checked_row first{work, 0, layer, 0};
  // Where sequences are staggered, one that stands where the first one does.
  constexpr std::uint32_t stagger = attention_rows::stagger;
  std::uint32_t const last_slot   = (shape.num_slots - 1) / stagger * stagger;
  checked_row last{work, last_slot, layer, shape.num_heads - 1};
  work.attend(layer, work.lse());
  std::string const trouble = first.trouble();
  return trouble.empty() ? last.trouble() : trouble;
}

}  // namespace bench
