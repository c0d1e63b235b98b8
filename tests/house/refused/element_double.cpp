// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: vectors hold float, __half or __nv_bfloat16 elements
#include <diffkv/core/vectors.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::vectors<float const> const keys{};
#else
diffkv::vectors<double const> const keys{};
#endif
