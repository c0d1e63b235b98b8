// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention where all numbers are codes: 8 bits with each other width.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: equals f64 where keys or values are 8 bits wide", "[attention]")
{
  check_edges<paper_config<k8v8, void, 128>, decode_variant<4>>();
  check_edges<paper_config<k8v2, format<2, 1>, 80>, decode_variant<5>, __nv_bfloat16,
              __nv_bfloat16>();
  check_edges<paper_config<k4v8, k2v4, 112>, decode_variant<7>, __half, __nv_bfloat16>();
  check_edges<paper_config<format<8, 1>, k4v4, 128>, decode_variant<4>, __nv_bfloat16, __half>();
}
