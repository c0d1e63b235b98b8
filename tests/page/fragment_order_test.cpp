// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "page/formats.hpp"
#include "reference/fragments.hpp"
#include "support/catch.hpp"

#include <diffkv/page/fragment_order.hpp>

#include <random>

namespace {

using diffkv::code_place;
using diffkv::code_spec;
using diffkv::test::block_shape;

code_place place(code_spec spec, int head_dim, int token, int dim, bool key)
{
  return key ? diffkv::key_place(spec, head_dim, token, dim)
             : diffkv::value_place(spec, head_dim, token, dim);
}

// One lane's registers of a step, unpacked from its words as a kernel does it.
struct warp_reader {
  std::vector<std::uint8_t> const& block;
  block_shape shape;
  bool key;

  [[nodiscard]] int element(int lane, int step, int reg, int i) const
  {
    auto const [word, bit] = key ? diffkv::test::key_source(shape.bits, step, reg, i)
                                 : diffkv::test::value_source(shape.bits, step, reg, i);
    int const at           = diffkv::test::loaded_from(shape.words(), lane, word);
    std::uint32_t w        = 0;
    for (int b = 0; b < 4; ++b) { w |= std::uint32_t{block[std::size_t(at + b)]} << (8 * b); }
    return static_cast<int>((w >> bit) & ((1u << shape.bits) - 1u));
  }
};

// A block of random codes written through the library's mapping; padding and gaps hold 0.
struct coded_block {
  std::vector<std::uint8_t> bytes;
  std::vector<int> codes;  // [16][head_dim]
};
coded_block random_block(code_spec spec, int head_dim, bool key, unsigned seed)
{
  std::mt19937 random{seed};
  coded_block out;
  out.bytes.resize(std::size_t(diffkv::block_bytes(spec, head_dim)));
  for (int token = 0; token < 16; ++token) {
    for (int dim = 0; dim < head_dim; ++dim) {
      int const code = static_cast<int>(random() & ((1u << spec.bits) - 1u));
      auto const at  = place(spec, head_dim, token, dim, key);
      out.codes.push_back(code);
      out.bytes[at.byte] = std::uint8_t(out.bytes[at.byte] | ((code & 255) << at.shift));
      if (spec.bits == 16) { out.bytes[at.byte + 1] = std::uint8_t(code >> 8); }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("fragment_order: words per lane are those of this table", "[page]")
{
  struct line {
    int head_dim, groups;
    int words[5];  // of 16, 8, 4, 2, 1 bits
  };
  // 16 tokens x stored dims x bits / 1024, rounded up; stored dims per group: a multiple of 32.
  constexpr line table[] = {
    {64, 1, {16, 8, 4, 2, 1}},    {64, 2, {16, 8, 4, 2, 1}},     // 64; 2 x 32
    {80, 1, {24, 12, 6, 3, 2}},   {80, 2, {32, 16, 8, 4, 2}},    // 96; 2 x 64
    {96, 1, {24, 12, 6, 3, 2}},   {96, 2, {32, 16, 8, 4, 2}},    // 96; 2 x 64
    {112, 1, {32, 16, 8, 4, 2}},  {112, 2, {32, 16, 8, 4, 2}},   // 128; 2 x 64
    {128, 1, {32, 16, 8, 4, 2}},  {128, 2, {32, 16, 8, 4, 2}},   // 128; 2 x 64
    {128, 4, {32, 16, 8, 4, 2}},                                 // 4 x 32
    {256, 1, {64, 32, 16, 8, 4}}, {256, 2, {64, 32, 16, 8, 4}},  // 256; 2 x 128
    {256, 4, {64, 32, 16, 8, 4}},                                // 4 x 64
  };
  for (line const& l : table) {
    int const bits[] = {16, 8, 4, 2, 1};
    for (int b = 0; b < 5; ++b) {
      code_spec const spec{bits[b], l.groups};
      CAPTURE(l.head_dim, l.groups, bits[b]);
      CHECK(diffkv::words_per_lane(spec, l.head_dim) == l.words[b]);
      CHECK(diffkv::block_bytes(spec, l.head_dim) == l.words[b] * 128);
    }
  }
}

TEST_CASE("fragment_order: the byte map is the image of the tensor-core fragments", "[page]")
{
  for (int const head_dim : diffkv::test::head_dims) {
    for (bool const key : {true, false}) {
      for (code_spec const spec : diffkv::test::code_specs(head_dim, key)) {
        auto const map = diffkv::test::fragment_map({spec.bits, head_dim, spec.groups}, key);
        CAPTURE(head_dim, key, spec.bits, spec.groups);
        REQUIRE(map.size() == std::size_t(16 * head_dim));
        int wrong = 0;
        for (auto const& [element, expected] : map) {
          auto const got  = place(spec, head_dim, element.first, element.second, key);
          bool const same = int(got.byte) == expected.byte && int(got.shift) == expected.shift;
          wrong += same ? 0 : 1;
          // Later blocks repeat the first one.
          auto const later = place(spec, head_dim, element.first + 48, element.second, key);
          auto const bytes = std::uint32_t(diffkv::block_bytes(spec, head_dim));
          wrong += later == code_place{got.byte + 3 * bytes, got.shift} ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("fragment_order: places worked by hand", "[page]")
{
  // k8, head_dim 128. Token 9 is row g + 8 of g = 1; dim 77 = 2 * 32 + 13 is element 13 of t = 2:
  // step 1, second half, byte 1. Lane 6 owns 16 words; word 4 + 2 + 1 = 7 is word 3 of its 16 bytes
  // in the second unit: 512 + 6 * 16 + 3 * 4 + 1.
  CHECK(diffkv::key_place({8}, 128, 9, 77) == code_place{621, 0});
  // k4, head_dim 128: word 13 / 4 = 3, byte 1, high nibble: 6 * 16 + 3 * 4 + 1.
  CHECK(diffkv::key_place({4}, 128, 9, 77) == code_place{109, 4});
  // k2, head_dim 64 (two words a lane, 8 bytes): dim 45 = 2 * 16 + 13: word 1, second half, row g
  // + 8.
  CHECK(diffkv::key_place({2}, 64, 9, 45) == code_place{6 * 8 + 4 + 1, 6});
  // v4, head_dim 128. Token 13 = 2 * 2 + 1 + 8: t = 2, slot 3; dim 37 = 2 * 16 + 5: g = 2, step 2,
  // row g + 8. Lane 10, word 2.
  CHECK(diffkv::value_place({4}, 128, 13, 37) == code_place{10 * 16 + 2 * 4 + 3, 4});
  // v2: word 1, first half of the pair of steps.
  CHECK(diffkv::value_place({2}, 128, 13, 37) == code_place{10 * 16 + 1 * 4 + 3, 2});
  // v1, two words a lane: four steps in a word, step 2 at bit 4, row g + 8.
  CHECK(diffkv::value_place({1}, 128, 13, 37) == code_place{10 * 8 + 3, 5});
  // v4, head_dim 80, stored as 96: six words, the last two in 8 bytes a lane behind the full unit.
  // Dim 79 = 6 * 12 + 7: g = 6, step 3; dim 71 = 5 * 12 + 11: g = 5, step 5.
  CHECK(diffkv::value_place({4}, 80, 0, 79) == code_place{24 * 16 + 3 * 4, 4});
  CHECK(diffkv::value_place({4}, 80, 0, 71) == code_place{512 + 20 * 8 + 1 * 4, 4});
  // k4 in two groups of 48, each stored as 64: dim 50 is element 2 of group 1, whose words start
  // at 4.
  CHECK(diffkv::key_place({4, 2}, 96, 0, 50) == code_place{512 + 2, 0});
  // 16 bits: dim 5 of t = 0: step 1, first half, upper element; token 8 is row g + 8.
  CHECK(diffkv::key_place({16}, 64, 8, 5) == code_place{512 + 4 + 2, 0});
}

TEST_CASE("fragment_order: loads are 16 bytes a lane, what is left is one narrower unit", "[page]")
{
  for (int words = 1; words <= 64; ++words) {
    std::vector<int> used(std::size_t(words) * 128, 0);
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < words; ++word) {
        int const at = diffkv::word_offset(words, lane, word);
        CAPTURE(words, lane, word);
        REQUIRE(at == diffkv::test::loaded_from(words, lane, word));
        REQUIRE(at % 4 == 0);
        if (word < words / 4 * 4 && word % 4 == 0) { REQUIRE(at % 16 == 0); }
        for (int b = 0; b < 4; ++b) { ++used[std::size_t(at + b)]; }
      }
    }
    CHECK(std::count(used.begin(), used.end(), 1) == words * 128);
  }
}

TEST_CASE("fragment_order: an emulated mma computes K q of each group from the loaded words",
          "[page]")
{
  for (int const head_dim : diffkv::test::head_dims) {
    for (code_spec const spec : diffkv::test::code_specs(head_dim, true)) {
      block_shape const shape{spec.bits, head_dim, spec.groups};
      auto const block = random_block(spec, head_dim, true, 61);
      warp_reader const warp{block.bytes, shape, true};
      int const per   = spec.bits == 16 ? 2 : 4;
      int const steps = diffkv::test::num_steps(shape, true);
      std::mt19937 random{62};
      std::vector<long> query(std::size_t(head_dim), 0);
      for (auto& q : query) { q = long(random() % 255) - 127; }

      // D = A B over the steps of a group; column 0 of B holds the query, each lane its own dims.
      std::vector<std::vector<long>> product(std::size_t(spec.groups), std::vector<long>(16, 0));
      for (int step = 0; step < steps; ++step) {
        long a[16][32] = {}, b[32] = {};
        for (int lane = 0; lane < 32; ++lane) {
          for (int reg = 0; reg < 4; ++reg) {
            for (int i = 0; i < per; ++i) {
              auto const [row, column] = diffkv::test::a_fragment(lane, reg, i, per);
              a[row][column]           = warp.element(lane, step, reg, i);
            }
          }
          // A lane of quarter t loads elements of the t-th quarter of the group, in order.
          int const quarter    = shape.stored_dims() / 4;
          int const group_step = step % (steps / spec.groups);
          for (int reg = 0; reg < 2; ++reg) {
            for (int i = 0; i < per; ++i) {
              auto const [row, column] = diffkv::test::b_fragment(lane, reg, i, per);
              if (column != 0) { continue; }
              int const in_group = lane % 4 * quarter + group_step * 2 * per + reg * per + i;
              int const dim      = diffkv::test::unpadded(
                     shape, step / (steps / spec.groups) * shape.stored_dims() + in_group);
              b[row] = dim < 0 ? 0 : query[std::size_t(dim)];
            }
          }
        }
        for (int row = 0; row < 16; ++row) {
          for (int k = 0; k < 8 * per; ++k) {
            product[std::size_t(step / (steps / spec.groups))][std::size_t(row)] +=
              a[row][k] * b[k];
          }
        }
      }
      int wrong = 0;
      for (int token = 0; token < 16; ++token) {
        for (int group = 0; group < spec.groups; ++group) {
          long expected = 0;
          for (int e = 0; e < shape.group_dims(); ++e) {
            int const dim = group * shape.group_dims() + e;
            expected += block.codes[std::size_t(token * head_dim + dim)] * query[std::size_t(dim)];
          }
          wrong += product[std::size_t(group)][std::size_t(token)] == expected ? 0 : 1;
        }
      }
      CAPTURE(head_dim, spec.bits, spec.groups);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("fragment_order: an emulated mma computes V^T p from the loaded words", "[page]")
{
  for (int const head_dim : diffkv::test::head_dims) {
    for (code_spec const spec : diffkv::test::code_specs(head_dim, false)) {
      block_shape const shape{spec.bits, head_dim, spec.groups};
      auto const block = random_block(spec, head_dim, false, 63);
      warp_reader const warp{block.bytes, shape, false};
      int const per = spec.bits == 16 ? 2 : 4;
      // The lane of column group t supplies the weights of tokens 2t, 2t + 8, 2t + 1, 2t + 9.
      auto const weight = [](int token) { return long(token * 7 + 3); };
      std::vector<long> out(std::size_t(spec.groups * shape.stored_dims()), 0);
      for (int step = 0; step < diffkv::test::num_steps(shape, false); ++step) {
        long a[16][16] = {}, b[16] = {};
        for (int lane = 0; lane < 32; ++lane) {
          for (int reg = 0; reg < diffkv::test::num_registers(shape, false); ++reg) {
            for (int i = 0; i < per; ++i) {
              auto const [row, column] = diffkv::test::a_fragment(lane, reg, i, per);
              a[row][column]           = warp.element(lane, step, reg, i);
            }
          }
          int const tokens[] = {2 * (lane % 4), 2 * (lane % 4) + 8, 2 * (lane % 4) + 1,
                                2 * (lane % 4) + 9};
          for (int j = 0; j < 4; ++j) {
            int const reg            = j / per;
            auto const [row, column] = diffkv::test::b_fragment(lane, reg, j % per, per);
            if (column == 0) { b[row] = weight(tokens[j]); }
          }
        }
        int const steps = shape.stored_dims() / 16;
        for (int row = 0; row < 16; ++row) {
          int const dim = step / steps * shape.stored_dims() + row % 8 * (shape.stored_dims() / 8) +
                          step % steps * 2 + row / 8;
          for (int k = 0; k < 16; ++k) { out[std::size_t(dim)] += a[row][k] * b[k]; }
        }
      }
      int wrong = 0;
      for (int stored = 0; stored < int(out.size()); ++stored) {
        int const dim = diffkv::test::unpadded(shape, stored);
        long expected = 0;
        for (int token = 0; token < 16 && dim >= 0; ++token) {
          expected += block.codes[std::size_t(token * head_dim + dim)] * weight(token);
        }
        wrong += out[std::size_t(stored)] == expected ? 0 : 1;  // padding: 0
      }
      CAPTURE(head_dim, spec.bits, spec.groups);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("fragment_order: token_place puts tokens g and g + 8 side by side", "[page]")
{
  std::vector<int> used(160, 0);
  for (int token = 0; token < 160; ++token) {
    int const at = diffkv::token_place(token);
    REQUIRE(at / 16 == token / 16);
    ++used[std::size_t(at)];
    if (token % 16 < 8) {
      CHECK(at % 2 == 0);
      CHECK(diffkv::token_place(token + 8) == at + 1);
    }
  }
  CHECK(std::count(used.begin(), used.end(), 1) == 160);
  int const first_block[] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  for (int token = 0; token < 16; ++token) {
    CHECK(diffkv::token_place(token) == first_block[token]);
  }
}
