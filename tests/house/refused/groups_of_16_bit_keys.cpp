// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: KeyGroups must be 1, 2 or 4, and 1 for 16-bit keys
#include <diffkv/quant/code_spec.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
auto const spec = diffkv::format<8, 4, 2, 1>::spec;
#else
auto const spec = diffkv::format<16, 4, 2, 1>::spec;
#endif
