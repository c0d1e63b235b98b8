// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// flags: -ffast-math
// expect: diffkv needs IEEE arithmetic
#if defined(DIFFKV_TEST_ACCEPTED)
#define DIFFKV_ALLOW_FAST_MATH  // the user says that the loss is understood
#endif
#include <diffkv/core/types.hpp>
