// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: KeyBits must be 16, 8, 4 or 2
#include <diffkv/quant/code_spec.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
auto const spec = diffkv::format<4, 4>::spec;
#else
auto const spec = diffkv::format<3, 4>::spec;
#endif
