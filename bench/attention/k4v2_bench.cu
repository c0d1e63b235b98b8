// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// Decode kernels of k4v2 pages, for attention_device_bench.cu.
#include "attention/instances.cuh"

namespace {
[[maybe_unused]] bool const added = bench::add_attention_kernels<diffkv::k4v2>("k4v2");
}  // namespace
