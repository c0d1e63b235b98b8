// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: each scale group must have HeadDim / groups elements, at least 32
#include <diffkv/page/page_layout.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::page_layout<diffkv::format<8, 4, 4, 4>, 128, 7168> layout;
#else
diffkv::page_layout<diffkv::format<8, 4, 4, 4>, 64, 7168> layout;
#endif
