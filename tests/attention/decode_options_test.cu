// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention with each conditioning, soft-cap, sliding window and scale.
#include "attention/edges_case.cuh"

namespace {
using namespace diffkv;
using test::check_edges;
using test::paper_config;
constexpr auto both = conditioning::centred | conditioning::rotated;
}  // namespace

TEST_CASE("decode_attention: equals f64 over centred and over rotated keys", "[attention]")
{
  check_edges<paper_config<k8v4, k4v2, 128, conditioning::centred>, decode_variant<4>>();
  check_edges<paper_config<k8v4, k4v2, 128, conditioning::rotated>, decode_variant<4>>();
  check_edges<paper_config<k8v4, k4v2, 128, both>, decode_variant<4>, __nv_bfloat16,
              __nv_bfloat16>();
}

TEST_CASE("decode_attention: equals f64 with a soft-cap, with a sliding window and with both",
          "[attention]")
{
  using config = paper_config<k8v4, k4v2, 128, both>;
  for (std::int32_t const window : {0, 1, 17, 100'000}) {
    CAPTURE(window);
    test::edges_setup setup;
    setup.sliding_window = window;
    check_edges<config, decode_variant<4, 0, false, true>>(setup);
    check_edges<paper_config<k16v16, void, 64>, decode_variant<4, 0, false, true>>(setup);
    for (float const cap : {5.0f, 50.0f}) {
      CAPTURE(cap);
      setup.soft_cap = cap;
      check_edges<config, decode_variant<4, 0, true, true>>(setup);
    }
  }
  test::edges_setup setup;
  setup.soft_cap = 20.0f;
  check_edges<paper_config<k16v16, void, 64>, decode_variant<4, 0, true>>(setup);
}

TEST_CASE("decode_attention: any scale gives what f64 gives with it", "[attention]")
{
  for (float const scale : {0.5f, 1.0f, 0.0f, -0.25f}) {
    CAPTURE(scale);
    test::edges_setup setup;
    setup.scale     = scale;
    setup.has_scale = true;
    check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<4>>(setup);
    check_edges<paper_config<k8v4, k4v2, 128, both>, decode_variant<4>, __nv_bfloat16,
                __nv_bfloat16>(setup);
  }
}

TEST_CASE("decode_attention: values behind tokens that draw all attention are not lost",
          "[attention]")
{
  test::edges_setup setup;
  setup.filling.sinks = 4;
  check_edges<paper_config<k8v4, k4v2, 128>, decode_variant<4>>(setup);
  check_edges<paper_config<k16v16, void, 64>, decode_variant<4>>(setup);
}
