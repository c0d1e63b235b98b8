// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// docs/page_format.md against the code that it describes.
#include "support/catch.hpp"

#include <diffkv/host/page_codec.hpp>
#include <diffkv/page/byte_map.hpp>
#include <diffkv/page/page_size.hpp>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace diffkv;

std::vector<std::string> lines_of(std::istream& in)
{
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) { lines.push_back(line); }
  return lines;
}

//! What stands behind each `<!-- mark -->`: the lines of a table without its head, or of a block.
std::map<std::string, std::vector<std::string>> marked_parts()
{
  std::ifstream in{DIFFKV_SOURCE_DIR "/docs/page_format.md"};
  std::vector<std::string> const lines = lines_of(in);
  std::map<std::string, std::vector<std::string>> parts;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].rfind("<!-- ", 0) != 0) { continue; }
    auto& part       = parts[lines[i].substr(5, lines[i].size() - 9)];
    bool const table = lines.at(i + 1)[0] == '|';
    for (std::size_t j = i + (table ? 3 : 2);
         j < lines.size() && (table ? !lines[j].empty() : lines[j] != "```"); ++j) {
      part.push_back(lines[j]);
    }
  }
  return parts;
}

std::string one_decimal(double x)
{
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << x;
  return out.str();
}

//! The line of the size table for one or two formats.
std::string size_line(int head_dim, std::vector<format_spec> const& formats)
{
  std::uint32_t const bytes = formats.size() == 1
                                ? best_page_bytes(head_dim, formats[0])
                                : best_page_bytes(head_dim, formats[0], formats[1]);
  auto const of_each        = [&](auto const& text) {
    std::string joined;
    for (format_spec const& format : formats) {
      joined += joined.empty() ? "" : " + ";
      joined += text(make_page_geometry(format, head_dim, bytes));
    }
    return joined + " | ";
  };
  std::string line = "| " + std::to_string(head_dim) + " | ";
  line += of_each([](page_geometry const& g) { return name(g.format); });
  line += std::to_string(bytes) + " | ";
  line += of_each([](page_geometry const& g) { return std::to_string(g.tokens_per_page); });
  line += of_each([](page_geometry const& g) { return one_decimal(g.nominal_bytes_per_token()); });
  line += of_each([](page_geometry const& g) { return one_decimal(g.real_bytes_per_token()); });
  line.pop_back();
  return line;
}

}  // namespace

TEST_CASE("page_format.md: the table of page sizes is what the search finds", "[page]")
{
  auto const lines = marked_parts().at("table: page size");
  REQUIRE(lines.size() > 10);
  for (std::string const& line : lines) {
    std::istringstream in{line};
    std::string bar;
    std::string word;
    int head_dim = 0;
    in >> bar >> head_dim >> bar;
    std::vector<format_spec> formats;
    while (in >> word && word != "|") {
      if (word != "+") { formats.push_back(parse_format(word)); }
    }
    REQUIRE((formats.size() == 1 || formats.size() == 2));
    CHECK(line == size_line(head_dim, formats));
  }
}

TEST_CASE("page_format.md: the table of words per lane is what the layout has", "[page]")
{
  auto const lines = marked_parts().at("table: words per lane");
  REQUIRE(lines.size() == 6);
  for (std::string const& line : lines) {
    std::istringstream in{line};
    std::string bar;
    int head_dim = 0;
    in >> bar >> head_dim;
    std::string expected = "| " + std::to_string(head_dim) + " |";
    for (int bits : {16, 8, 4, 2, 1}) {
      expected += " " + std::to_string(words_per_lane({bits}, head_dim)) + " |";
    }
    CHECK(line == expected);
  }
}

TEST_CASE("page_format.md: the byte map is what print_byte_map prints", "[page]")
{
  std::ostringstream out;
  print_byte_map(out, make_page_geometry(k8v4::spec, 64, 7168));
  std::istringstream in{out.str()};
  CHECK(marked_parts().at("byte map: k8v4 64 7168") == lines_of(in));
}

TEST_CASE("page_format.md: the first bytes of each block are what print_block_map prints", "[page]")
{
  int found = 0;
  for (auto const& [mark, part] : marked_parts()) {
    if (mark.rfind("block map: ", 0) != 0) { continue; }
    ++found;
    CAPTURE(mark);
    std::istringstream words{mark.substr(11)};
    std::string format;
    std::string side;
    words >> format >> side;
    format_spec const spec = parse_format(format);
    std::ostringstream out;
    print_block_map(out, make_page_geometry(spec, 64, best_page_bytes(64, spec)), side == "key");
    std::string const first = out.str().substr(0, out.str().find('\n'));
    REQUIRE(part.size() == 1);
    CHECK(first.substr(first.find(": ") + 2) == part[0]);
  }
  CHECK(found == 9);
}

TEST_CASE("tour.md: the numbers of the key that is followed are those of the second example",
          "[page]")
{
  page_geometry const geometry = make_page_geometry(k8v4::spec, 64, 7168);
  std::vector<float> key(64);
  for (std::size_t d = 0; d < key.size(); ++d) { key[d] = std::sin(0.3f * static_cast<float>(d)); }
  std::vector<std::byte> page(7168);
  host::page_codec{geometry}.write_key(page.data(), 3, key.data());
  page_view const view{page.data(), &geometry};
  char zero_and_scale[64];
  std::snprintf(zero_and_scale, sizeof zero_and_scale, "zero %.4f, scale %.6f",
                to_f32(view.key_affine(3, 0).zero), to_f32(view.key_affine(3, 0).scale));
  CHECK(view.code(geometry.key_code(3, 1), 8) == 165);
  CHECK(geometry.key_code(3, 1) == code_place{193, 0});

  std::ifstream in{DIFFKV_SOURCE_DIR "/docs/tour.md"};
  std::stringstream tour;
  tour << in.rdbuf();
  for (std::string const& said : {std::string{zero_and_scale}, std::string{"element 1 is 0.2955"},
                                  std::string{"165 steps"}, std::string{"at byte 193"}}) {
    CAPTURE(said);
    CHECK(tour.str().find(said) != std::string::npos);
  }
}
