// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Measures decode launches that are to be compared: all in one process, taking turns, each beside the
//! machine's read ceiling of the same moment. The card throttles, and cards differ.
#include "attention/check.cuh"
#include "attention/read_ceiling.cuh"
#include "graph_time.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

//! One launch to be measured.
struct attention_case {
  std::string name{};    //!< "k8v4.128x4096"
  std::string kernel{};  //!< name in attention/kernels.hpp
  std::uint32_t group_size = 4;
  std::int32_t head_dim    = 128;
  attention_rows rows{};
  bool with_plan = false;  //!< the plan of all layers is made anew in front of them
  //! A case before this one, and what the time over that one's is called.
  std::string compared_with{};
  std::string figure{};
};

struct attention_result {
  std::string trouble{};  //!< why there are no figures
  double us           = 0.0;
  double bytes        = 0.0;  //!< codes and metadata of the tokens
  double tokens       = 0.0;
  double of_ceiling   = 0.0;  //!< bytes per time over those of the read ceiling
  double of_same_read = 0.0;  //!< time of a kernel that reads as many bytes over time
  double over_k16v16  = 0.0;  //!< times faster than 16-bit pages of the same rows, unpruned
  double over_other   = 0.0;  //!< time over that of `compared_with`
  double ceiling      = 0.0;  //!< bytes per second
};

//! Time of an op by difference, sampled whenever wanted.
class sampled_op {
 public:
  template <class Op>
  sampled_op(cudaStream_t stream, int n, Op&& op)
    : few_{stream, n, op}, many_{stream, 3 * n, op}, n_{n}
  {}
  [[nodiscard]] double us() const
  {
    double const few = few_.replay_us();
    return (many_.replay_us() - few) / (2 * n_);
  }

 private:
  captured_graph few_;
  captured_graph many_;
  int n_;
};

//! The kernel that reads `bytes` bytes fastest.
[[nodiscard]] inline std::unique_ptr<sampled_op> fastest_read(read_arena const& arena,
                                                              std::size_t bytes, int n)
{
  std::unique_ptr<sampled_op> fastest;
  double least = 0.0;
  for (int loads : {4, 8}) {
    auto op = std::make_unique<sampled_op>(
      bench_stream(), n, [&](int i) { arena.read(bytes, static_cast<std::size_t>(i), loads); });
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i) { samples.push_back(op->us()); }
    double const us = median(samples);
    if (fastest == nullptr || us < least) {
      least   = us;
      fastest = std::move(op);
    }
  }
  return fastest;
}

//! A case made ready, and its samples; those of one round stand at the same index.
struct prepared_case {
  attention_case const* of = nullptr;
  std::unique_ptr<attention_workload> work{};
  std::unique_ptr<sampled_op> attention{};
  std::unique_ptr<sampled_op> same_read{};
  std::vector<double> us{};
  std::vector<double> same_read_us{};
  std::vector<double> ceiling_us{};
  std::vector<double> over_other{};  //!< in turns with the case it is compared with
  attention_result result{};
};

//! @return null if there is none, or there is trouble with it
[[nodiscard]] inline prepared_case const* find_case(std::vector<prepared_case> const& cases,
                                                    std::string const& name)
{
  for (prepared_case const& p : cases) {
    if (p.of->name == name) { return p.result.trouble.empty() ? &p : nullptr; }
  }
  return nullptr;
}

//! @param other  the case that it is compared with, or null
[[nodiscard]] inline prepared_case prepare(attention_case const& c, read_arena const& arena,
                                           prepared_case const* other)
{
  prepared_case p;
  p.of                           = &c;
  attention_kernel const* kernel = find_attention_kernel(c.kernel, c.group_size, c.head_dim);
  if (kernel == nullptr) {
    p.result.trouble = "no kernel of this kind was compiled";
    return p;
  }
  p.work           = std::make_unique<attention_workload>(*kernel, c.rows,
                                                other == nullptr ? nullptr : other->work.get());
  p.result.bytes   = p.work->bytes();
  p.result.tokens  = p.work->tokens();
  p.result.trouble = trouble_of(*p.work);
  if (!p.result.trouble.empty()) { return p; }
  auto const layers = static_cast<int>(p.work->shape().num_layers);
  p.attention       = std::make_unique<sampled_op>(p.work->stream(), layers, [&](int i) {
    if (c.with_plan && i % layers == 0) { p.work->plan(); }
    p.work->attend(static_cast<std::uint32_t>(i % layers));
  });
  p.same_read       = fastest_read(arena, static_cast<std::size_t>(p.work->bytes()), layers);
  return p;
}

//! Median over the rounds of a[i] / b[i].
[[nodiscard]] inline double median_ratio(std::vector<double> const& a, std::vector<double> const& b)
{
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) { ratios.push_back(a[i] / b[i]); }
  return median(ratios);
}

//! @throws cuda_error that names the case: none can be measured after it
[[nodiscard]] inline double time_of(prepared_case const& p)
{
  try {
    return p.attention->us();
  } catch (cuda_error const& e) {
    throw cuda_error{e.code(), p.of->name.c_str()};
  }
}

inline void take_samples(std::vector<prepared_case>& cases, sampled_op const& ceiling)
{
  constexpr int rounds = 11, warm_up = 2;
  constexpr std::chrono::milliseconds rest{4};
  for (int round = 0; round < warm_up + rounds; ++round) {
    for (prepared_case& p : cases) {
      if (!p.result.trouble.empty()) { continue; }
      std::this_thread::sleep_for(rest);
      double const at_best = ceiling.us();
      double const read    = p.same_read->us();
      double const us      = time_of(p);
      double over_other    = 0.0;
      if (prepared_case const* other = find_case(cases, p.of->compared_with)) {
        // What differs by a percent: one right behind the other, each first once.
        double const before = time_of(*other);
        double const own    = time_of(p) + time_of(p);
        over_other          = own / (before + time_of(*other));
      }
      if (round < warm_up) { continue; }
      if (over_other > 0.0) { p.over_other.push_back(over_other); }
      p.ceiling_us.push_back(at_best);
      p.same_read_us.push_back(read);
      p.us.push_back(us);
    }
  }
}

//! Results of all cases, by name.
[[nodiscard]] inline std::map<std::string, attention_result> measure_suite(
  std::vector<attention_case> const& suite)
{
  read_arena const arena{bench_stream()};
  auto const ceiling = fastest_read(arena, read_arena::bytes, 1);
  std::vector<prepared_case> cases;
  for (attention_case const& c : suite) {
    cases.push_back(prepare(c, arena, find_case(cases, c.compared_with)));
  }
  take_samples(cases, *ceiling);
  std::map<std::string, attention_result> results;
  for (prepared_case& p : cases) {
    attention_result& r = p.result;
    if (!p.us.empty()) {
      auto const per_byte = [&](double bytes) {
        return bytes / static_cast<double>(read_arena::bytes);
      };
      r.us                   = median(p.us);
      r.of_ceiling           = per_byte(r.bytes) * median_ratio(p.ceiling_us, p.us);
      r.of_same_read         = median_ratio(p.same_read_us, p.us);
      r.ceiling              = 1e6 * static_cast<double>(read_arena::bytes) / median(p.ceiling_us);
      std::string const rows = p.of->name.substr(p.of->name.find('.'));
      if (auto const* base = find_case(cases, "k16v16" + rows)) {
        r.over_k16v16 = median_ratio(base->us, p.us);
      }
      if (!p.over_other.empty()) { r.over_other = median(p.over_other); }
    }
    results[p.of->name] = r;
  }
  return results;
}

}  // namespace bench
