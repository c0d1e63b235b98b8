// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What the mix costs with scores or conditioning on top, for attention_device_bench.cu.
#include "attention/instances.cuh"

namespace {

using namespace diffkv;
using bench::add_attention_kernel;
using bench::attention_config;

constexpr auto both = conditioning::centred | conditioning::rotated;
using mix           = attention_config<k8v4, k4v2>;
using conditioned   = attention_config<k8v4, k4v2, 128, both>;

[[maybe_unused]] bool const added = [] {
  add_attention_kernel<conditioned, decode_variant<4>>("mix_conditioned");
  add_attention_kernel<mix, decode_variant<4, 4>>("mix_every4");
  // The exact scores of every step: no lag rounding, no query waits.
  add_attention_kernel<mix, decode_variant<4, 1, false, false, true>>("mix_every1");
  return true;
}();

}  // namespace
