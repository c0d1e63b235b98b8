// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! JSON that came from outside: parsed strictly, with errors that name the file.
//! Read before this: llama3/file_error.hpp.  Read next: llama3/model_config.hpp.
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace llama3 {
//! Parses one JSON object. A key that stands twice in an object is refused: which of the two counts
//! would depend on who reads the file.
//! @param where  names the text in errors, as a path
//! @throws file_error if it is no JSON, not an object, or holds a key twice
[[nodiscard]] nlohmann::json parse_json_object(std::string_view text, std::string const& where);

//! `name` in quotes for a message: cut to a bearable length, without control characters.
[[nodiscard]] std::string in_quotes(std::string_view name);
}  // namespace llama3
