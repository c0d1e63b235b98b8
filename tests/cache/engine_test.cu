// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! How an engine drives the write path on the device: with device_kv_cache, or with the free functions
//! on memory of its own. docs/memory_manager.md shows parts of this file.
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/cache/kv_cache.hpp>

#include "support/catch.hpp"
#include "support/device_cache.hpp"
#include "support/device_memory.hpp"
#include "support/host_cache.hpp"
#include "support/random.hpp"

namespace {

// In an engine's own header: formats, head_dim and policy are known when kernels are compiled.
using config = diffkv::static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, 128>;

//! What the layers of a model write for one step: [layers, batch, heads, head_dim] each.
struct step_buffers {
  __half* key;
  __half* value;
  __half* query;
};

//! Memory that an engine keeps for as long as its graphs.
struct engine_memory {
  diffkv::batch_ref batch;         // slots and count lie in device memory
  diffkv::refusals_ref refusals;   // device memory, or pinned
  diffkv::statistics_ref numbers;  // likewise
  void* workspace;                 // one for all operations
  std::size_t workspace_bytes;
};

//! One token more in every sequence of the batch.
void enqueue_step(diffkv::cache_ref const& cache, engine_memory const& memory,
                  step_buffers const& x, cudaStream_t stream)
{
  diffkv::cache_shape const& shape = cache.shape;
  diffkv::step<config>(cache, memory.batch, diffkv::paper_policy{}, memory.workspace,
                       memory.workspace_bytes, memory.refusals, stream);
  for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    // Here the layer's projections write its part of x.
    std::size_t const vectors_before = std::size_t{layer} * memory.batch.capacity;
    auto const of                    = [&](__half* all, std::uint32_t heads) {
      return diffkv::packed<__half const>(all + vectors_before * heads * shape.head_dim, heads,
                                          shape.head_dim);
    };
    diffkv::append<config>(cache, memory.batch, layer, of(x.key, shape.num_heads),
                           of(x.value, shape.num_heads), of(x.query, shape.num_q_heads()), stream);
    // Here decode attention reads the pages.
  }
  diffkv::collect_statistics(cache, memory.numbers, stream);
}

void fill(diffkv::test::staged_array<__half> const& x, diffkv::test::random& random,
          cudaStream_t stream)
{
  for (__half& element : x.host()) { diffkv::from_f32(random.uniform(-2.0f, 2.0f), element); }
  x.upload(stream);
}

constexpr std::int32_t head_dim = 128;
constexpr std::int32_t prompt   = 150;
diffkv::cache_shape const shape{4, 2, 2, 2, head_dim, 220, 16, 4};

}  // namespace

TEST_CASE("free functions: an engine's own memory, graph and batches go through a whole life",
          "[cache][small]")
{
  using namespace diffkv;
  test::random random{3};
  test::device_stream stream;
  test::host_cache_parts parts;
  parts.shape     = shape;
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 90;
  parts.limits    = {{0.8f, 0.4f}};
  test::host_cache twin{parts};
  test::device_cache const device{twin.ref(), 1};
  cache_ref const& cache = device.ref();
  paper_policy const policy;

  test::staged_array<std::uint32_t> slots{shape.num_slots};
  test::staged_array<std::uint32_t> count{1};
  test::pinned_array<std::uint32_t> refused{1 + shape.num_slots};
  test::pinned_array<std::uint64_t> free_pages{1};
  test::pinned_array<sequence_usage> usage{shape.num_slots};
  batch_ref const batch{slots.device(), count.device(), shape.num_slots};
  layer_range const layers{0, shape.num_layers};
  std::size_t bytes = step_workspace_bytes(shape, batch.capacity);
  bytes             = std::max(bytes, admit_workspace_bytes(batch.capacity));
  bytes             = std::max(bytes, release_slots_workspace_bytes(shape, batch.capacity));
  bytes =
    std::max(bytes, store_prompt_workspace_bytes(cache, batch.capacity, layers, prompt, policy));
  test::device_array<std::byte> const workspace{bytes};
  engine_memory const memory{batch,
                             {refused.data(), refused.data() + 1},
                             {free_pages.data(), usage.data()},
                             workspace.data(),
                             bytes};
  auto const write_batch = [&](std::vector<std::uint32_t> const& chosen) {
    std::copy(chosen.begin(), chosen.end(), slots.host().begin());
    count.host()[0] = static_cast<std::uint32_t>(chosen.size());
    slots.upload(stream.get());
    count.upload(stream.get());
  };

  // Prompts of slots 0, 2 and 3.
  std::vector<std::uint32_t> const started{2, 0, 3};
  std::vector<std::int32_t> const lengths{150, 40, 97};
  test::staged_array<std::int32_t> num_tokens{shape.num_slots};
  test::staged_array<std::int64_t> first{shape.num_slots};
  auto const n           = static_cast<std::size_t>(150 + 40 + 97);
  std::size_t const size = n * shape.rows_per_slot() * static_cast<std::size_t>(head_dim);
  test::staged_array<__half> const keys{size};
  test::staged_array<__half> const values{size};
  test::staged_array<float> const importances{n * shape.rows_per_slot()};
  fill(keys, random, stream.get());
  fill(values, random, stream.get());
  for (float& i : importances.host()) { i = random.uniform(0.0f, 1.5f) / 100.0f; }
  importances.upload(stream.get());
  std::copy(lengths.begin(), lengths.end(), num_tokens.host().begin());
  num_tokens.upload(stream.get());
  first.host()[1] = 150;
  first.host()[2] = 190;
  first.upload(stream.get());
  write_batch(started);

  admit(cache, batch, num_tokens.device(), policy, memory.workspace, bytes, memory.refusals,
        stream.get());
  prompt_source<__half> source;
  source.key              = packed<__half const>(keys.device(), shape.num_heads, head_dim);
  source.value            = packed<__half const>(values.device(), shape.num_heads, head_dim);
  source.key_layer_stride = source.value_layer_stride =
    static_cast<std::ptrdiff_t>(n * shape.num_heads) * head_dim;
  source.importances             = importances.device();
  source.importance_head_stride  = static_cast<std::ptrdiff_t>(n);
  source.importance_layer_stride = static_cast<std::ptrdiff_t>(n * shape.num_heads);
  source.first_tokens            = first.device();
  source.max_tokens              = prompt;
  store_prompt<config>(cache, batch, source, layers, policy, memory.workspace, bytes, stream.get());
  scan_candidates<config>(cache, batch, layers, policy, stream.get());
  stream.wait();
  CHECK(refused[0] == 0);

  for (std::size_t s = 0; s < started.size(); ++s) {
    host::admission const one{started[s], lengths[s]};
    REQUIRE(host::admit(twin.context(), &one, 1, policy) == 0);
  }
  for (std::size_t s = 0; s < started.size(); ++s) {
    for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
      auto const of = [&](test::staged_array<__half> const& x) {
        return packed<__half const>(
          x.host().data() + l * source.key_layer_stride + first.host()[s] * source.key.token_stride,
          shape.num_heads, head_dim);
      };
      std::vector<float> own;
      for (std::uint32_t h = 0; h < shape.num_heads; ++h) {
        float const* from =
          importances.host().data() + (std::size_t{l} * shape.num_heads + h) * n + first.host()[s];
        own.insert(own.end(), from, from + lengths[s]);
      }
      host::store_prompt(twin.context(), started[s], l, policy, of(keys), of(values), own.data());
      host::scan_candidates(twin.context(), started[s], l, policy);
    }
  }

  // Captured once, replayed for batches of other sequences and sizes.
  std::size_t const per_head = std::size_t{shape.num_layers} * shape.num_slots * head_dim;
  test::staged_array<__half> const key{per_head * shape.num_heads};
  test::staged_array<__half> const value{per_head * shape.num_heads};
  test::staged_array<__half> const query{per_head * shape.num_q_heads()};
  cudaGraph_t graph         = nullptr;
  cudaGraphExec_t next_step = nullptr;
  test::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capture");
  enqueue_step(cache, memory, {key.device(), value.device(), query.device()}, stream.get());
  test::check(cudaStreamEndCapture(stream.get(), &graph), "capture");
  test::check(cudaGraphInstantiate(&next_step, graph, 0), "cudaGraphInstantiate");
  test::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int i = 0; i < 40; ++i) {
    std::vector<std::uint32_t> chosen = started;
    test::shuffle(chosen.data(), 3, random);
    chosen.resize(random.below(4));
    write_batch(chosen);
    for (auto const* x : {&key, &value, &query}) { fill(*x, random, stream.get()); }
    test::check(cudaGraphLaunch(next_step, stream.get()), "cudaGraphLaunch");
    stream.wait();

    std::uint32_t const size_of_batch = count.host()[0];
    CHECK(refused[0] == 0);
    REQUIRE(host::step(twin.context(), chosen.data(), size_of_batch, policy) == 0);
    for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
      auto const of = [&](test::staged_array<__half> const& x, std::uint32_t heads) {
        std::size_t const before = std::size_t{l} * shape.num_slots * heads * head_dim;
        return packed<__half const>(x.host().data() + before, heads, head_dim);
      };
      host::append(twin.context(), chosen.data(), size_of_batch, l, of(key, shape.num_heads),
                   of(value, shape.num_heads), of(query, shape.num_q_heads()));
    }
    CHECK(free_pages[0] == twin.ref().ring.num_free());
    CHECK(usage[0].pages == usage_of(twin.ref(), 0).pages);
  }
  cudaGraphExecDestroy(next_step);
  test::host_cache const answer{parts};
  device.download(answer.ref());
  CHECK(test::difference_of(twin.ref(), answer.ref()) == "");

  write_batch(started);
  release_slots(cache, batch, memory.workspace, bytes, nullptr, stream.get());
  collect_statistics(cache, memory.numbers, stream.get());
  stream.wait();
  CHECK(free_pages[0] == parts.num_pages);
  CHECK(usage[2].pages == 0);
}

TEST_CASE(
  "device_kv_cache: a life in the memory that CUDA gives reads nothing that was not written",
  "[cache][small]")
{
  // What initcheck looks at: the resources of the other tests fill what they give.
  using namespace diffkv;
  test::device_stream own;
  cudaStream_t const stream = own.get();
  test::random random{4};
  std::uint32_t const slot = 1;
  test::staged_array<std::uint32_t> slots{1};
  test::staged_array<std::int32_t> num_tokens{1};
  slots.host()[0]      = slot;
  num_tokens.host()[0] = prompt;
  slots.upload(stream);
  num_tokens.upload(stream);
  std::size_t const size =
    std::size_t{prompt} * shape.rows_per_slot() * static_cast<std::size_t>(head_dim);
  test::staged_array<__half> const key{size};
  test::staged_array<__half> const value{size};
  test::staged_array<float> const importances{std::size_t{prompt} * shape.rows_per_slot()};
  fill(key, random, stream);
  fill(value, random, stream);
  for (float& i : importances.host()) { i = random.uniform(0.0f, 1.5f) / prompt; }
  importances.upload(stream);
  test::pinned_array<std::uint32_t> refused{1};
  test::pinned_array<sequence_usage> usage{shape.num_slots};
  test::pinned_array<release_report> report{1};
  prompt_source<__half> source;
  source.key              = packed<__half const>(key.device(), shape.num_heads, head_dim);
  source.value            = packed<__half const>(value.device(), shape.num_heads, head_dim);
  source.key_layer_stride = source.value_layer_stride =
    std::ptrdiff_t{prompt} * shape.num_heads * head_dim;
  source.importances             = importances.device();
  source.importance_head_stride  = prompt;
  source.importance_layer_stride = std::ptrdiff_t{prompt} * shape.num_heads;
  source.max_tokens              = prompt;
  auto const token               = source.key;  // any vectors

  cache_options options;
  options.shape     = shape;
  options.num_pages = 90;
  options.limits    = {0.8f, 0.4f};
  kv_cache<config> twin{options};
  REQUIRE(twin.admit(slot, prompt));

  device_kv_cache<config> cache{
    options, {1, shape.num_layers, prompt}, paper_policy{}, cuda_async_resource{stream}, stream};
  batch_ref const batch{slots.device(), nullptr, 1};
  cache.admit(batch, num_tokens.device(), {refused.data(), nullptr}, stream);
  cache.store_prompt(batch, source, {0, shape.num_layers}, stream);
  for (int i = 0; i < 40; ++i) {
    cache.step(batch, {refused.data(), nullptr}, stream);
    for (std::uint32_t layer = 0; layer < shape.num_layers; ++layer) {
      cache.append(batch, layer, token, token, token, stream);
    }
  }
  cache.statistics({nullptr, usage.data()}, stream);
  cache.release(batch, report.data(), stream);
  own.wait();

  for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
    auto const of = [&](test::staged_array<__half> const& x) {
      return packed<__half const>(x.host().data() + l * source.key_layer_stride, shape.num_heads,
                                  head_dim);
    };
    twin.store_prompt(slot, l, of(key), of(value),
                      importances.host().data() + l * source.importance_layer_stride);
  }
  auto const same = packed<__half const>(key.host().data(), shape.num_heads, head_dim);
  for (int i = 0; i < 40; ++i) {
    REQUIRE(twin.step(&slot, 1) == 0);
    for (std::uint32_t l = 0; l < shape.num_layers; ++l) {
      twin.append(&slot, 1, l, same, same, same);
    }
  }
  CHECK(refused[0] == 0);
  CHECK(usage[slot].num_tokens == prompt + 40);
  CHECK(usage[slot].high_tokens == twin.usage(slot).high_tokens);
  CHECK(usage[slot].low_tokens == twin.usage(slot).low_tokens);
  CHECK(usage[slot].pages == twin.usage(slot).pages);
  CHECK(report[0].released == usage[slot].pages);
  CHECK(report[0].foreign + report[0].repeated == 0);
}
