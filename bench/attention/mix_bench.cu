// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode kernels of rows with K8V4 and K4V2 pages, for attention_device_bench.cu.
#include "attention/instances.cuh"

namespace {
[[maybe_unused]] bool const added = bench::add_attention_kernels<diffkv::k8v4, diffkv::k4v2>("mix");
}  // namespace
