// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention with more q_heads to a head than one pass may take.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: equals f64 for groups of 16 and 20 q_heads", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<16>>();
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<20>, __nv_bfloat16, __nv_bfloat16>();
  check_edges<paper_config<k16v16, void, 64>, decode_variant<16>>();
}
