// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Reads the tables of a document, so that a worked table stands in one place only.
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace diffkv::test {

using table_rows = std::vector<std::vector<std::string>>;

//! Cells of every table of `file` whose header is exactly `header`, in the order of the document.
//! @throws runtime_error if the file cannot be read
[[nodiscard]] inline std::vector<table_rows> tables_of(std::string const& file,
                                                       std::vector<std::string> const& header)
{
  auto const cells = [](std::string const& line) {
    std::vector<std::string> out;
    std::istringstream in{line.substr(1)};
    for (std::string cell; std::getline(in, cell, '|');) {
      std::size_t const first = cell.find_first_not_of(' ');
      std::size_t const last  = cell.find_last_not_of(' ');
      out.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    }
    return out;
  };
  std::ifstream in{file};
  if (!in) { throw std::runtime_error("cannot read " + file); }
  std::vector<table_rows> out;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] != '|') {
      inside = false;
      continue;
    }
    if (line.rfind("|---", 0) == 0) { continue; }
    auto const row = cells(line);
    if (row == header) {
      inside = true;
      out.emplace_back();
    } else if (inside) {
      out.back().push_back(row);
    }
  }
  return out;
}

}  // namespace diffkv::test
