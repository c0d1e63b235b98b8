// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: HeadDim must be a multiple of 16 from 32 to 256
#include <diffkv/page/page_layout.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::page_layout<diffkv::k8v4, 80, 7168> layout;
#else
diffkv::page_layout<diffkv::k8v4, 72, 7168> layout;
#endif
