// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The second file of a user's program.
#include "all_headers.hpp"

#include <cuda/std/span>

cuda::std::span<float> as_span(float* first, std::size_t size) { return {first, size}; }
