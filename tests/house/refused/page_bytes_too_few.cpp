// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: PageBytes must hold at least 16 tokens of Format
#include <diffkv/page/page_layout.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
diffkv::page_layout<diffkv::k16v16, 128, 16640> layout;
#else
diffkv::page_layout<diffkv::k16v16, 128, 4096> layout;
#endif
