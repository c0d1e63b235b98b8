// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention in every head size, conditioned and not.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
constexpr auto both = conditioning::centred | conditioning::rotated;
}  // namespace

TEST_CASE("decode_attention: equals f64 in the common head sizes", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 64>, decode_variant<4>>();
  check_edges<paper_config<k8v4, k4v2, 256>, decode_variant<4>, __nv_bfloat16, __nv_bfloat16>();
}

TEST_CASE("decode_attention: equals f64 in head sizes that are no power of two", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 80>, decode_variant<2>>();
  check_edges<paper_config<k8v4, k4v2, 96, both>, decode_variant<4>>();
  check_edges<paper_config<k8v4, k4v2, 112, conditioning::rotated>, decode_variant<1>>();
}
