// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/chat_template.hpp"

#include "llama3/file_error.hpp"
#include "llama3/json_text.hpp"
#include "llama3/mapped_file.hpp"  // read_text_file
#include "llama3/utf8.hpp"

namespace llama3 {
namespace {
constexpr std::string_view instead = "; --raw gives the prompt to the model without a template";

bool contains(std::string_view text, std::string_view part)
{
  return text.find(part) != std::string_view::npos;
}

// The rest of the Jinja string that `from` lies in, its escapes resolved; the string ends at
// `quote`. Published templates write a line break as \n or as a line break.
std::string rest_of_string(std::string_view source, std::size_t from, char quote)
{
  std::string text;
  for (std::size_t i = from; i < source.size() && source[i] != quote; ++i) {
    if (source[i] == '\\' && i + 1 < source.size()) {
      char const escaped = source[++i];
      text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
    } else {
      text += source[i];
    }
  }
  return text;
}

// The first Jinja string behind `from` that begins with `marker` and that `accept` takes.
template <class Accept>
std::optional<std::string> find_string(std::string_view source, std::string_view marker,
                                       Accept accept, std::size_t from = 0)
{
  for (std::size_t at = source.find(marker, from); at != std::string_view::npos;
       at             = source.find(marker, at + 1)) {
    if (at == 0 || (source[at - 1] != '\'' && source[at - 1] != '"')) { continue; }
    std::string text = rest_of_string(source, at, source[at - 1]);
    if (accept(text)) { return text; }
  }
  return {};
}

// The fixed text that a template assigns to its variable for the system message, if it does.
std::optional<std::string> system_variable(std::string_view source)
{
  constexpr std::string_view assignment = "set system_message = ";
  for (std::size_t at = source.find(assignment); at != std::string_view::npos;
       at             = source.find(assignment, at + 1)) {
    std::size_t const value = at + assignment.size();
    if (value == source.size() || (source[value] != '\'' && source[value] != '"')) { continue; }
    return rest_of_string(source, value + 1, source[value]);
  }
  return {};
}

// The system message that a ChatML template writes when the conversation has none.
std::optional<std::string> chatml_default_system(std::string_view source)
{
  std::string const head = "<|im_start|>system\n", tail = "<|im_end|>";
  // A string with both ends holds a fixed message; one that stops behind the head is continued by
  // the conversation's own.
  auto const whole = find_string(source, "<|im_start|>system", [&](std::string const& text) {
    return text.rfind(head, 0) == 0 && contains(text, tail);
  });
  if (whole) { return whole->substr(head.size(), whole->find(tail) - head.size()); }
  auto const variable = system_variable(source);
  return variable && !variable->empty() ? variable : std::nullopt;
}

// What the template writes between the head of the answer and the answer.
std::string chatml_answer_opening(std::string_view source)
{
  std::string const head = "<|im_start|>assistant\n";
  std::size_t const from = source.find("add_generation_prompt");
  auto const opening     = find_string(
        source, "<|im_start|>assistant",
        [&](std::string const& text) { return text.rfind(head, 0) == 0; },
    from == std::string_view::npos ? 0 : from);
  return opening ? opening->substr(head.size()) : std::string{};
}

// The lines that Llama 3.1 and later put before every system message. They name a date: the one the
// template falls back to where it cannot ask for today's, so that a prompt is the same every day.
std::string llama3_preamble(std::string_view source)
{
  auto const any    = [](std::string const&) { return true; };
  auto const cutoff = find_string(source, "Cutting Knowledge Date", any);
  if (!cutoff) { return {}; }
  std::string date = "26 Jul 2024";
  for (std::string_view const variable : {"date_string = \"", "date_string = '"}) {
    std::size_t const at = source.find(variable);
    if (at == std::string_view::npos) { continue; }
    date = rest_of_string(source, at + variable.size(), variable.back());
  }
  return *cutoff + "Today Date: " + date + "\n\n";
}

// White space as Jinja's filter `trim` (Python's str.strip) sees it.
bool is_space(std::string_view character)
{
  if (character.size() == 1) {
    auto const c = static_cast<unsigned char>(character[0]);
    return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  }
  for (std::string_view const space :
       {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005",
        "\u2006", "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F",
        "\u3000"}) {
    if (character == space) { return true; }
  }
  return false;
}

std::string_view trim(std::string_view text)
{
  while (!text.empty()) {
    std::size_t const length = read_utf8(text).num_bytes;
    if (!is_space(text.substr(0, length))) { break; }
    text.remove_prefix(length);
  }
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    // Back to the first byte of the last character, which has at most two more (no space has four).
    while (begin > 0 && text.size() - begin < 3 && (text[begin] & 0xC0) == 0x80) { --begin; }
    if (!is_space(text.substr(begin))) { break; }
    text = text.substr(0, begin);
  }
  return text;
}

std::string name_of_unknown(std::string_view source)
{
  struct known {
    std::string_view marker, name;
  };
  for (known const& k :
       {known{"[INST]", "Llama 2 or Mistral ([INST])"}, known{"<start_of_turn>", "Gemma"},
        known{"<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "DeepSeek"},
        known{"<|user|>", "Zephyr or Phi-3 (<|user|>)"}}) {
    if (contains(source, k.marker)) { return std::string(k.name); }
  }
  return in_quotes(source);
}
}  // namespace

chat_template::chat_template(std::string_view source, tokenizer const& words)
{
  auto const marker = [&](std::string_view name) {
    auto const id = words.find(name);
    if (!id || !words.is_control(*id)) {
      throw file_error("the chat template writes " + std::string(name) +
                       ", which is no special token of the tokenizer" + std::string(instead));
    }
    return *id;
  };
  if (contains(source, "<|start_header_id|>") && contains(source, "<|eot_id|>")) {
    family_          = family::llama3;
    turn_begin_      = marker("<|start_header_id|>");
    role_end_        = marker("<|end_header_id|>");
    turn_end_        = marker("<|eot_id|>");
    system_preamble_ = llama3_preamble(source);
    default_system_  = system_variable(source);
    // With a preamble there is a system message always; without, an empty one is none.
    if (system_preamble_.empty() && default_system_ == "") { default_system_.reset(); }
    if (!system_preamble_.empty() && !default_system_) { default_system_ = ""; }
  } else if (contains(source, "<|im_start|>") && contains(source, "<|im_end|>")) {
    family_         = family::chatml;
    turn_begin_     = marker("<|im_start|>");
    turn_end_       = marker("<|im_end|>");
    default_system_ = chatml_default_system(source);
    answer_opening_ = chatml_answer_opening(source);
  } else {
    throw file_error("the chat template, " + name_of_unknown(source) +
                     ", is neither ChatML nor Llama 3" + std::string(instead));
  }
  trims_ = contains(source, "| trim") || contains(source, "|trim");
  if (contains(source, "bos_token") || contains(source, "<|begin_of_text|>")) {
    bos_ = words.bos() ? words.bos() : words.find("<|begin_of_text|>");
  }
}

// The markers around a role and, as one text between control tokens, what follows them. The text is
// not cut further: a line break of the template and one of the message may be one token.
void chat_template::append_head(tokenizer const& words, std::string_view role,
                                std::string_view text, std::vector<token_id>& ids) const
{
  auto const append = [&](std::string const& part) {
    auto const part_ids = words.encode(part);
    ids.insert(ids.end(), part_ids.begin(), part_ids.end());
  };
  ids.push_back(turn_begin_);
  if (family_ == family::chatml) {
    append(std::string(role) + "\n" + std::string(text));
  } else {
    append(std::string(role));
    ids.push_back(role_end_);
    append("\n\n" + std::string(text));
  }
}

void chat_template::append_message(tokenizer const& words, std::string_view role,
                                   std::string_view text, std::vector<token_id>& ids) const
{
  append_head(words, role, text, ids);
  ids.push_back(turn_end_);
  if (family_ == family::chatml) {
    auto const line_break = words.encode("\n");
    ids.insert(ids.end(), line_break.begin(), line_break.end());
  }
}

std::vector<token_id> chat_template::render(tokenizer const& words, std::string_view user,
                                            std::optional<std::string_view> system) const
{
  auto const content = [&](std::string_view text) { return trims_ ? trim(text) : text; };
  std::vector<token_id> ids;
  if (bos_) { ids.push_back(*bos_); }
  if (system) {
    append_message(words, "system", system_preamble_ + std::string(content(*system)), ids);
  } else if (default_system_) {
    append_message(words, "system", system_preamble_ + *default_system_, ids);
  }
  append_message(words, "user", content(user), ids);
  append_head(words, "assistant", answer_opening_, ids);
  return ids;
}

chat_template load_chat_template(std::filesystem::path const& folder, tokenizer const& words)
{
  constexpr std::size_t max_bytes = std::size_t{64} << 20;
  std::string source;
  if (std::filesystem::exists(folder / "chat_template.jinja")) {
    source = read_text_file(folder / "chat_template.jinja", max_bytes);
  } else if (std::filesystem::exists(folder / "tokenizer_config.json")) {
    auto const path   = folder / "tokenizer_config.json";
    auto const config = parse_json_object(read_text_file(path, max_bytes), path.string());
    auto const entry  = config.find("chat_template");
    if (entry != config.end() && entry->is_string()) {
      source = entry->get<std::string>();
    } else if (entry != config.end() && entry->is_array()) {
      for (auto const& named : *entry) {  // several templates: [{"name": ..., "template": ...}]
        if (named.is_object() && named.value("name", nlohmann::json()) == "default") {
          auto const text = named.find("template");
          if (text != named.end() && text->is_string()) { source = text->get<std::string>(); }
        }
      }
    }
  }
  if (source.empty()) {
    throw file_error(folder.string() + ": the model has no chat template" + std::string(instead));
  }
  return chat_template(source, words);
}
}  // namespace llama3
