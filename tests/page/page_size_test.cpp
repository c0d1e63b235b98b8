// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "page/formats.hpp"
#include "support/catch.hpp"

#include <diffkv/page/page_layout.hpp>

#include <cmath>
#include <cstdint>

namespace {

using diffkv::format_spec;
using diffkv::test::describe;

// Bytes of 16 tokens, counted anew: padded codes in whole words per lane, 4 bytes of scale and zero
// per group, score and position.
std::int64_t block(format_spec const& format, int head_dim)
{
  std::int64_t bytes = 16 * 8;
  for (diffkv::code_spec const side : {format.key, format.value}) {
    int const padded         = (head_dim / side.groups + 31) / 32 * 32 * side.groups;
    std::int64_t const words = (std::int64_t{16} * padded * side.bits + 1023) / 1024;
    bytes += words * 128 + (side.bits < 16 ? 16 * 4 * side.groups : 0);
  }
  return bytes;
}

// The rule, searched over every size; products are compared as whole numbers, not as fractions.
std::uint32_t brute_force(std::vector<format_spec> const& formats, int head_dim)
{
  std::int64_t least = 128;
  auto const holds   = [&](std::int64_t bytes) {
    for (auto const& f : formats) {
      if (bytes / block(f, head_dim) * 16 < 32) { return false; }
    }
    return true;
  };
  while (!holds(least)) { least += 128; }
  auto const count = static_cast<std::int64_t>(formats.size());
  std::int64_t sum = 0;  // bytes of one block of each format
  for (auto const& f : formats) { sum += block(f, head_dim); }
  // A row of 4096 tokens split evenly: 256 / count blocks of each format, so sum * 256 / count
  // bytes. waste(P) = (count * P - used) / (count * P) + count * P / 2 * count / (256 * sum)
  //          = (512 * sum * (count * P - used) + count^3 * P * P) / (512 * sum * count * P)
  std::uint32_t best = 0;
  __int128 best_top = 0, best_bottom = 1;
  for (std::int64_t bytes = least; bytes <= 8192 || 8 * bytes <= 9 * least; bytes += 128) {
    if (!holds(bytes)) { continue; }
    __int128 used = 0;
    for (auto const& f : formats) { used += bytes / block(f, head_dim) * block(f, head_dim); }
    __int128 const top = __int128{512} * sum * (count * bytes - used) +
                         __int128{count} * count * count * bytes * bytes;
    __int128 const bottom = __int128{512} * sum * count * bytes;
    if (best == 0 || top * best_bottom < best_top * bottom) {
      best        = static_cast<std::uint32_t>(bytes);
      best_top    = top;
      best_bottom = bottom;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("page_size: the search finds the optimum of its rule for every pair of formats", "[page]")
{
  int const head_dim = GENERATE(64, 80, 96, 112, 128, 256);
  std::vector<format_spec> formats;
  for (auto const& f : diffkv::test::formats(head_dim)) {
    // Groups are equal on both sides here: each pair of pairs would be 40,000 searches.
    if (f.key.groups == f.value.groups || !f.key.is_quantised() || !f.value.is_quantised()) {
      formats.push_back(f);
    }
  }
  for (auto const& high : formats) {
    if (diffkv::best_page_bytes(head_dim, high) != brute_force({high}, head_dim)) {
      FAIL_CHECK(describe(high, head_dim) << ": " << diffkv::best_page_bytes(head_dim, high)
                                          << ", not " << brute_force({high}, head_dim));
    }
    for (auto const& low : formats) {
      auto const got  = diffkv::best_page_bytes(head_dim, high, low);
      auto const want = brute_force({high, low}, head_dim);
      if (got != want) {
        FAIL_CHECK(describe(high, head_dim)
                   << " with " << name(low) << ": " << got << ", not " << want);
      }
    }
  }
  SUCCEED();
}

TEST_CASE("page_size: waste is the unused share and half a page per tier of a 4096-token row",
          "[page]")
{
  for (auto const& high : diffkv::test::formats(128)) {
    for (auto const& low : {diffkv::k4v2::spec, diffkv::k8v8::spec}) {
      for (std::uint32_t const bytes : {17408u, 20480u}) {
        format_spec const both[] = {high, low};
        double unused = 0.0, row = 0.0;
        for (auto const& f : both) {
          auto const size = static_cast<double>(block(f, 128));
          unused += (bytes - std::floor(bytes / size) * size) / bytes / 2;
          row += 4096.0 / 2 / 16 * size;  // half of the row's tokens in each tier
        }
        double const expected = unused + 2 * (bytes / 2.0) / row;
        CAPTURE(describe(high, 128), name(low), bytes);
        CHECK(std::fabs(diffkv::detail::page_waste(both, 2, 128, bytes) - expected) < 1e-12);
      }
    }
  }
}

TEST_CASE("page_size: the sizes named in the documentation", "[page]")
{
  using namespace diffkv;
  auto const tokens = [](format_spec const& format, int head_dim, std::uint32_t bytes) {
    return tokens_per_page(format, head_dim, bytes);
  };
  CHECK(best_page_bytes(128, k8v4::spec, k4v2::spec) == 7168);
  CHECK(tokens(k8v4::spec, 128, 7168) == 32);
  CHECK(tokens(k4v2::spec, 128, 7168) == 64);
  CHECK(best_page_bytes(128, k8v8::spec) == 8704);
  CHECK(tokens(k8v8::spec, 128, 8704) == 32);
  CHECK(best_page_bytes(128, k16v16::spec) == 16640);
  CHECK(tokens(k16v16::spec, 128, 16640) == 32);
  CHECK(best_page_bytes(64, k8v4::spec, k4v2::spec) == 7168);
  CHECK(tokens(k8v4::spec, 64, 7168) == 64);
  CHECK(tokens(k4v2::spec, 64, 7168) == 112);
  CHECK(tokens(k4v4::spec, 128, 7168) == 48);
}
