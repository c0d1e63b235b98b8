// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention where a key or a value is stored as f16: with each other width, head size and element type.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: equals f64 where keys, values or both are 16 bits wide", "[attention]")
{
  check_edges<paper_config<k16v16, void, 128>, decode_variant<4>, __nv_bfloat16, __nv_bfloat16>();
  check_edges<paper_config<k16v4, format<2, 16>, 64>, decode_variant<2>, __half, __nv_bfloat16>();
  check_edges<paper_config<k16v8, k8v16, 96>, decode_variant<1>, __nv_bfloat16, __half>();
}

TEST_CASE("decode_attention: equals f64 where keys are 16 bits wide and values next to nothing",
          "[attention]")
{
  check_edges<paper_config<format<16, 2>, format<16, 1>, 256>, decode_variant<3>>();
}
