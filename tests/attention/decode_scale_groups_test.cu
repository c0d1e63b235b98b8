// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention over vectors with several scale groups, and with clipped ranges.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
}  // namespace

TEST_CASE("decode_attention: equals f64 where vectors have 2 or 4 scale groups", "[attention]")
{
  check_edges<paper_config<format<8, 4, 2, 4>, format<4, 2, 4, 4>, 128>, decode_variant<4>>();
  check_edges<paper_config<format<4, 8, 2, 2>, format<2, 2, 1, 2>, 64>, decode_variant<2>>();
  check_edges<paper_config<format<16, 4, 1, 4>, void, 256>, decode_variant<2>>();
}

TEST_CASE(
  "decode_attention: equals f64 where the values of the tiers have not as many scale groups",
  "[attention]")
{
  check_edges<paper_config<k16v16, format<4, 2, 1, 2>, 128>, decode_variant<4>>();
  check_edges<paper_config<format<8, 4, 2, 4>, format<4, 2, 1, 1>, 128, conditioning::rotated>,
              decode_variant<8>>();
  check_edges<paper_config<k8v4, format<4, 1, 1, 2>, 80, conditioning::rotated>,
              decode_variant<5>>();
}

TEST_CASE("decode_attention: equals f64 where ranges are clipped", "[attention]")
{
  test::edges_setup setup;
  setup.clip = 0.8f;
  check_edges<paper_config<format<8, 4, 2, 4>, format<4, 2, 4, 4>, 128>, decode_variant<4>>(setup);
}
