// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: vectors hold float, __half or __nv_bfloat16 elements
#include <diffkv/attention/decode_params.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::vectors<float const> const keys{};
#else
diffkv::vectors<double const> const keys{};
#endif
