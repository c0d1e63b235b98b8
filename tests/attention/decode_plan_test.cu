// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Work plans made on the device equal those of the host twin in every byte of the workspace.
#include <diffkv/attention/decode_plan.cuh>
#include <diffkv/host/decode_plan.hpp>
#include <diffkv/policy/paper.hpp>

#include <numeric>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/plan_case.hpp"

namespace {

using namespace diffkv;
using test::check;

using mixed_config  = static_config<paper_policy, k8v4, k4v2, 128>;
using single_config = static_config<paper_policy, k16v16, void, 64>;

struct plan_run {
  test::plan_extents extents{};
  std::uint32_t capacity = 1;  //!< of batch and workspace
  std::uint32_t count    = 1;  //!< of the batch
  layer_range held{};          //!< layers of the workspace
  layer_range planned{};
  decode_grid grid{};
  int empty = 6;        //!< one row in so many has no token
  tier_counts equal{};  //!< if not 0: tokens of all rows
};

//! A cache on both sides, a workspace on both sides, a batch of different slots in any order.
template <class Config>
class plan_twin {
 public:
  plan_twin(plan_run const& run, std::uint64_t seed)
    : run_{run},
      random_{seed},
      host_{test::plan_parts(run.extents, Config::layouts::pages)},
      workspace_{host_.shape(), run.capacity, run.held, run.grid},
      memory_{workspace_.data(), workspace_.size()},
      device_work_{make_decode_workspace(memory_.data(), memory_.size(), host_.shape(),
                                         run.capacity, run.held, run.grid,
                                         workspace_.partial_floats)}
  {
    renew(run.count);
  }
  //! Other lengths, another batch, on both sides.
  void renew(std::uint32_t count)
  {
    test::fill_rows(host_.ref(), random_, run_.empty);
    if (run_.equal.high > 0) { test::make_rows_equal(host_.ref(), run_.equal); }
    device_.upload(host_.ref());
    slots_.resize(host_.shape().num_slots);
    std::iota(slots_.begin(), slots_.end(), 0u);
    test::shuffle(slots_.data(), static_cast<std::uint32_t>(slots_.size()), random_);
    slots_.resize(run_.capacity, 0xFFFF'FFFFu);
    for (std::uint32_t i = count; i < run_.capacity; ++i) { slots_[i] = 0xFFFF'FFFFu; }
    count_ = count;
    check(cudaMemcpy(device_slots_.data(), slots_.data(), slots_.size() * sizeof(std::uint32_t),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaMemcpy(device_count_.data(), &count_, sizeof count_, cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaMemcpy");
  }
  void plan_on_host()
  {
    host::plan_decode(host_.ref(), {slots_.data(), &count_, run_.capacity}, run_.planned,
                      workspace_.ref());
  }
  void plan_on_device(cudaStream_t stream)
  {
    bool const whole = run_.count == run_.capacity;
    plan_decode<Config>(
      device_.ref(), {device_slots_.data(), whole ? nullptr : device_count_.data(), run_.capacity},
      run_.planned, device_work_, stream);
  }
  //! First byte of the workspace that differs, or -1.
  [[nodiscard]] std::ptrdiff_t difference() const
  {
    std::vector<std::byte> const got = memory_.to_host();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] != workspace_.data()[i]) { return static_cast<std::ptrdiff_t>(i); }
    }
    return -1;
  }
  [[nodiscard]] decode_workspace_ref const& answer() const { return workspace_.ref(); }

 private:
  plan_run run_;
  test::random random_;
  test::host_cache host_;
  test::device_cache device_{host_.ref(), 1};
  test::host_workspace workspace_;
  test::device_array<std::byte> memory_;
  decode_workspace_ref device_work_;
  std::vector<std::uint32_t> slots_;
  std::uint32_t count_ = 0;
  test::device_array<std::uint32_t> device_slots_{run_.capacity + 1};
  test::device_array<std::uint32_t> device_count_{1};
};

template <class Config>
void same_plan(plan_run const& run, std::uint64_t seed)
{
  CAPTURE(run.extents.layers, run.extents.heads, run.extents.score_every, run.capacity, run.count,
          run.planned.first, run.planned.count, run.grid.ctas, run.grid.warps, run.grid.passes,
          seed);
  plan_twin<Config> twin{run, seed};
  test::device_stream stream;
  twin.plan_on_host();
  twin.plan_on_device(stream.get());
  stream.wait();
  CHECK(twin.difference() == -1);
}

}  // namespace

TEST_CASE("decode_plan: one plan, small enough for compute-sanitizer", "[attention][small]")
{
  same_plan<mixed_config>({{5, 3, 3, 300, 2}, 4, 3, {0, 3}, {1, 2}, {3, 4, 2}}, 1);
  same_plan<mixed_config>({{150, 1, 8, 200, 1}, 150, 149, {0, 1}, {0, 1}, {5, 4, 1}}, 2);
}

TEST_CASE("decode_plan: device and host plan the same for ragged rows", "[attention]")
{
  test::random r{17};
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    plan_run run;
    run.extents       = {r.below(20) + 1,
                         r.below(6) + 1,
                         r.below(9) + 1,
                         r.between(1, 900),
                         r.pick(std::vector<std::int32_t>{0, 1, 2, 4}),
                   r.one_in(3) ? catch_up_schedule::by_position : catch_up_schedule::by_batch};
    run.capacity      = r.below(run.extents.slots + 1);
    run.count         = r.one_in(3) ? run.capacity : r.below(run.capacity + 1);
    run.held          = {r.below(run.extents.layers), 0};
    run.held.count    = r.below(run.extents.layers - run.held.first) + 1;
    run.planned       = {run.held.first + r.below(run.held.count), 0};
    run.planned.count = r.below(run.held.first + run.held.count - run.planned.first) + 1;
    run.grid          = {r.below(140) + 1, r.below(12) + 1, r.one_in(2) ? 1 : r.below(4) + 1};
    same_plan<mixed_config>(run, seed);
    same_plan<single_config>(run, seed);
  }
}

TEST_CASE("decode_plan: any number of rows, whole tiles and more", "[attention]")
{
  // {slots, heads}: rows of a layer around those of one CTA's tile, and many tiles.
  for (auto const& [slots, heads] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
         {1, 1}, {1, 8}, {127, 8}, {128, 8}, {1025, 1}, {129, 8}, {256, 8}, {257, 8}, {733, 7}}) {
    for (std::uint32_t passes : {1u, 2u}) {
      same_plan<mixed_config>(
        {{slots, 3, heads, 400, 4}, slots, slots, {0, 3}, {0, 3}, {132, 8, passes}}, slots);
      same_plan<mixed_config>(
        {{slots, 3, heads, 400, 4}, slots, slots / 2, {0, 3}, {1, 1}, {132, 8, passes}}, slots);
      same_plan<mixed_config>(
        {{slots, 3, heads, 60, 4}, slots, slots, {0, 3}, {0, 3}, {132, 12, passes}}, slots);
    }
  }
  same_plan<mixed_config>({{12'500, 1, 8, 150, 4}, 12'500, 12'499, {0, 1}, {0, 1}, {132, 8, 1}}, 5);
  // Some at a time, and few pages a warp: those without a share lie behind the last page.
  same_plan<mixed_config>({{6'000, 1, 1, 40, 4}, 6'000, 5'999, {0, 1}, {0, 1}, {400, 12, 1}}, 6);
}

TEST_CASE(
  "decode_plan: rows of equal cost, in batches full and not, counted at one time and by turns",
  "[attention]")
{
  // At 660 and 650 sequences of eight heads rows are counted some at a time.
  for (std::uint32_t const slots : {1u, 2u, 3u, 8u, 16u, 17u, 128u, 132u, 256u, 660u, 650u}) {
    for (std::uint32_t const passes : {1u, 2u}) {
      plan_run run{{slots, 2, 8, 400, 0}, slots, slots, {0, 2}, {0, 2}, {132, 12, passes}};
      run.equal = {200, 100};
      same_plan<mixed_config>(run, slots);
      run.extents.score_every = 4;  // some layers of a sequence cost more
      same_plan<mixed_config>(run, slots);
      run.extents.score_every = 1;  // all do
      same_plan<mixed_config>(run, slots);
      run.extents.slots = run.capacity = slots + 40;  // the batch is not full
      same_plan<mixed_config>(run, slots);
    }
  }
}

TEST_CASE("decode_plan: many layers at once", "[attention]")
{
  for (std::uint32_t layers : {32u, 80u, 126u, 200u}) {
    same_plan<mixed_config>({{6, layers, 8, 400, 4}, 6, 6, {0, layers}, {0, layers}, {132, 8, 1}},
                            layers);
  }
}

TEST_CASE("decode_plan: more warps than pages, no pages, no sequences", "[attention]")
{
  same_plan<mixed_config>({{3, 2, 2, 30, 4}, 3, 3, {0, 2}, {0, 2}, {132, 8, 1}}, 1);
  same_plan<mixed_config>({{3, 2, 2, 30, 4}, 3, 3, {0, 2}, {0, 2}, {132, 8, 1}, 1}, 2);
  same_plan<mixed_config>({{300, 2, 8, 30, 4}, 300, 300, {0, 2}, {0, 2}, {132, 8, 2}, 1}, 3);
  same_plan<mixed_config>({{300, 2, 8, 30, 4}, 300, 0, {0, 2}, {0, 2}, {132, 8, 1}}, 4);
  same_plan<mixed_config>({{3, 2, 2, 30, 4}, 3, 0, {0, 2}, {0, 2}, {132, 8, 1}}, 5);
  same_plan<mixed_config>({{3, 2, 2, 30, 4}, 0, 0, {0, 2}, {0, 2}, {132, 8, 1}}, 6);
  same_plan<mixed_config>({{1, 1, 1, 20'000, 4}, 1, 1, {0, 1}, {0, 1}, {1, 1, 1}}, 7);
  same_plan<mixed_config>({{1, 1, 1, 200'000, 4}, 1, 1, {0, 1}, {0, 1}, {400, 16, 1}}, 8);
}

TEST_CASE("decode_plan: a captured plan serves other lengths and other batches", "[attention]")
{
  for (auto const& [slots, grid] : std::vector<std::pair<std::uint32_t, decode_grid>>{
         {40, {20, 8}}, {400, {20, 8}}, {400, {80, 12}}, {1'200, {132, 12}}}) {
    plan_twin<mixed_config> twin{{{slots, 4, 4, 500, 4}, slots, slots - 1, {0, 4}, {0, 4}, grid},
                                 3};
    test::device_stream stream;
    cudaGraph_t graph      = nullptr;
    cudaGraphExec_t replay = nullptr;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    twin.plan_on_device(stream.get());
    twin.plan_on_device(stream.get());  // the same again changes nothing
    check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    for (std::uint32_t count : {slots - 1, slots, 0u, 1u, slots / 2, slots}) {
      CAPTURE(slots, count);
      twin.renew(count);
      twin.plan_on_host();
      check(cudaGraphLaunch(replay, stream.get()), "replay");
      stream.wait();
      CHECK(twin.difference() == -1);
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("decode_plan: a captured plan of many rows is not bound by one of few that came after it",
          "[attention]")
{
  constexpr decode_grid grid{132, 8};
  plan_twin<mixed_config> many{{{384, 1, 8, 100, 4}, 384, 384, {0, 1}, {0, 1}, grid}, 3};
  plan_twin<mixed_config> few{{{1, 1, 1, 100, 4}, 1, 1, {0, 1}, {0, 1}, grid}, 4};
  test::device_stream stream;
  cudaGraph_t graph      = nullptr;
  cudaGraphExec_t replay = nullptr;
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
  many.plan_on_device(stream.get());
  check(cudaStreamEndCapture(stream.get(), &graph), "capture");
  few.plan_on_device(stream.get());
  check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  check(cudaGraphLaunch(replay, stream.get()), "replay");
  stream.wait();
  many.plan_on_host();
  few.plan_on_host();
  CHECK(many.difference() == -1);
  CHECK(few.difference() == -1);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

TEST_CASE("decode_plan: wrong handles are refused before anything is launched", "[attention]")
{
  using test::contains;
  test::host_cache cache{test::plan_parts({3, 2, 2, 100, 4}, mixed_config::layouts::pages)};
  test::host_workspace const work{cache.shape(), 2, {0, 1}, {2, 2, 1}};
  std::uint32_t const slots[3] = {};
  auto const plan              = [&](std::uint32_t capacity, layer_range layers) {
    plan_decode<mixed_config>(cache.ref(), {slots, nullptr, capacity}, layers, work.ref(), nullptr);
  };
  CHECK_THROWS_WITH(plan(3, {0, 1}), contains("batch"));
  CHECK_THROWS_WITH(plan(2, {1, 1}), contains("layers"));
  CHECK_THROWS_WITH(plan(2, {2, 1}), contains("layers"));
  CHECK_THROWS_WITH(
    plan_decode<single_config>(cache.ref(), {slots, nullptr, 2}, {0, 1}, work.ref(), nullptr),
    contains("head_dim"));
  CHECK_NOTHROW(plan(2, {0, 0}));  // no layers, no launch
}
