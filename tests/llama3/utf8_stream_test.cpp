// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Streaming: whatever bytes the tokens have, what is shown is valid UTF-8 at every moment.
#include "llama3/utf8_stream.hpp"

#include "support/catch.hpp"

#include <algorithm>  // min
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {
using namespace std::literals;
using llama3::utf8_stream;

constexpr auto replacement = "\uFFFD"sv;

std::string utf8_of(unsigned c)
{
  auto const part = [](unsigned value) { return static_cast<char>(value); };
  if (c < 0x80) { return {part(c)}; }
  if (c < 0x800) { return {part(0xC0 | c >> 6), part(0x80 | (c & 0x3F))}; }
  if (c < 0x10000) {
    return {part(0xE0 | c >> 12), part(0x80 | (c >> 6 & 0x3F)), part(0x80 | (c & 0x3F))};
  }
  return {part(0xF0 | c >> 18), part(0x80 | (c >> 12 & 0x3F)), part(0x80 | (c >> 6 & 0x3F)),
          part(0x80 | (c & 0x3F))};
}

// Written apart from the code under test: decodes by arithmetic, then compares the encoding.
bool is_valid_utf8(std::string_view text)
{
  for (std::size_t i = 0; i < text.size();) {
    auto const byte = [&](std::size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    unsigned const b    = byte(i);
    std::size_t const n = b < 0x80 ? 1 : b >= 0xF0 ? 4 : b >= 0xE0 ? 3 : 2;
    unsigned code       = n == 1 ? b : b & (0x7Fu >> n);
    for (std::size_t k = 1; k < n; ++k) { code = code << 6 | (byte(i + k) & 0x3F); }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) { return false; }
    if (text.substr(i, n) != utf8_of(code)) { return false; }
    i += n;
  }
  return true;
}

std::string at_once(std::string_view bytes)
{
  utf8_stream stream;
  std::string text = stream.push(bytes);
  return text + stream.finish();
}

struct shown {
  std::vector<std::string> flushes;
  std::string tail;
};

shown feed(std::vector<std::string_view> const& tokens)
{
  utf8_stream stream;
  shown result;
  for (auto const token : tokens) {
    result.flushes.push_back(stream.push(token));
    CHECK(is_valid_utf8(result.flushes.back()));
    CHECK(stream.num_held_bytes() <= 3);
  }
  result.tail = stream.finish();
  CHECK(stream.num_held_bytes() == 0);
  return result;
}

using texts = std::vector<std::string>;
}  // namespace

TEST_CASE("utf8_stream: a character split over tokens is shown once it is complete", "[llama3]")
{
  CHECK(feed({"\xF0\x9F\x98"sv, "\xB8"sv, "!"sv}).flushes == texts{"", "\U0001F638", "!"});
  CHECK(feed({"\xE4"sv, "\xBD"sv, "\xA0"sv}).flushes == texts{"", "", "\u4F60"});
  CHECK(feed({"a\xC3"sv, "\xA9z\xF0"sv, "\x9F"sv, ""sv, "\x98\xB8"sv}).flushes ==
        texts{"a", "\u00E9z", "", "", "\U0001F638"});
}

TEST_CASE("utf8_stream: a broken beginning is replaced as soon as a byte shows it", "[llama3]")
{
  CHECK(feed({"\xF0\x9F"sv, "A"sv}).flushes == texts{"", "\uFFFD"s + "A"});
  CHECK(feed({"\xFF"sv, "A"sv}).flushes == texts{"\uFFFD", "A"});
  CHECK(feed({"\xE4\xBD"sv, "\xF0\x9F\x98\xB8"sv}).flushes == texts{"", "\uFFFD\U0001F638"});
  CHECK(feed({"\xE4"sv, "\xE4\xBD\xA0"sv}).flushes == texts{"", "\uFFFD\u4F60"});
  CHECK(feed({"\xF0\x9F\x98"sv, "\xF0"sv, "\x9F\x98\xB8"sv}).flushes ==
        texts{"", "\uFFFD", "\U0001F638"});
}

TEST_CASE("utf8_stream: an unfinished tail is one replacement at the end, and then forgotten",
          "[llama3]")
{
  for (auto const tail :
       {"\xC3"sv, "\xE4"sv, "\xE4\xBD"sv, "\xF0"sv, "\xF0\x9F"sv, "\xF0\x9F\x98"sv}) {
    utf8_stream stream;
    CHECK(stream.push(tail).empty());
    CHECK(stream.finish() == replacement);
    CHECK(stream.finish().empty());
    CHECK(stream.push("a") == "a");
  }
}

TEST_CASE("utf8_stream: lone continuation bytes are replaced one by one", "[llama3]")
{
  utf8_stream stream;
  for (int i = 0; i < 1000; ++i) { CHECK(stream.push("\x80") == replacement); }
  CHECK(stream.num_held_bytes() == 0);
}

TEST_CASE("utf8_stream: replacements are those of the Unicode Standard's tables 3-8 to 3-11",
          "[llama3]")
{
  // "?" stands for U+FFFD.
  struct row {
    std::string_view bytes, shown;
  };
  for (row const& r : {row{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"sv, "????????A"},
                       row{"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"sv, "????????A"},
                       row{"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"sv, "?????A??B"},
                       row{"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"sv, "????A"},
                       row{"a\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"sv, "a???b?c??d"}}) {
    std::string text = at_once(r.bytes);
    for (auto at = text.find(replacement); at != std::string::npos; at = text.find(replacement)) {
      text.replace(at, replacement.size(), "?");
    }
    CHECK(text == r.shown);
  }
}

TEST_CASE("utf8_stream: every character comes through byte by byte", "[llama3]")
{
  utf8_stream stream;
  long failures = 0;
  for (unsigned c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) { continue; }
    std::string const character = utf8_of(c);
    std::string text;
    for (char const byte : character) { text += stream.push({&byte, 1}); }
    failures += text != character;
  }
  CHECK(failures == 0);
}

TEST_CASE("utf8_stream: any bytes in any portions give the text of the whole", "[llama3]")
{
  std::mt19937 random(20);
  // Lead bytes, continuations and ASCII alike, so that every kind of break is frequent.
  auto const bytes =
    "\x00\x41\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC2\xDF\xE0\xED\xEF\xF0\xF4\xF5\xFF"sv;
  for (int round = 0; round < 2000; ++round) {
    std::string input;
    for (auto n = random() % 40; n > 0; --n) { input += bytes[random() % bytes.size()]; }
    std::vector<std::string_view> portions;
    for (std::string_view rest = input; !rest.empty();) {
      std::size_t const n = std::min<std::size_t>(1 + random() % 5, rest.size());
      portions.push_back(rest.substr(0, n));
      rest.remove_prefix(n);
    }
    auto const parts = feed(portions);
    std::string joined;
    for (auto const& flush : parts.flushes) { joined += flush; }
    CAPTURE(round);
    CHECK(joined + parts.tail == at_once(input));
    if (is_valid_utf8(input)) { CHECK(joined == input); }
  }
}
