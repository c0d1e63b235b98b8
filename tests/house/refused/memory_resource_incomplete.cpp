// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: MemoryResource must have allocate(bytes, alignment)
#include <diffkv/core/memory.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::buffer<float, diffkv::host_resource> const memory;
#else
struct incomplete {};
diffkv::buffer<float, incomplete> const memory;
#endif
