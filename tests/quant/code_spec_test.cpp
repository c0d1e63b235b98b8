// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <diffkv/quant/code_spec.hpp>

using diffkv::code_spec;
using diffkv::format_spec;
using diffkv::test::contains;

TEST_CASE("code_spec: legal are the widths, groups and clips of the definition, no others",
          "[quant]")
{
  for (int bits = -1; bits <= 17; ++bits) {
    for (int groups = -1; groups <= 8; ++groups) {
      for (int const head_dim : {32, 64, 80, 96, 112, 128, 256}) {
        bool const width = bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16;
        bool const group = groups == 1 || ((groups == 2 || groups == 4) && bits != 16 &&
                                           head_dim % groups == 0 && head_dim >= 32 * groups);
        CAPTURE(bits, groups, head_dim);
        CHECK(is_legal(code_spec{bits, groups}, head_dim) == (width && group));
      }
    }
  }
  for (float const clip : {0.0f, -0.5f, 1.01f}) {
    CHECK_FALSE(is_legal(code_spec{4, 1, clip}, 64));
  }
  CHECK_FALSE(is_legal(code_spec{4, 1, __builtin_nanf("")}, 64));
  CHECK(is_legal(code_spec{4, 1, 0.01f}, 64));
}

TEST_CASE("code_spec: max_code and metadata follow from bits and groups", "[quant]")
{
  CHECK(code_spec{1}.max_code() == 1);
  CHECK(code_spec{2}.max_code() == 3);
  CHECK(code_spec{4}.max_code() == 15);
  CHECK(code_spec{8}.max_code() == 255);
  CHECK(code_spec{8, 4}.metadata_bytes() == 16);
  CHECK(code_spec{1, 2}.metadata_bytes() == 8);
  CHECK(code_spec{16}.metadata_bytes() == 0);
}

TEST_CASE("code_spec: every pair of widths has a name that is read back", "[quant]")
{
  for (int const key : {16, 8, 4, 2}) {
    for (int const value : {16, 8, 4, 2, 1}) {
      for (int const groups : {1, 2}) {
        format_spec const format{{key, key < 16 ? groups : 1}, {value, value < 16 ? groups : 1}};
        CHECK(is_legal(format, 128));
        CHECK(diffkv::parse_format(name(format), groups) == format);
      }
    }
  }
  CHECK(name(diffkv::k8v4::spec) == "k8v4");
  CHECK(diffkv::k4v2::spec == format_spec{{4}, {2}});
  CHECK(diffkv::k16v16::spec == format_spec{{16}, {16}});
}

TEST_CASE("code_spec: 1-bit keys are no format, 1-bit values are", "[quant]")
{
  CHECK_FALSE(is_legal(format_spec{{1}, {4}}, 64));
  CHECK(is_legal(format_spec{{4}, {1}}, 64));
}

TEST_CASE("code_spec: a text that is no format is refused with the legal widths", "[quant]")
{
  for (char const* text : {"", "k", "v", "kv", "k8", "v4", "k8v", "kv4", "k3v4", "k8v3", "k1v4",
                           "K8V4", "k8v4 ", " k8v4", "8v4", "k08v4", "k8v4v2", "k-8v4", "none"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(diffkv::parse_format(text),
                      contains("use kXvY with X of 16, 8, 4, 2 and Y of 16, 8, 4, 2, 1"));
  }
}
