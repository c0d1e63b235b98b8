// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Compiles decode kernels into the list of attention/kernels.hpp.
#include "attention/kernels.hpp"

#include <diffkv/attention/decode.cuh>
#include <diffkv/policy/paper.hpp>

namespace bench {

//! Workspace for all sequences and layers of a cache, on the grid that the library would choose.
template <class Config, class Variant>
decode_workspace_ref make_attention_workspace(std::vector<void*>& owned, cache_shape const& shape)
{
  decode_grid const grid = default_decode_grid<Config, Variant>();
  layer_range const layers{0, shape.num_layers};
  std::size_t const bytes =
    decode_workspace_bytes<Config, Variant>(shape, shape.num_slots, layers, grid);
  void* memory = nullptr;
  DIFFKV_CUDA_TRY(cudaMalloc(&memory, bytes));
  owned.push_back(memory);
  return make_decode_workspace<Config, Variant>(memory, bytes, shape, shape.num_slots, layers,
                                                grid);
}

template <class Config, class Variant>
void add_attention_kernel(std::string const& name)
{
  attention_kernel k;
  k.name           = name;
  k.group_size     = Variant::group_size;
  k.head_dim       = Config::layouts::head_dim;
  k.score_every    = Variant::score_every;
  k.exact_lag      = Variant::exact_lag;
  k.conditioned    = Config::conditioned;
  k.tiers          = Config::layouts::pages;
  k.make_workspace = &make_attention_workspace<Config, Variant>;
  k.plan = [](cache_ref const& cache, batch_ref const& batch, decode_workspace_ref const& workspace,
              cudaStream_t stream) {
    plan_decode<Config>(cache, batch, {0, cache.shape.num_layers}, workspace, stream);
  };
  k.attend = [](cache_ref const& cache, std::uint32_t layer, attention_options const& options,
                decode_workspace_ref const& workspace, vectors<__half const> query,
                vectors<__half> out, float* lse, cudaStream_t stream) {
    decode_attention<Config, Variant>(cache, layer, paper_policy{}, options, workspace, query, out,
                                      lse, stream);
  };
  attention_kernels().push_back(k);
}

template <class High, class Low = void, int HeadDim = 128,
          conditioning Conditioned = conditioning::none>
using attention_config = static_config<paper_policy, High, Low, HeadDim, Conditioned>;

//! One format (or pair) at head_dim 128 with every group size measured, and at head_dim 64.
template <class High, class Low = void>
bool add_attention_kernels(char const* name)
{
  using at_128 = attention_config<High, Low>;
  add_attention_kernel<at_128, decode_variant<1>>(name);
  add_attention_kernel<at_128, decode_variant<4>>(name);
  add_attention_kernel<at_128, decode_variant<5>>(name);
  add_attention_kernel<at_128, decode_variant<7>>(name);
  add_attention_kernel<at_128, decode_variant<8>>(name);
  add_attention_kernel<attention_config<High, Low, 64>, decode_variant<4>>(name);
  return true;
}

}  // namespace bench
