// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One cache of short rows that end at every edge, and decode attention over it beside f64: what most
//! tests of formats, extents and options do.
#include <diffkv/policy/paper.hpp>

#include "support/catch.hpp"
#include "support/decode_case.cuh"

namespace diffkv::test {

struct edges_setup {
  std::uint32_t heads = 2;
  std::vector<decode_grid> grids{{}, {5, 3}};
  float scale                 = 0.0f;
  bool has_scale              = false;  //!< else 1 / sqrt(head_dim)
  float soft_cap              = 0.0f;
  std::int32_t sliding_window = 0;
  float clip                  = 1.0f;
  row_filling filling{};
};

//! Two formats at once, in two tiers; Low may be void.
template <class High, class Low, int HeadDim, conditioning Set = conditioning::none>
using paper_config = static_config<paper_policy, High, Low, HeadDim, Set>;

template <class Config, class Variant, class T = __half, class Out = __half>
void check_edges(edges_setup const& setup = {})
{
  auto lengths = edge_lengths<Config>();
  lengths.push_back({200, 0});
  if (Config::layouts::has_low) { lengths.push_back({70, 130}); }
  while (lengths.size() % setup.heads != 0) { lengths.push_back({3, 0}); }
  auto const slots = static_cast<std::uint32_t>(lengths.size() / setup.heads);
  auto parts       = decode_parts<Config>(slots, setup.heads, Variant::group_size, 300);
  for (page_geometry* const g : {&parts.tiers.high, &parts.tiers.low}) {
    g->format.key.clip = g->format.value.clip = setup.clip;
  }
  decode_case<Config, Variant, T, Out> c{parts};
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    auto const first = lengths.begin() + static_cast<std::ptrdiff_t>(slot * setup.heads);
    fill_rows(c.host().context(), slot, 0, {first, first + setup.heads}, c.numbers(),
              setup.filling);
  }
  if (setup.has_scale) { c.options().scale = setup.scale; }
  c.options().soft_cap       = setup.soft_cap;
  c.options().sliding_window = setup.sliding_window;

  auto const batch    = some_slots(slots, c.numbers());
  float const low     = setup.filling.sinks > 0 ? -0.75f : -2.0f;
  auto const query    = c.queries(slots, low, setup.filling.sinks > 0 ? 1.25f : 2.0f);
  auto const expected = bounds_of(Config::layouts::pages);
  for (decode_grid const grid : setup.grids) {
    CAPTURE(name(Config::layouts::high_format::spec), name(Config::layouts::low_format::spec),
            Config::layouts::head_dim, static_cast<int>(Config::conditioned), Variant::group_size,
            grid.ctas, grid.warps);
    decode_call call;
    call.capacity     = slots + 2;
    call.grid         = grid;
    auto attention    = c.attention(call);
    auto const answer = attention.run(batch, query);
    auto const errors = c.errors(answer, batch, query);
    CHECK(errors.out <= expected.out);
    CHECK(errors.lse <= expected.lse);
    CHECK_FALSE(answer.wrote_astray);
  }
}

}  // namespace diffkv::test
