// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Decode attention over rows of thousands of tokens, with the default grid and a single warp.
#include "attention/edges_case.cuh"

namespace {

using namespace diffkv;
using test::paper_config;

//! @param tokens  [sequences][heads]
template <class Config, class Variant, class T = __half, class Out = __half>
void check_long(std::vector<std::vector<tier_counts>> const& tokens,
                std::vector<decode_grid> const& grids, test::row_filling const& filling = {})
{
  auto const slots      = static_cast<std::uint32_t>(tokens.size());
  auto const heads      = static_cast<std::uint32_t>(tokens[0].size());
  std::uint32_t longest = 1;
  for (auto const& sequence : tokens) {
    for (tier_counts const t : sequence) { longest = std::max(longest, t.sum()); }
  }
  auto parts      = test::decode_parts<Config>(slots, heads, Variant::group_size,
                                          static_cast<std::int32_t>(longest));
  parts.num_pages = test::pages_of<Config>(tokens);
  test::decode_case<Config, Variant, T, Out> c{parts};
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    test::fill_rows(c.host().context(), slot, 0, tokens[slot], c.numbers(), filling);
  }
  auto const batch = test::some_slots(slots, c.numbers());
  auto const query =
    c.queries(slots, filling.sinks > 0 ? -0.75f : -2.0f, filling.sinks > 0 ? 1.25f : 2.0f);
  auto const bounds = test::bounds_of(Config::layouts::pages);
  for (decode_grid const grid : grids) {
    CAPTURE(longest, grid.ctas, grid.warps);
    test::decode_call call;
    call.capacity     = slots;
    call.grid         = grid;
    auto attention    = c.attention(call);
    auto const answer = attention.run(batch, query);
    auto const errors = c.errors(answer, batch, query);
    CHECK(errors.out <= bounds.out);
    CHECK(errors.lse <= bounds.lse);
  }
}

std::vector<std::vector<tier_counts>> ragged(std::uint32_t slots, std::uint32_t heads,
                                             std::uint32_t about, bool has_low)
{
  test::random r{about};
  std::vector<std::vector<tier_counts>> all(slots, std::vector<tier_counts>(heads));
  for (auto& sequence : all) {
    for (tier_counts& t : sequence) {
      std::uint32_t const n = about / 2 + r.below(about);
      t.low                 = has_low ? r.below(n) : 0;
      t.high                = n - t.low;
    }
  }
  return all;
}

}  // namespace

TEST_CASE("decode_attention: ragged rows of about 3000 tokens equal f64", "[attention]")
{
  check_long<paper_config<k8v4, k4v2, 128>, decode_variant<4>>(ragged(3, 4, 3000, true),
                                                               {{}, {37, 8}, {1, 1}});
  check_long<paper_config<k8v4, k4v2, 128>, decode_variant<4>>(ragged(2, 3, 3000, true),
                                                               {{}, {132, 1}}, {1.0f, 1.0f, 5});
  check_long<paper_config<k16v16, void, 128>, decode_variant<4>>(ragged(2, 3, 3000, false), {{}});
}

TEST_CASE("decode_attention: one row of 131072 tokens equals f64", "[attention]")
{
  check_long<paper_config<k8v4, k4v2, 128>, decode_variant<4>>({{{40'000, 91'072}}}, {{}, {2, 1}});
  check_long<paper_config<k8v4, k4v2, 256>, decode_variant<8>, __nv_bfloat16, __nv_bfloat16>(
    {{{131'072, 0}}}, {{}});
}
