// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Reads UTF-8 one character at a time and says what is wrong with bytes that are not UTF-8.
//! Read next: llama3/utf8_stream.hpp, llama3/pretokenizer.hpp.
#include <cassert>
#include <cstddef>  // size_t
#include <string_view>

namespace llama3 {
//! What stands at the front of some bytes.
enum class utf8_kind {
  character,   //!< one well-formed character
  ill_formed,  //!< bytes that no continuation can make well-formed
  unfinished,  //!< all bytes there are, the beginning of a character
};

struct utf8_front {
  utf8_kind kind{utf8_kind::unfinished};
  std::size_t num_bytes{0};  //!< 1 to 4; 1 to 3 unless a character
};

//! The first character of `bytes`, or the longest run that could have begun one: what the Unicode
//! Standard (chapter 3.9) calls a maximal subpart, to be replaced by one U+FFFD. Overlong forms,
//! surrogates and values past U+10FFFF are ill-formed at the byte that shows it.
//! @pre `bytes` is not empty
[[nodiscard]] constexpr utf8_front read_utf8(std::string_view bytes) noexcept
{
  assert(!bytes.empty());
  auto const at    = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  auto const first = at(0);
  if (first < 0x80) { return {utf8_kind::character, 1}; }
  if (first < 0xC2 || first > 0xF4) { return {utf8_kind::ill_formed, 1}; }
  std::size_t const wanted = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // Only the second byte has a range of its own: it excludes overlong forms and surrogates.
  unsigned low = 0x80, high = 0xBF;
  if (first == 0xE0) { low = 0xA0; }
  if (first == 0xED) { high = 0x9F; }
  if (first == 0xF0) { low = 0x90; }
  if (first == 0xF4) { high = 0x8F; }
  for (std::size_t i = 1; i < wanted; ++i) {
    if (i == bytes.size()) { return {utf8_kind::unfinished, i}; }
    if (at(i) < low || at(i) > high) { return {utf8_kind::ill_formed, i}; }
    low  = 0x80;
    high = 0xBF;
  }
  return {utf8_kind::character, wanted};
}
}  // namespace llama3
