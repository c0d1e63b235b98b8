// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Small tokenizer.json files for tests, made here: 256 byte tokens and what a test adds.
#include "llama3/byte_alphabet.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>  // pair
#include <vector>

namespace llama3::test {
using nlohmann::json;

inline constexpr char const* gpt2_pattern =
  R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char const* llama3_pattern =
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
  R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr char const* qwen2_pattern =
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
  R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline json byte_level(bool use_regex, bool add_prefix_space = false)
{
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

inline json split(json const& pattern, std::string const& behavior = "Isolated",
                  bool invert = false)
{
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

inline json sequence(std::vector<json> const& elements)
{
  return {{"type", "Sequence"}, {"pretokenizers", elements}};
}

//! A pattern as Llama 3 and Qwen2 publish it.
inline json split_by(std::string const& pattern)
{
  return sequence({split({{"Regex", pattern}}), byte_level(false)});
}

//! SmolLM2: every digit by itself, then GPT-2's pattern.
inline json smollm_pieces()
{
  return sequence({{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)});
}

//! The whole file; byte b is token b, spelled in its letter.
inline json byte_tokenizer(json const& pieces = byte_level(true))
{
  json vocab = json::object();
  for (int b = 0; b < 256; ++b) { vocab[to_letters(std::string(1, static_cast<char>(b)))] = b; }
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", pieces},
          {"post_processor", nullptr},
          {"decoder", byte_level(true)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", json::array()}}}};
}

inline void add_token(json& file, int id, std::string const& content, bool special = true)
{
  file["added_tokens"].push_back({{"id", id},
                                  {"content", content},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", special}});
}

//! Adds the merges of two texts (bytes), each with its product as the token `id`.
inline void add_merge(json& file, int id, std::string const& left, std::string const& right)
{
  file["model"]["vocab"][to_letters(left + right)] = id;
  file["model"]["merges"].push_back({to_letters(left), to_letters(right)});
}
}  // namespace llama3::test
