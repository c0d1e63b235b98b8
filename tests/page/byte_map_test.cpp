// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "page/formats.hpp"
#include "support/catch.hpp"

#include <diffkv/page/byte_map.hpp>
#include <diffkv/page/page_size.hpp>

#include <iomanip>
#include <set>
#include <sstream>

TEST_CASE("byte_map: the map of a page names segments, offsets, sizes, nominal and real bytes",
          "[page]")
{
  std::ostringstream out;
  print_byte_map(out, diffkv::make_page_geometry(diffkv::k8v4::spec, 128, 7168));
  CHECK(out.str() ==
        "page of 7168 bytes: 32 tokens of k8v4, head_dim 128\n"
        "        0 ..    4096  key codes         4096 bytes\n"
        "     4096 ..    4224  key metadata       128 bytes\n"
        "     4224 ..    6272  value codes       2048 bytes\n"
        "     6272 ..    6400  value metadata     128 bytes\n"
        "     6400 ..    6528  scores             128 bytes\n"
        "     6528 ..    6656  positions          128 bytes\n"
        "     6656 ..    7168  unused             512 bytes\n"
        "  bytes per token: nominal 192.0, real 224.0; 16-bit: 512.0\n");
}

TEST_CASE("byte_map: 16-bit segments have no metadata", "[page]")
{
  std::ostringstream out;
  print_byte_map(out, diffkv::make_page_geometry(diffkv::k16v16::spec, 64, 8448));
  CHECK_THAT(out.str(), diffkv::test::contains("4096 ..    4096  key metadata         0 bytes"));
}

TEST_CASE("byte_map: printing leaves the stream's own format as it was", "[page]")
{
  std::ostringstream out;
  out << std::setprecision(3);
  print_byte_map(out, diffkv::make_page_geometry(diffkv::k8v4::spec, 128, 7168));
  out.str("");
  out << 1.23456;
  CHECK(out.str() == "1.23");
}

TEST_CASE("byte_map: the map of a block names every (token, dim) where the mapping puts it",
          "[page]")
{
  for (diffkv::format_spec const& format :
       {diffkv::k8v4::spec, diffkv::k2v2::spec, diffkv::format_spec{{16}, {1}}}) {
    for (bool const key : {true, false}) {
      auto const page = diffkv::make_page_geometry(format, 80, 8192);
      std::ostringstream out;
      print_block_map(out, page, key);
      std::istringstream lines{out.str()};
      std::string line;
      std::set<std::string> seen;
      int wrong = 0;
      while (std::getline(lines, line)) {
        std::istringstream words{line};
        std::uint32_t byte = 0;
        char colon         = 0;
        words >> byte >> colon;
        for (std::string cell; words >> cell; ++byte) {
          std::istringstream names{cell};
          for (std::string element; cell != "-" && std::getline(names, element, ',');) {
            int const token  = std::stoi(element.substr(0, element.find('.')));
            int const dim    = std::stoi(element.substr(element.find('.') + 1));
            auto const place = key ? page.key_code(token, dim) : page.value_code(token, dim);
            int const bits   = key ? format.key.bits : format.value.bits;
            wrong += place.byte == (bits == 16 ? byte / 2 * 2 : byte) ? 0 : 1;
            seen.insert(element);
          }
        }
      }
      CAPTURE(name(format), key);
      CHECK(wrong == 0);
      CHECK(seen.size() == 16 * 80);
    }
  }
}
