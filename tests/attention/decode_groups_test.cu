// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention with up to eight q_heads to a head.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: equals f64 for groups of up to 4 q_heads", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<1>>();
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<2>>();
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<3>>({4});
}

TEST_CASE("decode_attention: equals f64 for groups of 5 to 8 q_heads", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<5>>();
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<7>>();
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<8>>();
}
