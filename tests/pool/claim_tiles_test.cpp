// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/pool/claim_tiles.hpp>

#include "support/catch.hpp"

namespace {
using diffkv::claim_tiles;
using diffkv::claim_tuning_sm90;
using diffkv::make_claim_tiles;
}  // namespace

TEST_CASE("claim_tiles: tiles cover every row once and fit a CTA", "[pool]")
{
  constexpr std::uint32_t most =
    claim_tuning_sm90::max_threads * claim_tuning_sm90::rows_per_thread;
  for (std::uint32_t const sequences : {1u, 2u, 5u, 33u, 128u, 3907u, 100'000u, 4'000'000u}) {
    for (std::uint32_t const rows : {0u, 1u, 2u, 7u, 32u, 255u, 256u, 640u, 1024u, 1025u, 8191u,
                                     8192u, 8193u, 50'000u, 1'000'000u}) {
      CAPTURE(sequences, rows);
      if (std::uint64_t{sequences} * rows > 4'000'000'000u) { continue; }
      claim_tiles const t = make_claim_tiles(sequences, rows);
      bool const split    = t.per_sequence > 1;
      CHECK(t.rows <= most);
      CHECK(t.sequences <= most);
      CHECK(t.threads % 32 == 0);
      CHECK(t.threads <= claim_tuning_sm90::max_threads);
      CHECK(t.threads * claim_tuning_sm90::rows_per_thread >= t.rows);
      if (split) {
        CHECK(t.sequences == 1);
        CHECK(t.count == std::uint64_t{sequences} * t.per_sequence);
        CHECK(std::uint64_t{t.rows} * t.per_sequence >= rows);
        CHECK(std::uint64_t{t.rows} * (t.per_sequence - 1) < rows);  // no tile is empty
      } else {
        CHECK(std::uint64_t{t.sequences} * rows == t.rows);
        CHECK(std::uint64_t{t.count} * t.sequences >= sequences);
        CHECK(std::uint64_t{t.count - 1} * t.sequences < sequences);
      }
    }
  }
}

TEST_CASE("claim_tiles: a million rows are one wave of tiles", "[pool]")
{
  CHECK(make_claim_tiles(3907, 256).count <= 132);
  CHECK(make_claim_tiles(1'000'000, 1).count <= 132);
  CHECK(make_claim_tiles(1, 1'000'000).count <= 132);
  CHECK(make_claim_tiles(128, 256).count == 128);
}

TEST_CASE("claim_tiles: more rows than a grid can take are refused", "[pool]")
{
  CHECK_THROWS_WITH(make_claim_tiles(0xFFFF'FFFFu, 0xFFFF'FFFFu),
                    diffkv::test::contains("rows_per_sequence"));
}
