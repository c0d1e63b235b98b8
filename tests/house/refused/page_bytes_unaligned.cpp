// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: PageBytes must be a multiple of 128
#include <diffkv/page/page_layout.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::page_layout<diffkv::k8v4, 128, 7168> layout;
#else
diffkv::page_layout<diffkv::k8v4, 128, 7200> layout;
#endif
