// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Prints what lies where in a page.
//! Read before this: page/page_view.hpp.  Read next: pool/page_pool.hpp.
#include <diffkv/page/page_geometry.hpp>  // page_geometry

#include <iomanip>  // setw
#include <ostream>

namespace diffkv {

//! Writes the six segments with their offsets and sizes, nominal and real bytes per token.
inline void print_byte_map(std::ostream& out, page_geometry const& page)
{
  auto const flags     = out.flags();
  auto const precision = out.precision();
  out << "page of " << page.page_bytes << " bytes: " << page.tokens_per_page << " tokens of "
      << name(page.format) << ", head_dim " << page.head_dim << '\n';
  auto const segment = [&](char const* what, std::uint32_t first, std::uint32_t last) {
    out << "  " << std::setw(7) << first << " .. " << std::setw(7) << last << "  " << std::left
        << std::setw(15) << what << std::right << std::setw(7) << last - first << " bytes\n";
  };
  segment("key codes", page.key_codes, page.key_metadata);
  segment("key metadata", page.key_metadata, page.value_codes);
  segment("value codes", page.value_codes, page.value_metadata);
  segment("value metadata", page.value_metadata, page.scores);
  segment("scores", page.scores, page.positions);
  segment("positions", page.positions, page.end);
  segment("unused", page.end, page.page_bytes);
  out << std::fixed << std::setprecision(1) << "  bytes per token: nominal "
      << page.nominal_bytes_per_token() << ", real " << page.real_bytes_per_token()
      << "; 16-bit: " << page.head_dim * 4.0 << '\n';
  out.flags(flags);
  out.precision(precision);
}

//! Writes, for the first block of 16 tokens of a segment, which (token.dim) each byte holds, lowest
//! bits first; one line per 16 bytes. `key` chooses the key or the value segment.
inline void print_block_map(std::ostream& out, page_geometry const& page, bool key)
{
  code_spec const spec      = key ? page.format.key : page.format.value;
  std::uint32_t const first = key ? page.key_codes : page.value_codes;
  auto const bytes          = static_cast<std::uint32_t>(block_bytes(spec, page.head_dim));
  for (std::uint32_t byte = first; byte < first + bytes; ++byte) {
    if ((byte - first) % 16 == 0) {
      out << (byte == first ? "" : "\n") << std::setw(6) << byte << ':';
    }
    out << ' ';
    bool empty = true;
    for (std::uint32_t shift = 0; shift < 8; ++shift) {
      for (int token = 0; token < block_tokens; ++token) {
        for (int dim = 0; dim < page.head_dim; ++dim) {
          code_place const place = key ? page.key_code(token, dim) : page.value_code(token, dim);
          std::uint32_t const low_byte = spec.bits == 16 ? byte - byte % 2 : byte;
          if (place.byte != low_byte || place.shift != shift) { continue; }
          out << (empty ? "" : ",") << token << '.' << dim;
          empty = false;
        }
      }
    }
    if (empty) { out << '-'; }
  }
  out << '\n';
}

}  // namespace diffkv
