// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What this teaches: how an engine generates on the GPU.
//   1. admit, store_prompt: prompts of different length become codes in pages.
//   2. step, plan_decode, and per layer append and decode_attention are captured in a graph, once.
//   3. Each token replays it; the host reads no length and no page. Its twin lives the same life.
// Without a GPU the program says so. It ends with 0 unless an answer is not as it must be.
#include <diffkv/attention/decode.cuh>
#include <diffkv/cache/device_kv_cache.cuh>
#include <diffkv/cache/kv_cache.hpp>
#include <diffkv/policy/paper.hpp>

#include <cmath>
#include <cstdio>
#include <random>

constexpr std::uint32_t capacity = 2;  // sequences of a batch
constexpr diffkv::layer_range layers{0, 2};
constexpr std::uint32_t num_heads = 2, num_q_heads = 8, qkv_heads = num_q_heads + 2 * num_heads;
constexpr std::int32_t head_dim   = 128;
constexpr std::int32_t prompts[]  = {100, 37};  // their tokens
constexpr std::int32_t max_tokens = 150;

using config  = diffkv::static_config<diffkv::paper_policy, diffkv::k8v4, diffkv::k4v2, head_dim>;
using variant = diffkv::decode_variant</*GroupSize=*/4, /*ScoreEvery=*/4>;

// What the calls read and write: in pinned memory, so that the host twin sees the same inputs.
struct buffers {
  __half qkv[layers.count * prompts[0] * qkv_heads * head_dim];  // [layers, tokens, heads, dim]
  __half out[layers.count][capacity * num_q_heads * head_dim];   // [capacity, q_heads, dim]
  float importances[num_heads * prompts[0]];                     // [num_heads, tokens]
  std::uint32_t slots[capacity];
  std::int32_t lengths[capacity];
  diffkv::sequence_usage usage[capacity];
};

int main()
{
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("there is no GPU: nothing was done");
    return 0;
  }
  cudaStream_t stream = nullptr;
  buffers* x          = nullptr;
  DIFFKV_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DIFFKV_CUDA_TRY(cudaMallocHost(&x, sizeof *x));

  // --- A cache, and its host twin. With so many pages nobody is ever refused.
  diffkv::cache_options options;
  options.shape     = {capacity, layers.count, num_heads,     variant::group_size,
                       head_dim, max_tokens,   /*window=*/16, variant::score_every};
  options.limits    = {/*high=*/3.0f, /*low=*/0.5f};
  options.num_pages = static_cast<std::uint32_t>(diffkv::pages_for_all(options));
  diffkv::cuda_async_resource const resource{stream};
  diffkv::device_kv_cache<config> owner{
    options, {/*prompts=*/1, /*layers=*/1, prompts[0]}, {}, resource, stream};
  diffkv::cache_ref const cache = owner.ref();
  diffkv::kv_cache<config> twin{options};

  // --- What attention needs besides: room for the plan of a step, and scratch.
  diffkv::decode_grid const grid = diffkv::default_decode_grid<config, variant>();
  std::size_t const bytes =
    diffkv::decode_workspace_bytes<config, variant>(cache.shape, capacity, layers, grid);
  diffkv::buffer<std::byte, diffkv::cuda_async_resource> memory{bytes, resource};
  diffkv::decode_workspace_ref const work = diffkv::make_decode_workspace<config, variant>(
    memory.data(), bytes, cache.shape, capacity, layers, grid);

  // --- The model: random vectors.
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  auto const run_model = [&] {
    for (__half& element : x->qkv) { element = __float2half(normal(random)); }
  };
  auto const from = [&](std::uint32_t layer, std::uint32_t first_head) {
    std::size_t const first = (layer * prompts[0] * qkv_heads + first_head) * head_dim;
    return diffkv::packed<__half const>(x->qkv + first, qkv_heads, head_dim);
  };
  diffkv::vectors<__half const> const no_query{};  // attention keeps the query for later scores
  constexpr std::uint32_t query = 0, key = num_q_heads, value = num_q_heads + num_heads;

  // --- 1. The prompts.
  bool right = true;
  for (std::uint32_t s = 0; s < capacity; ++s) {
    diffkv::batch_ref const one{x->slots + s, /*count=*/nullptr, /*capacity=*/1};
    x->slots[s]   = s;
    x->lengths[s] = prompts[s];
    run_model();
    for (float& i : x->importances) { i = 0.02f * std::exp(normal(random)); }
    owner.admit(one, x->lengths + s, /*refusals=*/{}, stream);
    right = twin.admit(s, prompts[s]) && right;
    for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
      diffkv::prompt_source<__half> prompt{from(layer, key), from(layer, value)};
      prompt.importances            = x->importances;
      prompt.importance_head_stride = prompt.max_tokens = prompts[s];
      owner.store_prompt(one, prompt, {layer, 1}, stream);
      twin.store_prompt(s, layer, prompt.key, prompt.value, x->importances);
    }
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));  // the inputs are written anew
  }

  // --- 2. One step. The model's own kernels belong between these calls.
  diffkv::batch_ref const batch{x->slots, /*count=*/nullptr, capacity};
  diffkv::attention_options const attention{/*scale=*/0.088f};  // 1 / sqrt(head_dim)
  cudaGraph_t captured  = nullptr;
  cudaGraphExec_t graph = nullptr;
  DIFFKV_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  owner.step(batch, /*refusals=*/{}, stream);
  diffkv::plan_decode<config>(cache, batch, layers, work, stream);
  for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
    auto const out = diffkv::packed(x->out[layer], num_q_heads, head_dim);
    owner.append(batch, layer, from(layer, key), from(layer, value), no_query, stream);
    diffkv::decode_attention<config, variant>(cache, layer, owner.policy(), attention, work,
                                              from(layer, query), out, /*lse=*/nullptr, stream);
  }
  DIFFKV_CUDA_TRY(cudaStreamEndCapture(stream, &captured));
  DIFFKV_CUDA_TRY(cudaGraphInstantiate(&graph, captured, 0));

  // --- 3. Token by token.
  float largest = 0.0f;
  __half twin_out[capacity * num_q_heads * head_dim];
  for (int t = prompts[0]; t < max_tokens; ++t) {
    run_model();
    DIFFKV_CUDA_TRY(cudaGraphLaunch(graph, stream));
    DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));  // the twin wants to look, an engine does not
    right = twin.step(x->slots, capacity) == 0 && right;
    for (std::uint32_t layer = 0; layer < layers.count; ++layer) {
      auto const q = from(layer, query);
      twin.append(x->slots, capacity, layer, from(layer, key), from(layer, value), q);
      twin.decode(x->slots, capacity, layer, attention, q,
                  diffkv::packed(twin_out, num_q_heads, head_dim), /*lse=*/nullptr);
      for (std::size_t i = 0; i < std::size(twin_out); ++i) {
        float const error = std::fabs(__half2float(x->out[layer][i]) - __half2float(twin_out[i]));
        right             = right && error < 0.002f;  // two steps of f16; no NaN
        largest           = std::fmax(largest, error);
      }
    }
  }
  owner.statistics({/*free_pages=*/nullptr, x->usage}, stream);
  owner.release(batch, /*report=*/nullptr, stream);
  DIFFKV_CUDA_TRY(cudaStreamSynchronize(stream));
  for (std::uint32_t s = 0; s < capacity; ++s) {
    right = right && x->usage[s].nominal_bytes == twin.usage(s).nominal_bytes;  // the same tiers
  }
  std::printf("largest difference to the host's outputs: %.6f\n", static_cast<double>(largest));
  std::puts(right ? "every answer is right" : "WRONG");
  return right ? 0 : 1;
}
