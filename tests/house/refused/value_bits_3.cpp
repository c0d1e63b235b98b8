// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: ValueBits must be 16, 8, 4, 2 or 1
#include <diffkv/quant/code_spec.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
auto const spec = diffkv::format<8, 4>::spec;
#else
auto const spec = diffkv::format<8, 3>::spec;
#endif
