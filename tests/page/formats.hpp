// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The formats and head dims that the tests of pages go through, and a page's bytes.
#include <diffkv/page/page_geometry.hpp>
#include <diffkv/page/page_view.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace diffkv::test {

inline constexpr int head_dims[] = {64, 80, 96, 112, 128, 256};

//! Every legal (bits, groups) of one side.
[[nodiscard]] inline std::vector<code_spec> code_specs(int head_dim, bool key)
{
  std::vector<code_spec> out;
  for (int const bits : {16, 8, 4, 2, 1}) {
    for (int const groups : {1, 2, 4}) {
      code_spec const spec{bits, groups};
      if (is_legal(spec, head_dim) && !(key && bits == 1)) { out.push_back(spec); }
    }
  }
  return out;
}

//! Every legal pair.
[[nodiscard]] inline std::vector<format_spec> formats(int head_dim)
{
  std::vector<format_spec> out;
  for (code_spec const key : code_specs(head_dim, true)) {
    for (code_spec const value : code_specs(head_dim, false)) { out.push_back({key, value}); }
  }
  return out;
}

[[nodiscard]] inline std::string describe(format_spec const& format, int head_dim)
{
  return name(format) + " in " + std::to_string(format.key.groups) + "/" +
         std::to_string(format.value.groups) + " groups, head_dim " + std::to_string(head_dim);
}

//! Bytes of one page and the window over them. `fill` is what lies there before.
struct page_bytes {
  page_geometry geometry;
  std::vector<std::byte> bytes;

  explicit page_bytes(page_geometry const& page, std::byte fill = std::byte{0xA5})
    : geometry{page}, bytes(page.page_bytes, fill)
  {}
  [[nodiscard]] page_view view() { return {bytes.data(), &geometry}; }
};

}  // namespace diffkv::test
