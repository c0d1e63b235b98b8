// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! How text is cut into pieces, by the patterns of GPT-2, SmolLM2, Llama 3 and Qwen2.
#include "llama3/pretokenizer.hpp"

#include "llama3/file_error.hpp"
#include "tiny_tokenizer.hpp"

#include "support/catch.hpp"

#include <chrono>
#include <random>
#include <string>
#include <vector>

namespace {
using namespace std::literals;
using namespace llama3::test;
using diffkv::test::contains;
using llama3::pretokenizer;
using pieces = std::vector<std::string>;

pretokenizer const gpt2{byte_level(true)};
pretokenizer const smollm{smollm_pieces()};
pretokenizer const llama3_pieces{split_by(llama3_pattern)};
pretokenizer const qwen2{split_by(qwen2_pattern)};

std::string joined(pieces const& parts)
{
  std::string text;
  for (auto const& part : parts) { text += part; }
  return text;
}

std::string refusal(json const& description)
{
  try {
    pretokenizer{description};
  } catch (llama3::file_error const& error) {
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("pretokenizer: digits are cut as each model's pattern says", "[llama3]")
{
  CHECK(llama3_pieces.split("1234567") == pieces{"123", "456", "7"});
  CHECK(llama3_pieces.split(" 12345") == pieces{" ", "123", "45"});
  CHECK(llama3_pieces.split("3.14159") == pieces{"3", ".", "141", "59"});
  CHECK(llama3_pieces.split("A1B22C333D4444") ==
        pieces{"A", "1", "B", "22", "C", "333", "D", "444", "4"});
  CHECK(llama3_pieces.split("12") == pieces{"12"});
  CHECK(llama3_pieces.split("123456") == pieces{"123", "456"});

  CHECK(qwen2.split("1234") == pieces{"1", "2", "3", "4"});
  CHECK(qwen2.split(" 12") == pieces{" ", "1", "2"});
  CHECK(smollm.split("1234") == pieces{"1", "2", "3", "4"});
  CHECK(smollm.split("a 12b") == pieces{"a", " ", "1", "2", "b"});
  CHECK(gpt2.split("1234567") == pieces{"1234567"});
  CHECK(gpt2.split(" 12345") == pieces{" 12345"});
  CHECK(gpt2.split("3.14159") == pieces{"3", ".", "14159"});
  // Numbers are Unicode's, not only 0 to 9: a fraction, Arabic digits, a Roman numeral.
  CHECK(qwen2.split("\u00BD\u0663\u2167") == pieces{"\u00BD", "\u0663", "\u2167"});
  CHECK(smollm.split("\u0663\u0664") == pieces{"\u0663", "\u0664"});
  CHECK(gpt2.split(" \u0663\u0664") == pieces{" \u0663\u0664"});
}

TEST_CASE("pretokenizer: the last space before a word belongs to the word", "[llama3]")
{
  for (auto const* const p : {&gpt2, &smollm, &llama3_pieces, &qwen2}) {
    CHECK(p->split("a   b") == pieces{"a", "  ", " b"});
    CHECK(p->split("  hello") == pieces{" ", " hello"});
    CHECK(p->split("end   ") == pieces{"end", "   "});
    CHECK(p->split("    return x") == pieces{"   ", " return", " x"});
    CHECK(p->split(" ") == pieces{" "});
    CHECK(p->split("   ") == pieces{"   "});
    CHECK(p->split("a b") == pieces{"a", " b"});
    CHECK(p->split("").empty());
    // U+3000 and U+00A0 are white space; U+180E is not, since Unicode 6.3.
    CHECK(p->split("a\u3000\u3000") == pieces{"a", "\u3000\u3000"});
    CHECK(p->split("\u00A0\u00A0 b") == pieces{"\u00A0\u00A0", " b"});
    CHECK(p->split("!\u180E") == pieces{"!\u180E"});
    CHECK(p->split("\u0085\u2028\u205F") == pieces{"\u0085\u2028\u205F"});
  }
}

TEST_CASE("pretokenizer: line breaks stay together where the pattern says so", "[llama3]")
{
  CHECK(llama3_pieces.split("a\r\n\r\nb") == pieces{"a", "\r\n\r\n", "b"});
  CHECK(llama3_pieces.split("x;\n\n  y") == pieces{"x", ";\n\n", " ", " y"});
  CHECK(llama3_pieces.split("a  \n \n  b") == pieces{"a", "  \n \n", " ", " b"});
  CHECK(gpt2.split("a\n\nb") == pieces{"a", "\n", "\n", "b"});
  CHECK(gpt2.split("x;\n y") == pieces{"x", ";", "\n", " y"});
}

TEST_CASE("pretokenizer: contractions in any case, where the pattern says so", "[llama3]")
{
  for (auto const* const p : {&llama3_pieces, &qwen2}) {
    CHECK(p->split("I'LL we'Ve 'sup") == pieces{"I", "'LL", " we", "'Ve", " '", "sup"});
    CHECK(p->split("don't DON'T") == pieces{"don", "'t", " DON", "'T"});
  }
  CHECK(llama3_pieces.split("it's2024's") == pieces{"it", "'s", "202", "4", "'s"});
  CHECK(qwen2.split("it's20's") == pieces{"it", "'s", "2", "0", "'s"});
  // Without (?i:...) an upper-case one is punctuation and a word; then Llama 3's would be a word
  // with its apostrophe.
  CHECK(gpt2.split("don't DON'T") == pieces{"don", "'t", " DON", "'", "T"});
  CHECK(gpt2.split("it's2024's") == pieces{"it", "'s", "2024", "'s"});
  CHECK(llama3_pieces.split("o'clock") == pieces{"o", "'clock"});
}

TEST_CASE("pretokenizer: letters are Unicode's", "[llama3]")
{
  CHECK(gpt2.split("na\u00EFve \u4F60\u597D, \u0416\u0443\u043A!") ==
        pieces{"na\u00EFve", " \u4F60\u597D", ",", " \u0416\u0443\u043A", "!"});
  // The short classes are Unicode's too, as in the library that the patterns are written for.
  pretokenizer const short_classes{split_by(R"(\d+|\w+)")};
  CHECK(short_classes.split("\u0663\u0664-\u00E9t\u00E9") ==
        pieces{"\u0663\u0664", "-", "\u00E9t\u00E9"});
  // A combining mark is no letter; an emoji is neither letter, number nor space.
  CHECK(gpt2.split("e\u0301a") == pieces{"e", "\u0301", "a"});
  CHECK(llama3_pieces.split("hi \U0001F638\U0001F638!") == pieces{"hi", " \U0001F638\U0001F638!"});
}

TEST_CASE("pretokenizer: a Split treats its matches as its behaviour says", "[llama3]")
{
  auto const cut = [](json const& pattern, char const* behavior, bool invert,
                      std::string const& text) {
    return pretokenizer(sequence({split(pattern, behavior, invert), byte_level(false)}))
      .split(text);
  };
  json const dash{{"String", "-"}}, word{{"Regex", "[a-z]+"}};
  std::string const text = "a--b-c";
  CHECK(cut(dash, "Isolated", false, text) == pieces{"a", "-", "-", "b", "-", "c"});
  CHECK(cut(dash, "Removed", false, text) == pieces{"a", "b", "c"});
  CHECK(cut(dash, "Contiguous", false, text) == pieces{"a", "--", "b", "-", "c"});
  CHECK(cut(dash, "MergedWithPrevious", false, text) == pieces{"a-", "-", "b-", "c"});
  CHECK(cut(dash, "MergedWithNext", false, text) == pieces{"a", "-", "-b", "-c"});
  CHECK(cut(word, "Removed", true, text) == pieces{"a", "b", "c"});
  CHECK(cut(word, "Isolated", true, text) == pieces{"a", "--", "b", "-", "c"});
  CHECK(cut(word, "Removed", false, "abc").empty());
  CHECK(cut(dash, "MergedWithPrevious", false, "-a") == pieces{"-", "a"});
  CHECK(cut(dash, "MergedWithNext", false, "a-") == pieces{"a", "-"});
  // A string is not a pattern, and an empty match cuts without taking anything.
  CHECK(cut({{"String", "."}}, "Isolated", false, "a.b") == pieces{"a", ".", "b"});
  CHECK(cut({{"Regex", "(?=b)"}}, "Isolated", false, "abab\u00E9b") ==
        pieces{"a", "ba", "b\u00E9", "b"});
}

TEST_CASE("pretokenizer: add_prefix_space adds one space, unless there is one", "[llama3]")
{
  pretokenizer const with_space{byte_level(true, true)};
  CHECK(with_space.split("hello you") == pieces{" hello", " you"});
  CHECK(with_space.split(" hello") == pieces{" hello"});
  CHECK(with_space.split("\nhello") == pieces{" ", "\n", "hello"});
  CHECK(with_space.split("").empty());
}

TEST_CASE("pretokenizer: bytes that are not UTF-8 are pieces of their own", "[llama3]")
{
  for (auto const* const p : {&gpt2, &smollm, &llama3_pieces, &qwen2}) {
    CHECK(p->split("\xFF\xFE"sv) == pieces{"\xFF\xFE"});
    CHECK(p->split("a\xFF"
                   "b"sv) == pieces{"a", "\xFF", "b"});
    CHECK(p->split("\xE2\x82"sv) == pieces{"\xE2\x82"});
    CHECK(p->split("ab\xED\xA0\x80 cd\xC0\xAF"sv) ==
          pieces{"ab", "\xED\xA0\x80", " cd", "\xC0\xAF"});
  }
  // A NUL is a character like any other: for Llama 3 it may begin a word.
  CHECK(gpt2.split("a\0b"sv) == pieces{"a", "\0"s, "b"});
  CHECK(llama3_pieces.split("a\0b"sv) == pieces{"a", "\0b"s});
}

TEST_CASE("pretokenizer: pieces put together are the text", "[llama3]")
{
  std::mt19937 random(31);
  std::vector<std::string> const parts{"a",      "Z",      "'s",   "'LL",    "1",         " ",
                                       "  ",     "\n",     "\r\n", "\t",     "-",         "...",
                                       "\u00E9", "\u4F60", "\xFF", "\xE2",   "\u180E",    "\u00A0",
                                       "\u0301", "\u0663", "\0"s,  "\u2028", "\U0001F638"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (auto n = random() % 30; n > 0; --n) { text += parts[random() % parts.size()]; }
    CAPTURE(round, text);
    for (auto const* const p : {&gpt2, &smollm, &llama3_pieces, &qwen2}) {
      auto const cut = p->split(text);
      CHECK(joined(cut) == text);
      for (auto const& piece : cut) { CHECK_FALSE(piece.empty()); }
    }
  }
}

TEST_CASE("pretokenizer: long texts of one kind take linear time", "[llama3]")
{
  auto const start = std::chrono::steady_clock::now();
  for (std::string const& unit : {"\x80"s, " "s, "a"s, "1"s, "\n"s, "-"s, "'"s, "\u4F60"s, " \n"s,
                                  "a "s, "- "s, "\xE2"s, "a\xFF"s}) {
    std::string text;
    while (text.size() < (1u << 18)) { text += unit; }
    for (auto const* const p : {&gpt2, &smollm, &llama3_pieces, &qwen2}) {
      CHECK(joined(p->split(text)) == text);
      CHECK(joined(p->split(text + "x")) == text + "x");
    }
  }
  std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
  // About 30 MiB; a quadratic step would take hours.
  CHECK(elapsed.count() < 300.0);
}

TEST_CASE("pretokenizer: what is not known is refused by name", "[llama3]")
{
  CHECK_THAT(refusal({{"type", "Metaspace"}, {"replacement", "\u2581"}}), contains("Metaspace"));
  CHECK_THAT(refusal(sequence({{{"type", "Whitespace"}}, byte_level(false)})),
             contains("Whitespace"));
  CHECK_THAT(refusal(nullptr), contains("null"));
  CHECK_THAT(refusal(sequence({})), contains("ByteLevel"));
  CHECK_THAT(refusal(sequence({split({{"Regex", "a"}})})), contains("no ByteLevel"));
  CHECK_THAT(refusal(sequence({byte_level(false), split({{"Regex", "a"}})})),
             contains("follow ByteLevel"));
  CHECK_THAT(refusal(sequence({split({{"Regex", "a"}}, "Sideways"), byte_level(false)})),
             contains("Sideways"));
  CHECK_THAT(refusal(sequence({split({{"Regex", 5}}), byte_level(false)})), contains("Regex"));
  CHECK_THAT(refusal(sequence({split("a"), byte_level(false)})), contains("pattern"));
  for (char const* const broken : {"(a", "[a", "\\p{Nonsense}", "a{2,1}", "[[:alpha", "a\\"}) {
    CHECK_THAT(refusal(split_by(broken)), contains("pattern"));
  }
  // Legal in both Oniguruma and PCRE2, with different meanings.
  for (char const* const ambiguous : {"\\h+", "[a&&b]", "[a[b]]", "[^\\p{L}&&[^a]]"}) {
    CHECK_THAT(refusal(split_by(ambiguous)), contains("not supported"));
  }
  for (char const* const fine : {"[]a]", "[^]a]", "[\\]\\[a]", "[[:alpha:]]+", "&&", "[a&]"}) {
    CHECK(refusal(split_by(fine)).empty());
  }
}

TEST_CASE("pretokenizer: a pattern that explodes is an error, not a hang", "[llama3]")
{
  pretokenizer const explosive{split_by("(a|aa)+$")};
  CHECK_THROWS_AS(explosive.split(std::string(100, 'a') + "c"), std::runtime_error);
}
