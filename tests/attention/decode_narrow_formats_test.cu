// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention over the narrowest codes, alone and beside 16-bit values.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
constexpr auto both = conditioning::centred | conditioning::rotated;
}  // namespace

TEST_CASE("decode_attention: equals f64 where codes are 4, 2 or 1 bits wide", "[attention]")
{
  check_edges<paper_config<k4v1, k2v2, 128>, decode_variant<8>, __nv_bfloat16, __nv_bfloat16>();
  check_edges<paper_config<format<4, 16>, format<2, 8>, 64>, decode_variant<4>>();
  check_edges<paper_config<k2v2, void, 64, both>, decode_variant<2>>();
}
