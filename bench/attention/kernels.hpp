// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Decode kernels by name: each instance is compiled in a source file of its own kind, and put into one
//! list that the bench measures.
#include <diffkv/attention/attention_options.hpp>
#include <diffkv/attention/decode_workspace.hpp>
#include <diffkv/core/vectors.hpp>

#include <string>
#include <vector>

namespace bench {

using namespace diffkv;

//! One pair of a static_config and a decode_variant, its types forgotten.
struct attention_kernel {
  std::string name{};  //!< format, and what else it does: "k8v4", "mix_every4"
  std::uint32_t group_size = 4;
  std::int32_t head_dim    = 128;
  std::int32_t score_every = 0;
  bool exact_lag           = false;
  conditioning conditioned = conditioning::none;
  tier_pages tiers{};

  decode_workspace_ref (*make_workspace)(std::vector<void*>& owned, cache_shape const& shape) = {};
  void (*plan)(cache_ref const&, batch_ref const&, decode_workspace_ref const&, cudaStream_t) = {};
  void (*attend)(cache_ref const&, std::uint32_t layer, attention_options const&,
                 decode_workspace_ref const&, vectors<__half const> query, vectors<__half> out,
                 float* lse, cudaStream_t)                                                    = {};
};

inline std::vector<attention_kernel>& attention_kernels()
{
  static std::vector<attention_kernel> all;
  return all;
}

//! Null if no source file holds it.
[[nodiscard]] inline attention_kernel const* find_attention_kernel(std::string const& name,
                                                                   std::uint32_t group_size,
                                                                   std::int32_t head_dim)
{
  for (attention_kernel const& k : attention_kernels()) {
    if (k.name == name && k.group_size == group_size && k.head_dim == head_dim) { return &k; }
  }
  return nullptr;
}

}  // namespace bench
