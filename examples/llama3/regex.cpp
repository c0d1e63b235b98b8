// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/regex.hpp"

#include "llama3/file_error.hpp"
#include "llama3/utf8.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>  // runtime_error

namespace llama3 {
namespace {
pcre2_code* code_of(std::shared_ptr<void> const& code)
{
  return static_cast<pcre2_code*>(code.get());
}

std::string message_of(int error)
{
  unsigned char text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<char const*>(text);
}

// The pattern as PCRE2 should read it. Its own \s also takes U+180E, which is no space since
// Unicode 6.3; the property White_Space (PCRE2 10.40) is what the published patterns mean.
std::string translate(std::string const& pattern)
{
  auto const refuse = [&](char const* what) {
    throw file_error("pattern \"" + pattern + "\": " + what + " is not supported");
  };
  std::string result;
  bool in_set = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    char const c    = pattern[i];
    char const next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      if (next == 'h' || next == 'H') { refuse("\\h (a hexadecimal digit or a space?)"); }
      if (next == 's') {
        result += "\\p{White_Space}";
      } else if (next == 'S') {
        result += "\\P{White_Space}";
      } else {
        result += c;
        if (next != '\0') { result += next; }
      }
      ++i;
      continue;
    }
    if (in_set) {
      if (c == '[' && next != ':') { refuse("a set inside a set"); }
      if (c == '&' && next == '&') { refuse("&& in a set"); }
      if (c == '[') {  // [:alpha:]
        std::size_t const end = pattern.find(":]", i);
        if (end == std::string::npos) { refuse("an open [:"); }
        result.append(pattern, i, end + 2 - i);
        i = end + 1;
        continue;
      }
      in_set = c != ']';
    } else if (c == '[') {
      in_set = true;
      result += c;
      // A ] that stands first is a member.
      if (pattern.compare(i + 1, 2, "^]") == 0) {
        result += "^]";
        i += 2;
      } else if (next == ']') {
        result += next;
        ++i;
      }
      continue;
    }
    result += c;
  }
  return result;
}
}  // namespace

regex::regex(std::string const& pattern, syntax kind) : pattern_(pattern)
{
  bool const literal       = kind == syntax::literal;
  std::string const source = literal ? pattern : translate(pattern);
  int error                = 0;
  PCRE2_SIZE offset        = 0;
  // PCRE2_UTF checks the pattern's own encoding.
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                            literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP, &error,
                            &offset, nullptr),
              [](void* code) { pcre2_code_free(static_cast<pcre2_code*>(code)); });
  if (!code_) {
    throw file_error("pattern \"" + source + "\", byte " + std::to_string(offset) + ": " +
                     message_of(error));
  }
  // Where there is no JIT, this fails and pcre2_match interprets: slower, the same matches.
  pcre2_jit_compile(code_of(code_), PCRE2_JIT_COMPLETE);
}

std::vector<byte_range> regex::find_all(std::string_view text) const
{
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> const data{
    pcre2_match_data_create(1, nullptr), &pcre2_match_data_free};
  auto const match = [&](std::size_t from, std::uint32_t options) {
    return pcre2_match(code_of(code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options | PCRE2_NO_UTF_CHECK, data.get(), nullptr);
  };
  std::vector<byte_range> found;
  std::size_t from = 0;
  while (from <= text.size()) {
    int status = match(from, 0);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) { status = match(from, PCRE2_NO_JIT); }
    if (status == PCRE2_ERROR_NOMATCH) { break; }
    if (status < 0) {
      throw std::runtime_error("pattern \"" + pattern_ + "\" on this text: " + message_of(status));
    }
    PCRE2_SIZE const* const at = pcre2_get_ovector_pointer(data.get());
    found.push_back({at[0], at[1]});
    from = at[1];
    if (at[0] == at[1]) {  // an empty match: go on behind the next character
      if (from == text.size()) { break; }
      from += read_utf8(text.substr(from)).num_bytes;
    }
  }
  return found;
}
}  // namespace llama3
