// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/file_error.hpp"
#include "llama3/json_text.hpp"
#include "llama3/mapped_file.hpp"  // read_text_file
#include "llama3/tokenizer.hpp"

#include <utility>  // move, pair

namespace llama3 {
namespace {
using nlohmann::json;

[[noreturn]] void refuse(std::string const& what)
{
  throw file_error("tokenizer.json: " + what +
                   "; supported is byte-level BPE as in GPT-2, SmolLM, Llama 3 and Qwen2");
}

// The value at `key`; null, a missing key and a missing object are all null.
json const& at(json const& object, char const* key)
{
  static json const none;
  if (!object.is_object()) { return none; }
  auto const found = object.find(key);
  return found == object.end() ? none : *found;
}

std::string string_at(json const& object, char const* key)
{
  json const& value = at(object, key);
  if (value.is_null()) { return {}; }
  if (!value.is_string()) { refuse(std::string("\"") + key + "\" is not a string"); }
  return value.get<std::string>();
}

bool flag_at(json const& object, char const* key)
{
  json const& value = at(object, key);
  if (value.is_null()) { return false; }
  if (!value.is_boolean()) { refuse(std::string("\"") + key + "\" is not true or false"); }
  return value.get<bool>();
}

token_id id_of(json const& value, std::string const& name)
{
  // `vocabulary` refuses what is too large; here the value must only fit.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= 0x7FFF'FFFFu) {
    return value.get<token_id>();
  }
  throw file_error("tokenizer.json: token \"" + name + "\" has the id " + value.dump() +
                   ", which is not a number from 0 to 2^31 - 1");
}

void check_model(json const& model)
{
  if (!model.is_object()) { refuse("there is no \"model\""); }
  std::string const type = string_at(model, "type");  // the oldest files leave it out
  if (!type.empty() && type != "BPE") { refuse("model type \"" + type + "\" is not supported"); }
  if (flag_at(model, "byte_fallback")) { refuse("byte_fallback is not supported"); }
  for (char const* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_at(model, key).empty()) { refuse(std::string(key) + " is not supported"); }
  }
  json const& dropout = at(model, "dropout");
  if (!dropout.is_null() && dropout != 0) { refuse("dropout is not supported"); }
  if (!at(model, "vocab").is_object()) { refuse("\"vocab\" is not an object"); }
  if (!at(model, "merges").is_array()) { refuse("\"merges\" is not a list"); }
}

void check_decoder(json const& decoder)
{
  std::string const type = string_at(decoder, "type");
  if (!decoder.is_null() && type != "ByteLevel") {
    refuse("decoder type \"" + type + "\" is not supported");
  }
}

bool normalises_to_nfc(json const& normalizer)
{
  if (normalizer.is_null()) { return false; }
  std::string const type = string_at(normalizer, "type");
  if (type == "NFC") { return true; }
  json const& list = at(normalizer, "normalizers");
  if (type != "Sequence" || !list.is_array()) {
    refuse("normalizer type \"" + type + "\" is not supported");
  }
  bool nfc = false;
  for (json const& element : list) { nfc = normalises_to_nfc(element) || nfc; }
  return nfc;
}

void read_added_tokens(json const& list, tokenizer::description& parts)
{
  if (list.is_null()) { return; }
  if (!list.is_array()) { refuse("\"added_tokens\" is not a list"); }
  for (json const& entry : list) {
    std::string const name = string_at(entry, "content");
    if (name.empty()) { refuse("an added token without \"content\""); }
    for (char const* const key : {"single_word", "lstrip", "rstrip"}) {
      if (flag_at(entry, key)) {
        refuse("added token \"" + name + "\": " + key + " is not supported");
      }
    }
    token_id const id  = id_of(at(entry, "id"), name);
    bool const control = flag_at(entry, "special");
    parts.tokens.add(id, name, control ? token_kind::control : token_kind::added);
    // As the format's own library has it: what is not special is normalised unless told otherwise.
    bool const normalised =
      at(entry, "normalized").is_null() ? !control : flag_at(entry, "normalized");
    (normalised ? parts.added_as_normalised : parts.added_as_written).push_back(id);
  }
}

// "left right", or ["left", "right"] where a part may hold a space.
std::pair<std::string, std::string> parts_of(json const& merge)
{
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    auto const& line        = merge.get_ref<std::string const&>();
    std::size_t const space = line.find(' ');
    if (space != std::string::npos && line.find(' ', space + 1) == std::string::npos) {
      return {line.substr(0, space), line.substr(space + 1)};
    }
  }
  return {};
}

void read_merges(json const& list, tokenizer::description& parts)
{
  std::size_t index = 0;
  for (json const& merge : list) {
    std::size_t const number = index++;
    if (merge.is_string() && merge.get_ref<std::string const&>().rfind("#version", 0) == 0) {
      continue;
    }
    auto const [left, right] = parts_of(merge);
    auto const where         = [&] {
      return "merge " + std::to_string(number) + ", " +
             merge.dump(-1, ' ', false, json::error_handler_t::replace);
    };
    if (left.empty() || right.empty()) { refuse(where() + ", is not two tokens"); }
    auto const a = parts.tokens.find(left), b = parts.tokens.find(right);
    auto const product = parts.tokens.find(left + right);
    if (!a || !b || !product) {
      refuse(where() + ": \"" +
             (!a   ? left
              : !b ? right
                   : left + right) +
             "\" is not in the vocabulary");
    }
    // A merge that made a control token would make it from a user's text.
    if (parts.tokens.kind(*product) != token_kind::control) { parts.merges.add(*a, *b, *product); }
  }
}

// The token that a TemplateProcessing puts before a single text, if any.
std::optional<token_id> leading_token(json const& processor, vocabulary const& tokens)
{
  std::string const type = string_at(processor, "type");
  if (processor.is_null() || type == "ByteLevel") { return {}; }
  std::optional<token_id> leading;
  if (type == "Sequence") {
    for (json const& element : at(processor, "processors")) {
      if (auto const id = leading_token(element, tokens)) { leading = id; }
    }
    return leading;
  }
  if (type != "TemplateProcessing") {
    refuse("post_processor type \"" + type + "\" is not supported");
  }
  bool seen_text = false;
  for (json const& element : at(processor, "single")) {
    if (!at(element, "Sequence").is_null()) {
      seen_text = true;
      continue;
    }
    std::string const name = string_at(at(element, "SpecialToken"), "id");
    auto const id          = tokens.find(name);
    if (!id) { refuse("post_processor: \"" + name + "\" is no token"); }
    if (seen_text || leading) {
      refuse("post_processor: only one token before the text is supported, not \"" + name + "\"");
    }
    leading = id;
  }
  return leading;
}

void read_bos(json const& file, json const& config, tokenizer::description& parts)
{
  parts.bos             = leading_token(at(file, "post_processor"), parts.tokens);
  parts.starts_with_bos = parts.bos.has_value();
  json const& named     = at(config, "bos_token");
  std::string const bos =
    named.is_object() ? string_at(named, "content") : string_at(config, "bos_token");
  if (!parts.bos && !bos.empty()) { parts.bos = parts.tokens.find(bos); }
  if (!at(config, "add_bos_token").is_null()) {
    parts.starts_with_bos = flag_at(config, "add_bos_token");
  }
  if (parts.starts_with_bos && !parts.bos) {
    throw file_error("tokenizer_config.json: add_bos_token is true, but bos_token \"" + bos +
                     "\" is no token");
  }
}

}  // namespace

tokenizer parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json)
{
  json const file = parse_json_object(tokenizer_json, "tokenizer.json");
  json const config =
    config_json.empty() ? json::object() : parse_json_object(config_json, "tokenizer_config.json");
  json const& model = at(file, "model");
  check_model(model);
  check_decoder(at(file, "decoder"));

  tokenizer::description parts{{}, {}, pretokenizer(at(file, "pre_tokenizer"))};
  for (auto const& [name, id] : at(model, "vocab").items()) {
    parts.tokens.add(id_of(id, name), name, token_kind::text);
  }
  read_added_tokens(at(file, "added_tokens"), parts);
  read_merges(at(model, "merges"), parts);
  parts.ignore_merges = flag_at(model, "ignore_merges");
  parts.compose       = normalises_to_nfc(at(file, "normalizer"));
  parts.unknown       = parts.tokens.find(string_at(model, "unk_token"));
  read_bos(file, config, parts);
  return tokenizer(std::move(parts));
}

tokenizer load_tokenizer(std::filesystem::path const& folder)
{
  constexpr std::size_t max_bytes = std::size_t{256} << 20;  // the largest published: about 20 MiB
  std::string const text          = read_text_file(folder / "tokenizer.json", max_bytes);
  auto const config_path          = folder / "tokenizer_config.json";
  std::string const config =
    std::filesystem::exists(config_path) ? read_text_file(config_path, max_bytes) : std::string{};
  try {
    return parse_tokenizer(text, config);
  } catch (file_error const& error) {
    throw file_error((folder / "").string() + error.what());
  }
}
}  // namespace llama3
