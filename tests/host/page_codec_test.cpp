// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <diffkv/host/page_codec.hpp>

#include <cstring>  // memcmp
#include <random>
#include <vector>

#include "support/catch.hpp"

namespace {
using namespace diffkv;

format_spec spec_of(int key_bits, int value_bits, int groups)
{
  format_spec f = k8v4::spec;
  f.key.bits    = key_bits;
  f.value.bits  = value_bits;
  f.key.groups = f.value.groups = groups;
  return f;
}
}  // namespace

TEST_CASE("page_codec: tokens read together are the tokens read one by one", "[host]")
{
  struct {
    format_spec spec;
    int head_dim;
  } const cases[] = {{spec_of(8, 4, 1), 64},   {spec_of(4, 2, 1), 64},  {spec_of(2, 1, 1), 128},
                     {spec_of(4, 8, 2), 112},  {spec_of(8, 2, 4), 256}, {spec_of(2, 8, 2), 80},
                     {spec_of(16, 16, 1), 96}, {spec_of(8, 1, 2), 96}};
  std::mt19937 random{11};
  std::normal_distribution<float> normal;
  for (auto const& c : cases) {
    CAPTURE(name(c.spec), c.head_dim);
    auto const size     = static_cast<std::uint32_t>(3 * bytes_per_block(c.spec, c.head_dim) + 127);
    auto const geometry = checked_page_geometry(c.spec, c.head_dim, size / 128 * 128);
    host::page_codec const codec{geometry};
    int const tokens = geometry.tokens_per_page;
    REQUIRE(tokens == 48);
    std::vector<std::byte> page(geometry.page_bytes);
    auto const dim = static_cast<std::size_t>(c.head_dim);
    std::vector<float> key(dim), value(dim);
    std::vector<float> keys, values;  // [tokens, head_dim], read one by one
    for (int t = 0; t < tokens; ++t) {
      for (auto& x : key) { x = normal(random); }
      for (auto& x : value) { x = normal(random); }
      codec.write_key(page.data(), t, key.data());
      codec.write_value(page.data(), t, value.data());
    }
    for (int t = 0; t < tokens; ++t) {
      codec.read_key(page.data(), t, key.data());
      codec.read_value(page.data(), t, value.data());
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
    }
    for (int first : {0, 1, 15, 16, 30}) {
      for (int count : {0, 1, 15, 16, 17, tokens - first}) {
        if (first + count > tokens) { continue; }
        CAPTURE(first, count);
        std::vector<float> got(static_cast<std::size_t>(count + 1) * dim, 7.0f);  // and a fence
        auto const from  = static_cast<std::size_t>(first) * dim;
        auto const bytes = static_cast<std::size_t>(count) * dim * sizeof(float);
        codec.read_keys(page.data(), first, count, got.data());
        CHECK(std::memcmp(got.data(), keys.data() + from, bytes) == 0);
        codec.read_values(page.data(), first, count, got.data());
        CHECK(std::memcmp(got.data(), values.data() + from, bytes) == 0);
        CHECK(got.back() == 7.0f);
      }
    }
  }
}
