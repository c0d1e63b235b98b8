// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Compiler macros, for every room.  Read next: core/types.hpp.

#if defined(__CUDACC__)
#define DIFFKV_HOST_DEVICE __host__ __device__
//! Two libraries that both include diffkv must not share an instantiation of a kernel.
#define DIFFKV_KERNEL __attribute__((visibility("hidden"))) __global__
#else
#define DIFFKV_HOST_DEVICE
#endif

//! 1: pools keep a record of who holds which page, and report double releases and foreign ids.
#if !defined(DIFFKV_CHECKED)
#define DIFFKV_CHECKED 0
#endif

#if defined(__FAST_MATH__) && !defined(DIFFKV_ALLOW_FAST_MATH)
#error \
  "diffkv needs IEEE arithmetic (NaN containment, reproducible codes): compile without -ffast-math"
#endif
