// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/utf8_stream.hpp"

#include "llama3/utf8.hpp"

namespace llama3 {
namespace {
constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD
}  // namespace

std::string utf8_stream::push(std::string_view bytes)
{
  std::string text;
  // At most three held bytes, and each joins one byte at most before it is decided: the rest of the
  // input is read in place.
  while (!held_.empty() && !bytes.empty()) {
    held_ += bytes.front();
    auto const front = read_utf8(held_);
    if (front.kind == utf8_kind::ill_formed) {
      // The byte that showed it may begin a character of its own, so it stays in the input.
      text += replacement;
      held_.clear();
      break;
    }
    bytes.remove_prefix(1);
    if (front.kind == utf8_kind::character) {
      text += held_;
      held_.clear();
    }
  }
  while (!bytes.empty()) {
    auto const front = read_utf8(bytes);
    if (front.kind == utf8_kind::unfinished) {
      held_ = bytes;
      break;
    }
    text += front.kind == utf8_kind::character ? bytes.substr(0, front.num_bytes) : replacement;
    bytes.remove_prefix(front.num_bytes);
  }
  return text;
}

std::string utf8_stream::finish()
{
  std::string text{held_.empty() ? std::string_view{} : replacement};
  held_.clear();
  return text;
}
}  // namespace llama3
