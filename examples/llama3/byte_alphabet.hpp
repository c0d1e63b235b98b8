// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The characters that stand for bytes in the vocabulary of a byte-level tokenizer.
//! Read before this: llama3/utf8.hpp.  Read next: llama3/vocabulary.hpp.
#include "llama3/utf8.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace llama3 {
//! GPT-2's alphabet: a printable byte stands for itself (read as Latin-1), the other 68 are U+0100
//! to U+0143 in their order. A space is U+0120.
[[nodiscard]] constexpr unsigned letter_of_byte(unsigned char byte) noexcept
{
  if (byte <= 0x20) { return 0x100u + byte; }
  if (byte >= 0x7F && byte <= 0xA0) { return 0x121u + (byte - 0x7Fu); }
  return byte == 0xAD ? 0x143u : byte;
}
static_assert(letter_of_byte(0x20) == 0x120 && letter_of_byte(0xA0) == 0x142);

//! The byte that `letter` stands for, -1 if it stands for none.
[[nodiscard]] constexpr int byte_of_letter(unsigned letter) noexcept
{
  if (letter > 0x143) { return -1; }
  if (letter == 0x143) { return 0xAD; }
  if (letter >= 0x121) { return static_cast<int>(letter - 0x121 + 0x7F); }
  if (letter >= 0x100) { return static_cast<int>(letter - 0x100); }
  return letter_of_byte(static_cast<unsigned char>(letter)) == letter ? static_cast<int>(letter)
                                                                      : -1;
}

//! `bytes` in letters, as UTF-8.
[[nodiscard]] inline std::string to_letters(std::string_view bytes)
{
  std::string letters;
  for (char const c : bytes) {
    unsigned const letter = letter_of_byte(static_cast<unsigned char>(c));
    if (letter < 0x80) {
      letters += static_cast<char>(letter);
    } else {
      letters += static_cast<char>(0xC0u | (letter >> 6));
      letters += static_cast<char>(0x80u | (letter & 0x3Fu));
    }
  }
  return letters;
}

//! The bytes that `letters` (UTF-8) stand for; nothing if a character stands for none.
[[nodiscard]] inline std::optional<std::string> from_letters(std::string_view letters)
{
  std::string bytes;
  while (!letters.empty()) {
    auto const front = read_utf8(letters);
    if (front.kind != utf8_kind::character || front.num_bytes > 2) { return {}; }
    auto const at         = [&](std::size_t i) { return static_cast<unsigned char>(letters[i]); };
    unsigned const letter = front.num_bytes == 1 ? at(0) : (at(0) & 0x1Fu) << 6 | (at(1) & 0x3Fu);
    int const byte        = byte_of_letter(letter);
    if (byte < 0) { return {}; }
    bytes += static_cast<char>(byte);
    letters.remove_prefix(front.num_bytes);
  }
  return bytes;
}
}  // namespace llama3
