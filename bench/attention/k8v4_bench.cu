// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode kernels of k8v4 pages, for attention_device_bench.cu.
#include "attention/instances.cuh"

namespace {
[[maybe_unused]] bool const added = bench::add_attention_kernels<diffkv::k8v4>("k8v4");
}  // namespace
