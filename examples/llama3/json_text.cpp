// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/json_text.hpp"

#include "llama3/file_error.hpp"

#include <cstddef>  // size_t
#include <set>
#include <vector>

namespace llama3 {
std::string in_quotes(std::string_view name)
{
  constexpr std::size_t longest = 120;
  std::string text{"'"};
  for (char const c : name.substr(0, longest)) {
    auto const byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  text += name.size() > longest ? "...'" : "'";
  return text;
}

nlohmann::json parse_json_object(std::string_view text, std::string const& where)
{
  // The parser takes a NUL for the end of the text and would never look at what follows.
  if (text.find('\0') != std::string_view::npos) {
    throw file_error(where + ": not a JSON text (it holds a NUL byte)");
  }
  std::vector<std::set<std::string>> keys;  // of every object that is open
  auto const watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using event_t = nlohmann::json::parse_event_t;
    if (event == event_t::object_start) {
      keys.emplace_back();
    } else if (event == event_t::object_end) {
      keys.pop_back();
    } else if (event == event_t::key) {
      auto const& key = parsed.get_ref<std::string const&>();
      if (!keys.back().insert(key).second) {
        throw file_error(where + ": the key " + in_quotes(key) + " stands twice");
      }
    }
    return true;
  };
  try {
    auto value = nlohmann::json::parse(text.begin(), text.end(), watch);
    if (!value.is_object()) { throw file_error(where + ": not a JSON object"); }
    return value;
  } catch (nlohmann::json::exception const& error) {
    throw file_error(where + ": not a JSON text (" + error.what() + ")");
  }
}
}  // namespace llama3
