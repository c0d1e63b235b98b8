// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Memory of the work plan, and the shares that it is cut into.
#include <diffkv/attention/decode_workspace.hpp>

#include <string>   // to_string
#include <utility>  // pair

#include "support/catch.hpp"
#include "support/plan_case.hpp"

using namespace diffkv;

TEST_CASE("decode_workspace: shares turn round", "[host]")
{
  for (std::uint32_t pages : {1u, 2u, 7u, 64u, 1000u, 4'000'000'000u}) {
    for (std::uint32_t parts : {1u, 3u, 64u, 1056u}) {
      CAPTURE(pages, parts);
      CHECK(share_begin(pages, 0, parts) == 0);
      CHECK(share_begin(pages, parts, parts) == pages);
      for (std::uint32_t i = 0; i < 50; ++i) {
        std::uint32_t const page = static_cast<std::uint32_t>(std::uint64_t{pages} * i / 50);
        std::uint32_t const part = share_of(pages, page, parts);
        CHECK(part < parts);
        CHECK(share_begin(pages, part, parts) <= page);
        CHECK(share_begin(pages, part + 1, parts) > page);
      }
    }
  }
}

TEST_CASE("decode_workspace: its parts are aligned, do not overlap and fill what is asked for",
          "[host]")
{
  cache_shape shape{};
  shape.num_slots  = 5;
  shape.num_layers = 3;
  shape.num_heads  = 7;
  decode_grid const grid{11, 3, 2};
  test::host_workspace const memory{shape, 5, {1, 2}, grid};
  decode_workspace_ref const& work = memory.ref();
  CHECK(work.num_rows == 5 * 7 * 2);
  std::pair<void const*, std::size_t> const parts[] = {
    {work.ranges, 2 * 33 * sizeof(warp_range)},
    {work.rows, 2 * 70 * sizeof(planned_row)},
    {work.sequences, 2 * 5 * sizeof(planned_sequence)},
    {work.totals, 2 * sizeof(planned_layer)},
    {work.arrivals, 11 * sizeof(std::uint32_t)},
    {work.partials, 2 * 11 * work.partial_floats * sizeof(float)}};
  std::byte const* end = memory.data();
  for (auto const& [data, bytes] : parts) {
    CHECK(reinterpret_cast<std::uintptr_t>(data) % workspace_alignment == 0);
    CHECK(static_cast<std::byte const*>(data) >= end);
    end = static_cast<std::byte const*>(data) + bytes;
  }
  CHECK(end <= memory.data() + memory.size());
  CHECK(memory.data() + memory.size() - end < 256);
}

TEST_CASE("decode_workspace: what cannot be is refused by name", "[host]")
{
  using test::contains;
  cache_shape shape{};
  shape.num_layers = 2;
  alignas(256) static std::byte memory[4096];
  auto const make = [&](std::size_t bytes, std::size_t offset, layer_range layers, decode_grid grid,
                        std::uint32_t capacity = 1) {
    static_cast<void>(
      make_decode_workspace(memory + offset, bytes, shape, capacity, layers, grid, 0));
  };
  std::size_t const needed = decode_workspace_bytes(shape, 1, {0, 2}, {1, 1, 1}, 0);
  CHECK_NOTHROW(make(needed, 0, {0, 2}, {1, 1, 1}));
  CHECK_THROWS_WITH(make(needed - 1, 0, {0, 2}, {1, 1, 1}),
                    contains("memory") && contains(std::to_string(needed)));
  CHECK_THROWS_WITH(make(needed, 128, {0, 2}, {1, 1, 1}), contains("aligned to 256"));
  CHECK_THROWS_WITH(make(needed, 0, {1, 2}, {1, 1, 1}), contains("layers"));
  for (decode_grid const grid : {decode_grid{0, 1, 1}, {1, 0, 1}, {1, 1, 0}}) {
    CHECK_THROWS_WITH(make(needed, 0, {0, 2}, grid), contains("grid"));
  }
  CHECK_THROWS_WITH(make(needed, 0, {0, 2}, {8192, 8, 1}), contains("65535 warps"));
  CHECK_THROWS_WITH(make(needed, 0, {0, 2}, {1, 1, 2}, 0x8000'0000u), contains("capacity"));
}
