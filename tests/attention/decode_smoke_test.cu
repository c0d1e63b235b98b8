// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The first thing to run on decode attention: two tiers, every edge of a page, a few grids. Small
//! enough for compute-sanitizer.
#include <diffkv/policy/paper.hpp>

#include "support/catch.hpp"
#include "support/decode_case.cuh"

namespace {

using namespace diffkv;

template <class High, class Low, int HeadDim, int GroupSize>
void smoke(std::uint32_t heads, std::vector<decode_grid> const& grids)
{
  using config = static_config<paper_policy, High, Low, HeadDim>;
  auto lengths = test::edge_lengths<config>();
  while (lengths.size() % heads != 0) { lengths.push_back({3, 0}); }
  auto const slots = static_cast<std::uint32_t>(lengths.size() / heads);
  test::decode_case<config, decode_variant<GroupSize>, __half, __half> c{
    test::decode_parts<config>(slots, heads, GroupSize, 300)};
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    auto const first = lengths.begin() + static_cast<std::ptrdiff_t>(slot * heads);
    test::fill_rows(c.host().context(), slot, 0, {first, first + heads}, c.numbers());
  }
  auto const batch  = test::some_slots(slots, c.numbers());
  auto const query  = c.queries(slots, -2.0f, 2.0f);
  auto const bounds = test::bounds_of(config::layouts::pages);
  for (decode_grid const grid : grids) {
    CAPTURE(HeadDim, GroupSize, grid.ctas, grid.warps);
    test::decode_call call;
    call.capacity     = slots + 2;
    call.grid         = grid;
    auto attention    = c.attention(call);
    auto const answer = attention.run(batch, query);
    auto const errors = c.errors(answer, batch, query);
    CHECK(errors.out <= bounds.out);
    CHECK(errors.lse <= bounds.lse);
    CHECK_FALSE(answer.wrote_astray);
  }
}

}  // namespace

TEST_CASE("decode_attention: rows at every edge of their pages equal f64 in every grid",
          "[attention][small]")
{
  smoke<k8v4, k4v2, 128, 4>(3, {{1, 1}, {1, 3}, {3, 1}, {}});
  smoke<k16v16, void, 128, 4>(1, {{1, 2}, {}});
}
