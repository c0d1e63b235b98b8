// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The first thing to run on decode attention: two tiers, every edge of a page, a few grids. Small
//! enough for compute-sanitizer.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: rows at every edge of their pages equal f64 in every grid",
          "[attention][small]")
{
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<4>>({3, {{1, 1}, {1, 3}, {3, 1}, {}}});
  check_edges<paper_config<k16v16, void, 128>, decode_variant<4>>({1, {{1, 2}, {}}});
  check_edges<paper_config<k4v1, k2v2, 64>, decode_variant<7>, __nv_bfloat16, __nv_bfloat16>(
    {1, {{1, 1}, {3, 1}}});
  check_edges<paper_config<k8v8, void, 96>, decode_variant<1>, float, float>({1, {{3, 1}}});
}
