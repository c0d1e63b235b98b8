// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: ValueGroups must be 1, 2 or 4
#include <diffkv/quant/code_spec.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
auto const spec = diffkv::format<8, 4, 1, 2>::spec;
#else
auto const spec = diffkv::format<8, 4, 1, 3>::spec;
#endif
