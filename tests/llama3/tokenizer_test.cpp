// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! Encoding and decoding: merges, bytes, control tokens, BOS.
#include "llama3/tokenizer.hpp"

#include "llama3/byte_alphabet.hpp"
#include "tiny_tokenizer.hpp"

#include "support/catch.hpp"

#include <algorithm>  // find
#include <chrono>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {
using namespace std::literals;
using namespace llama3::test;
using llama3::control_text;
using llama3::parse_tokenizer;
using llama3::token_id;
using llama3::tokenizer;
using ids = std::vector<token_id>;

json letters_file(json const& merges, bool ignore_merges)
{
  json file                      = byte_tokenizer();
  file["model"]["vocab"]         = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}};
  file["model"]["merges"]        = merges;
  file["model"]["ignore_merges"] = ignore_merges;
  return file;
}

// A braced list of two strings would be an object to the JSON library.
json pairs(std::vector<std::vector<std::string>> const& merges) { return merges; }

ids encode_abc(json const& merges, bool ignore_merges)
{
  return parse_tokenizer(letters_file(merges, ignore_merges).dump()).encode("abc");
}

// Bytes, a few merges, and control tokens.
json chat_file()
{
  json file = byte_tokenizer();
  add_merge(file, 256, "a", "b");
  add_merge(file, 257, " ", "t");
  add_token(file, 300, "<|eot_id|>");
  add_token(file, 301, "<|begin_of_text|>");
  add_token(file, 302, "<tool>", false);
  return file;
}

json llama3_post_processor(std::string const& bos)
{
  json processor                                                = json::parse(R"({
    "type": "Sequence",
    "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {}}]})");
  processor["processors"][1]["single"][0]["SpecialToken"]["id"] = bos;
  return processor;
}

std::string random_bytes(std::mt19937& random, std::size_t longest)
{
  std::string text(random() % (longest + 1), '\0');
  for (char& c : text) { c = static_cast<char>(random() % 256); }
  return text;
}
}  // namespace

TEST_CASE("byte_alphabet: each byte has its own letter, as GPT-2 published them", "[llama3]")
{
  std::map<unsigned, unsigned> const published{
    {0x00, 0x100}, {0x0A, 0x10A}, {0x0D, 0x10D}, {0x20, 0x120}, {0x7F, 0x121},
    {0x80, 0x122}, {0xA0, 0x142}, {0xAD, 0x143}, {0xAE, 0xAE},  {0xFF, 0xFF},
    {0x21, 0x21},  {0x7E, 0x7E},  {0xA1, 0xA1},  {0xAC, 0xAC},  {0x1F, 0x11F}};
  for (auto const& [byte, letter] : published) {
    CHECK(llama3::letter_of_byte(static_cast<unsigned char>(byte)) == letter);
  }
  int stand_for_bytes = 0;
  for (unsigned letter = 0; letter < 0x400; ++letter) {
    int const byte = llama3::byte_of_letter(letter);
    if (byte < 0) { continue; }
    ++stand_for_bytes;
    CHECK(llama3::letter_of_byte(static_cast<unsigned char>(byte)) == letter);
  }
  CHECK(stand_for_bytes == 256);
  CHECK(llama3::to_letters(" \n\xAD") == "\u0120\u010A\u0143");
  CHECK(llama3::from_letters("\u0120a\u00FF") == " a\xFF"s);
  // A space, U+0144 and an emoji are no letters of it.
  for (auto const* const text : {" ", "\u0144", "\U0001F638", "a\xFF"}) {
    CHECK_FALSE(llama3::from_letters(text));
  }
}

TEST_CASE("tokenizer: a whole piece in the vocabulary wins where ignore_merges says so", "[llama3]")
{
  CHECK(encode_abc(json::array({"a b"}), true) == ids{5});
  CHECK(encode_abc(json::array({"a b"}), false) == ids{3, 2});
  // Only a whole piece: with a space before it, it is another one.
  json file                        = letters_file(json::array({"a b"}), true);
  file["model"]["vocab"]["\u0120"] = 6;
  CHECK(parse_tokenizer(file.dump()).encode("abc abc") == ids{5, 6, 3, 2});
}

TEST_CASE("tokenizer: the merge of lowest rank comes first, in either spelling", "[llama3]")
{
  CHECK(encode_abc({"b c", "a b"}, false) == ids{0, 4});
  CHECK(encode_abc({"a b", "b c"}, false) == ids{3, 2});
  CHECK(encode_abc(pairs({{"b", "c"}, {"a", "b"}}), false) == ids{0, 4});
  CHECK(encode_abc(pairs({{"a", "b"}, {"b", "c"}}), false) == ids{3, 2});
  CHECK(encode_abc({"b c", "a bc"}, false) == ids{5});
  CHECK(encode_abc({"#version: 0.2", "b c", "a b"}, false) == ids{0, 4});
  CHECK(encode_abc(json::array(), false) == ids{0, 1, 2});
}

TEST_CASE("merge_table: merging is taking the lowest rank, leftmost, again and again", "[llama3]")
{
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    // Tokens are strings over a, b, c; new ones are made of those before.
    std::vector<std::string> tokens{"a", "b", "c"};
    std::map<std::pair<token_id, token_id>, std::pair<int, token_id>> rules;
    llama3::merge_table table;
    for (int rank = 0; rank < 25; ++rank) {
      auto const left    = static_cast<token_id>(random() % tokens.size());
      auto const right   = static_cast<token_id>(random() % tokens.size());
      std::string merged = tokens[static_cast<std::size_t>(left)];
      merged += tokens[static_cast<std::size_t>(right)];
      auto known         = std::find(tokens.begin(), tokens.end(), merged);
      auto const product = static_cast<token_id>(known - tokens.begin());
      if (known == tokens.end()) { tokens.push_back(merged); }
      rules[{left, right}] = {rank, product};
      table.add(left, right, product);
    }
    ids input(random() % 40);
    for (token_id& id : input) { id = static_cast<token_id>(random() % 3); }

    ids expected = input;
    for (;;) {
      std::size_t best = expected.size();
      int best_rank    = 1 << 30;
      for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
        auto const rule = rules.find({expected[i], expected[i + 1]});
        if (rule != rules.end() && rule->second.first < best_rank) {
          best      = i;
          best_rank = rule->second.first;
        }
      }
      if (best == expected.size()) { break; }
      expected[best] = rules[{expected[best], expected[best + 1]}].second;
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    llama3::merge_table::workspace work;
    table.merge(input, work);
    CAPTURE(round);
    CHECK(input == expected);
  }
}

TEST_CASE("tokenizer: any bytes decode to themselves", "[llama3]")
{
  json gpt2 = chat_file(), llama3 = chat_file();
  llama3["pre_tokenizer"]          = split_by(llama3_pattern);
  llama3["model"]["ignore_merges"] = true;
  std::mt19937 random(9);
  for (json const& file : {gpt2, llama3}) {
    auto const t = parse_tokenizer(file.dump());
    for (int b = 0; b < 256; ++b) {
      std::string const byte(1, static_cast<char>(b));
      CHECK(t.encode(byte) == ids{b});
      CHECK(t.decode({b}) == byte);
    }
    for (int round = 0; round < 1000; ++round) {
      std::string const text = random_bytes(random, 60);
      REQUIRE(t.decode(t.encode(text)) == text);
    }
    for (auto const text : {"\xFF\xFE"sv, "\x80"sv, "\xE2\x82"sv, "\xC0\xAF"sv, "\xED\xA0\x80"sv,
                            "\xF4\x90\x80\x80"sv,
                            "a\xFF"
                            "b"sv,
                            "a\0b"sv, "\0"sv, "\xF0\x9F\x98"sv}) {
      CHECK(t.decode(t.encode(text)) == text);
    }
    // Spaces and line breaks come back as such, not as the letters that stand for them.
    std::string const words = t.decode(t.encode(" the\nab"));
    CHECK(words == " the\nab");
    CHECK(t.decode(t.encode("\u0120\u010A")) == "\u0120\u010A");
  }
}

TEST_CASE("tokenizer: long pieces take no quadratic time", "[llama3]")
{
  json file = byte_tokenizer();
  // a^2, a^4, ... a^1024: every merge of a long run is made.
  std::string power = "a";
  for (int id = 256; id < 266; ++id) {
    add_merge(file, id, power, power);
    power += power;
  }
  auto const t     = parse_tokenizer(file.dump());
  auto const start = std::chrono::steady_clock::now();
  CHECK(t.encode(std::string(1u << 20, 'a')) == ids(1024, 265));
  for (auto const unit : {"\x80"sv, "a\xFF"sv, "<"sv, "\xE4\xBD\xA0"sv, "ab"sv, "\0"sv}) {
    std::string text;
    while (text.size() < (1u << 18)) { text += unit; }
    CHECK(t.decode(t.encode(text)) == text);
  }
  std::chrono::duration<double> const elapsed = std::chrono::steady_clock::now() - start;
  CHECK(elapsed.count() < 100.0);  // well under a second; a quadratic merge of 2^20 takes hours
}

TEST_CASE("tokenizer: a user's text never becomes a control token", "[llama3]")
{
  auto const t  = parse_tokenizer(chat_file().dump());
  ids const off = t.encode("a<|eot_id|>b");
  for (token_id const id : off) { CHECK(id < 300); }
  CHECK(t.decode(off) == "a<|eot_id|>b");
  CHECK(off.size() == 12);
  CHECK(t.encode("a<|eot_id|>b", control_text::parsed) == ids{'a', 300, 'b'});
  CHECK(t.encode("<|eot_id|><|eot_id|>", control_text::parsed) == ids{300, 300});
  CHECK(t.encode("<|eot_id|", control_text::parsed) == t.encode("<|eot_id|"));
  CHECK(t.is_control(300));
  CHECK_FALSE(t.is_control(302));
  CHECK_FALSE(t.is_control('a'));
  // A token that the publisher declares part of the text is one, in any text.
  CHECK(t.encode("a<tool>b") == ids{'a', 302, 'b'});
}

TEST_CASE("tokenizer: no merge and no whole piece makes a control token", "[llama3]")
{
  for (bool const ignore_merges : {false, true}) {
    json file = byte_tokenizer(split_by("[a-z]+|[^a-z]+"));
    add_merge(file, 256, "e", "n");
    add_merge(file, 257, "en", "d");
    add_merge(file, 258, "end", "s");
    add_token(file, 257, "end");
    file["model"]["ignore_merges"] = ignore_merges;
    auto const t                   = parse_tokenizer(file.dump());
    CHECK(t.encode("end") == ids{256, 'd'});
    CHECK(t.encode("end", control_text::parsed) == ids{257});
    CHECK(t.decode({257}) == "end");
    CHECK(t.encode("end end") == ids{256, 'd', ' ', 256, 'd'});
  }
}

TEST_CASE("tokenizer: of added tokens the leftmost is found, and there the longest", "[llama3]")
{
  json file = byte_tokenizer();
  add_token(file, 300, "<|a|>");
  add_token(file, 301, "<|a|><|b|>");
  add_token(file, 302, "<|b|>");
  add_token(file, 303, "|><", false);
  auto const t      = parse_tokenizer(file.dump());
  auto const parsed = control_text::parsed;
  CHECK(t.encode("<|a|><|b|>", parsed) == ids{301});
  CHECK(t.encode("<|a|>x<|b|>", parsed) == ids{300, 'x', 302});
  CHECK(t.encode("<|a|><|a|>", parsed) == ids{300, 300});
  // With control tokens off, what they hid is found.
  CHECK(t.encode("<|a|><|b|>") == ids{'<', '|', 'a', 303, '|', 'b', '|', '>'});
}

TEST_CASE("tokenizer: an answer begins with exactly one BOS, if the model wants it", "[llama3]")
{
  json file              = chat_file();
  file["post_processor"] = llama3_post_processor("<|begin_of_text|>");
  auto const with        = parse_tokenizer(file.dump());
  CHECK(with.bos() == 301);
  CHECK(with.starts_with_bos());
  CHECK(with.with_bos(with.encode("ab")) == ids{301, 256});
  CHECK(with.with_bos(with.encode("<|begin_of_text|>ab", control_text::parsed)) == ids{301, 256});
  CHECK(with.with_bos(with.encode("")) == ids{301});
  CHECK(with.with_bos(with.with_bos({})) == ids{301});

  auto const without = parse_tokenizer(chat_file().dump());
  CHECK_FALSE(without.bos());
  CHECK(without.with_bos(without.encode("")).empty());
  CHECK(without.with_bos(without.encode("ab")) == ids{256});

  // tokenizer_config.json names a BOS, and says whether a text begins with it.
  json config{{"bos_token", "<|begin_of_text|>"}};
  auto const named = parse_tokenizer(chat_file().dump(), config.dump());
  CHECK(named.bos() == 301);
  CHECK(named.with_bos({5}) == ids{5});
  config["add_bos_token"] = true;
  CHECK(parse_tokenizer(chat_file().dump(), config.dump()).with_bos({5}) == ids{301, 5});
  config["bos_token"] = {{"content", "<|begin_of_text|>"}, {"special", true}};
  CHECK(parse_tokenizer(chat_file().dump(), config.dump()).with_bos({}) == ids{301});
  config["add_bos_token"] = false;
  CHECK(parse_tokenizer(file.dump(), config.dump()).with_bos({5}) == ids{5});
  config["bos_token"] = nullptr;
  CHECK_FALSE(parse_tokenizer(chat_file().dump(), config.dump()).bos());
}

TEST_CASE("tokenizer: empty text and ids out of range", "[llama3]")
{
  auto const t = parse_tokenizer(chat_file().dump());
  CHECK(t.encode("").empty());
  CHECK(t.encode("", control_text::parsed).empty());
  CHECK(t.decode({}).empty());
  CHECK(t.size() == 303);
  CHECK(t.token_bytes(302) == "<tool>");
  // 258 to 299 are a gap.
  for (token_id const id : {-1, 303, 304, 258, 299, 2147483647, -2147483647 - 1}) {
    CHECK_THROWS_AS(t.decode({id}), std::out_of_range);
    CHECK_THROWS_AS(t.decode({'a', id}), std::out_of_range);
    CHECK_THROWS_AS(t.token_bytes(id), std::out_of_range);
    CHECK_FALSE(t.is_control(id));
  }
}

TEST_CASE("tokenizer: a byte without a token is left out, or is the unknown token", "[llama3]")
{
  json file = letters_file(json::array({"a b"}), false);
  CHECK(parse_tokenizer(file.dump()).encode("axbc") == ids{3, 2});
  file["model"]["vocab"]["?"] = 6;
  file["model"]["unk_token"]  = "?";
  CHECK(parse_tokenizer(file.dump()).encode("axb") == ids{0, 6, 1});
  // A control token must not stand for a user's byte.
  add_token(file, 6, "?");
  CHECK(parse_tokenizer(file.dump()).encode("axbc") == ids{3, 2});
}

TEST_CASE("tokenizer: NFC is applied where the file asks for it and ICU is there", "[llama3]")
{
  json file          = byte_tokenizer();
  file["normalizer"] = {{"type", "NFC"}};
  auto const t       = parse_tokenizer(file.dump());
  CHECK(t.decode(t.encode("\u00E9 abc \u4F60")) == "\u00E9 abc \u4F60");
  CHECK(t.decode(t.encode("e\xFF")) == "e\xFF");
  std::string const decomposed = t.decode(t.encode("e\u0301"));
  CHECK((decomposed == "e\u0301" || decomposed == "\u00E9"));
#ifdef LLAMA3_WITH_ICU
  CHECK(decomposed == "\u00E9");
  CHECK(t.decode(t.encode("\u1112\u1161\u11AB")) == "\uD55C");
#endif
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  CHECK(parse_tokenizer(file.dump()).encode("a") == ids{'a'});
}
