// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Time of one operation inside a CUDA graph, without the launch of the graph itself: a graph of 3 n
//! operations minus a graph of n, divided by 2 n.
#include <diffkv/core/cuda_error.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace bench {

//! `count` times op(i), captured.
class captured_graph {
 public:
  template <class Op>
  captured_graph(cudaStream_t stream, int count, Op&& op) : stream_{stream}
  {
    DIFFKV_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) { op(i); }
    DIFFKV_CUDA_TRY(cudaStreamEndCapture(stream, &graph_));
    DIFFKV_CUDA_TRY(cudaGraphInstantiate(&replay_, graph_, 0));
    DIFFKV_CUDA_TRY(cudaEventCreate(&begin_));
    DIFFKV_CUDA_TRY(cudaEventCreate(&end_));
  }
  captured_graph(captured_graph const&)            = delete;
  captured_graph& operator=(captured_graph const&) = delete;
  ~captured_graph()
  {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(replay_);
    cudaGraphDestroy(graph_);
  }
  //! Microseconds of one replay.
  [[nodiscard]] double replay_us() const
  {
    float ms = 0.0f;
    DIFFKV_CUDA_TRY(cudaEventRecord(begin_, stream_));
    DIFFKV_CUDA_TRY(cudaGraphLaunch(replay_, stream_));
    DIFFKV_CUDA_TRY(cudaEventRecord(end_, stream_));
    DIFFKV_CUDA_TRY(cudaEventSynchronize(end_));
    DIFFKV_CUDA_TRY(cudaEventElapsedTime(&ms, begin_, end_));
    return 1e3 * static_cast<double>(ms);
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_      = nullptr;
  cudaGraphExec_t replay_ = nullptr;
  cudaEvent_t begin_      = nullptr;
  cudaEvent_t end_        = nullptr;
};

inline double median(std::vector<double> values)
{
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

//! Median over `replays` of the time of one op. `before` is called before each replay.
template <class Op, class Before>
double graph_us_per_op(cudaStream_t stream, int n, int replays, Op&& op, Before&& before)
{
  captured_graph const few{stream, n, op};
  captured_graph const many{stream, 3 * n, op};
  std::vector<double> times_few, times_many;
  for (int r = 0; r < replays + 3; ++r) {
    before();
    double const a = few.replay_us();
    before();
    double const b = many.replay_us();
    if (r < 3) { continue; }  // warming up
    times_few.push_back(a);
    times_many.push_back(b);
  }
  return (median(times_many) - median(times_few)) / (2 * n);
}

template <class Op>
double graph_us_per_op(cudaStream_t stream, int n, int replays, Op&& op)
{
  return graph_us_per_op(stream, n, replays, op, [] {});
}

//! The time of op(i) alone, where each needs a setup(i) in front of it: of both, less of setup.
template <class Setup, class Op, class Before>
double graph_us_behind(cudaStream_t stream, int n, int replays, Setup&& setup, Op&& op,
                       Before&& before)
{
  auto const both = [&](int i) {
    setup(i);
    op(i);
  };
  return graph_us_per_op(stream, n, replays, both, before) -
         graph_us_per_op(stream, n, replays, setup);
}
template <class Setup, class Op>
double graph_us_behind(cudaStream_t stream, int n, int replays, Setup&& setup, Op&& op)
{
  return graph_us_behind(stream, n, replays, setup, op, [] {});
}

//! For BENCHMARK(...)->Apply: what `report_us` needs.
inline void reports_us(benchmark::internal::Benchmark* bench)
{
  bench->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
}

//! Reports a time measured elsewhere; with a name, also as a figure that others rely on.
inline void report_us(benchmark::State& state, double us, std::string const& figure = {})
{
  for (auto _ : state) { state.SetIterationTime(us * 1e-6); }
  if (!figure.empty()) { state.counters["figure:" + figure] = us; }
}

}  // namespace bench
