// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! The forms in which tokenizer.json is published, and damaged or foreign files.
#include "llama3/tokenizer.hpp"

#include "llama3/file_error.hpp"
#include "tiny_tokenizer.hpp"

#include "support/catch.hpp"

#include <string>
#include <vector>

namespace {
using namespace llama3::test;
using diffkv::test::contains;
using llama3::parse_tokenizer;
using ids = std::vector<llama3::token_id>;

std::string refusal_of_text(std::string const& text, std::string const& config = "")
{
  try {
    (void)parse_tokenizer(text, config);
  } catch (llama3::file_error const& error) {
    return error.what();
  }
  return "";
}

std::string refusal(json const& file) { return refusal_of_text(file.dump()); }

// The file with one value changed; `path` as in "/model/type".
json with(std::string const& path, json const& value)
{
  json file                      = byte_tokenizer();
  file[json::json_pointer(path)] = value;
  return file;
}
}  // namespace

TEST_CASE("tokenizer.json: names with escapes are the characters they stand for", "[llama3]")
{
  // Spelled by hand: the escapes are what is tested.
  std::string const text = R"({
    "model": {"type": "BPE",
      "vocab": {"\u0120": 0, "a": 1, "\u0120a": 2, "\ud83d\ude38": 3, "\/": 4, "\"": 5, "\\": 6},
      "merges": [["\u0120", "a"]]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})";
  auto const t           = parse_tokenizer(text);
  CHECK(t.encode(" a/") == ids{2, 4});
  CHECK(t.encode("\"\\") == ids{5, 6});
  CHECK(t.decode({2}) == " a");
  // A name outside the byte alphabet is its own text, and no text becomes it.
  CHECK(t.decode({3}) == "\U0001F638");
  CHECK(t.find("\U0001F638") == 3);
}

TEST_CASE("tokenizer.json: a byte order mark is passed over", "[llama3]")
{
  CHECK(parse_tokenizer("\xEF\xBB\xBF" + byte_tokenizer().dump()).encode("a") == ids{'a'});
}

TEST_CASE("tokenizer.json: the parts of a merge in pair form may hold any letter", "[llama3]")
{
  json file = byte_tokenizer();
  // Names with a real space: no bytes make them, but the file is well-formed.
  file["model"]["vocab"]["x y"]  = 256;
  file["model"]["vocab"]["x yz"] = 257;
  file["model"]["merges"]        = json::array({json::array({"x y", "z"})});
  CHECK(parse_tokenizer(file.dump()).encode("x yz") == ids{'x', ' ', 'y', 'z'});
  CHECK(parse_tokenizer(file.dump()).decode({257}) == "x yz");
}

TEST_CASE("tokenizer.json: a merge that is not two tokens is refused, with its place", "[llama3]")
{
  for (json const& bad : {json("ab"), json("a b c"), json(" a"), json("a "), json(""),
                          json::array({"a"}), json::array({"a", "b", "c"}), json::array({"a", 1}),
                          json(5), json(nullptr), json::array({"", "a"})}) {
    json file               = with("/model/vocab/ab", 256);
    file["model"]["merges"] = json::array({"a b", bad});
    CHECK_THAT(refusal(file), contains("merge 1"));
  }
  json unknown               = byte_tokenizer();
  unknown["model"]["merges"] = json::array({"a b"});
  CHECK_THAT(refusal(unknown), contains("\"ab\" is not in the vocabulary"));
  unknown["model"]["merges"] = json::array({"\u4F60 b"});
  CHECK_THAT(refusal(unknown), contains("\u4F60"));
}

TEST_CASE("tokenizer.json: ids may have gaps and added tokens may repeat the vocabulary",
          "[llama3]")
{
  json file                         = byte_tokenizer();
  file["model"]["vocab"]["<|end|>"] = 400;
  add_token(file, 400, "<|end|>");
  add_token(file, 1000, "<|far|>");
  auto const t = parse_tokenizer(file.dump());
  CHECK(t.size() == 1001);
  CHECK(t.is_control(400));
  CHECK(t.encode("<|far|><|end|>", llama3::control_text::parsed) == ids{1000, 400});
  CHECK(t.decode({1000, 400}) == "<|far|><|end|>");
}

TEST_CASE("tokenizer.json: ids that clash or make no sense are refused", "[llama3]")
{
  for (json const& id : {json(-1), json(1.5), json("7"), json(nullptr), json(2147483648u),
                         json(18446744073709551615u), json(2147483647), json(1 << 24)}) {
    CHECK_THAT(refusal(with("/model/vocab/zz", id)), contains("\"zz\""));
    json added = byte_tokenizer();
    add_token(added, 0, "<|x|>");
    added["added_tokens"][0]["id"] = id;
    CHECK_THAT(refusal(added), contains("<|x|>"));
  }
  CHECK_THAT(refusal(with("/model/vocab/zz", 5)), contains("two tokens"));
  json clash = byte_tokenizer();
  add_token(clash, 300, "a");
  CHECK_THAT(refusal(clash), contains("two ids"));
  json taken = byte_tokenizer();
  add_token(taken, 'a', "<|x|>");
  CHECK_THAT(refusal(taken), contains("two tokens"));
  // The same name twice in the text of the file.
  CHECK_THAT(refusal_of_text(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []},
                         "pre_tokenizer": {"type": "ByteLevel"}})"),
             contains("'a'"));
}

TEST_CASE("tokenizer.json: what is not byte-level BPE is refused by name", "[llama3]")
{
  CHECK(refusal(byte_tokenizer()).empty());
  CHECK_THAT(refusal(with("/model/type", "Unigram")), contains("Unigram"));
  CHECK_THAT(refusal(with("/model/type", "WordPiece")), contains("WordPiece"));
  CHECK_THAT(refusal(with("/model/byte_fallback", true)), contains("byte_fallback"));
  CHECK_THAT(refusal(with("/model/dropout", 0.1)), contains("dropout"));
  CHECK_THAT(refusal(with("/model/continuing_subword_prefix", "##")),
             contains("continuing_subword_prefix"));
  CHECK_THAT(refusal(with("/model/end_of_word_suffix", "</w>")), contains("end_of_word_suffix"));
  CHECK_THAT(refusal(with("/pre_tokenizer", {{"type", "Metaspace"}})), contains("Metaspace"));
  CHECK_THAT(refusal(with("/normalizer", {{"type", "Lowercase"}})), contains("Lowercase"));
  CHECK_THAT(
    refusal(with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}}}}})),
    contains("Prepend"));
  CHECK_THAT(refusal(with("/decoder", {{"type", "Metaspace"}})), contains("decoder"));
  CHECK_THAT(refusal(with("/post_processor", {{"type", "BertProcessing"}})),
             contains("BertProcessing"));
  for (char const* const key : {"single_word", "lstrip", "rstrip"}) {
    json file = byte_tokenizer();
    add_token(file, 300, "<|x|>");
    file["added_tokens"][0][key] = true;
    CHECK_THAT(refusal(file), contains(key));
  }
  // The oldest files leave the type out.
  json old = byte_tokenizer();
  old["model"].erase("type");
  CHECK(refusal(old).empty());
}

TEST_CASE("tokenizer.json: a post-processor that does more than a BOS is refused", "[llama3]")
{
  auto const processor = [](std::vector<json> const& single) {
    json file = byte_tokenizer();
    add_token(file, 300, "<s>");
    add_token(file, 301, "</s>");
    file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}};
    return file;
  };
  json const text{{"Sequence", {{"id", "A"}}}};
  auto const token = [](char const* name) { return json{{"SpecialToken", {{"id", name}}}}; };
  CHECK(parse_tokenizer(processor({token("<s>"), text}).dump()).with_bos({}) == ids{300});
  CHECK_FALSE(parse_tokenizer(processor({text}).dump()).starts_with_bos());
  CHECK_THAT(refusal(processor({token("<s>"), text, token("</s>")})), contains("</s>"));
  CHECK_THAT(refusal(processor({token("<s>"), token("</s>"), text})), contains("</s>"));
  CHECK_THAT(refusal(processor({token("<missing>"), text})), contains("<missing>"));
}

TEST_CASE("tokenizer.json: damaged files are refused", "[llama3]")
{
  std::string const whole = byte_tokenizer().dump();
  for (std::size_t const length :
       {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
    CHECK_FALSE(refusal_of_text(whole.substr(0, length)).empty());
  }
  for (char const* const text : {"[]", "null", "5", "{}", "\xFF\xFE", R"({"model": 5})",
                                 R"({"model": {"vocab": [], "merges": []}})"}) {
    CHECK_FALSE(refusal_of_text(text).empty());
  }
  for (char const* const path :
       {"/model/vocab", "/model/merges", "/model/type", "/model", "/added_tokens", "/pre_tokenizer",
        "/normalizer", "/decoder", "/post_processor", "/model/ignore_merges", "/model/dropout"}) {
    for (json const& value : {json(5), json("x")}) {
      CAPTURE(path, value);
      CHECK_FALSE(refusal(with(path, value)).empty());
    }
  }
  CHECK_THAT(refusal_of_text(whole, "{"), contains("tokenizer_config.json"));
  CHECK_THAT(refusal_of_text(whole, R"({"add_bos_token": true, "bos_token": "<s>"})"),
             contains("<s>"));
  CHECK_THROWS_AS(llama3::load_tokenizer("no/such/folder"), llama3::file_error);
}
