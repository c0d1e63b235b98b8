// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode kernels of formats with two and four scale groups, for attention_device_bench.cu.
#include "attention/instances.cuh"

namespace {

using namespace diffkv;
using bench::add_attention_kernel;
using bench::attention_config;

template <int Groups>
void add_kernels()
{
  std::string const suffix = "_scale_groups" + std::to_string(Groups);
  using high               = format<8, 4, Groups, Groups>;
  using low                = format<4, 2, Groups, Groups>;
  add_attention_kernel<attention_config<format<8, 8, Groups, Groups>>, decode_variant<4>>("k8v8" +
                                                                                          suffix);
  add_attention_kernel<attention_config<high>, decode_variant<4>>("k8v4" + suffix);
  add_attention_kernel<attention_config<format<4, 4, Groups, Groups>>, decode_variant<4>>("k4v4" +
                                                                                          suffix);
  add_attention_kernel<attention_config<low>, decode_variant<4>>("k4v2" + suffix);
  add_attention_kernel<attention_config<high, low>, decode_variant<4>>("mix" + suffix);
}

[[maybe_unused]] bool const added = [] {
  add_kernels<2>();
  add_kernels<4>();
  return true;
}();

}  // namespace
