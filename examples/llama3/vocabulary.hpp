// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which id is which token: names as published, bytes as text.
//! Read before this: llama3/token_id.hpp, llama3/byte_alphabet.hpp.
//! Read next: llama3/tokenizer.hpp.
#include "llama3/token_id.hpp"

#include <cstdint>  // uint8_t
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llama3 {
enum class token_kind : std::uint8_t {
  absent,   //!< ids may have gaps
  text,     //!< bytes that merges make
  added,    //!< found in text as it stands, before merging
  control,  //!< a marker such as the end of a turn ("special"); never made from a user's text
};

class vocabulary {
 public:
  //! @param[in] name  as tokenizer.json spells it: letters of the byte alphabet for `text`
  //! @throws file_error if `id` is negative, has another name, or is absurdly large, or if `name`
  //!         has another id. An id may be given twice: what is said last about its kind counts.
  void add(token_id id, std::string_view name, token_kind kind);

  //! The largest id + 1.
  [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }

  //! `absent` for any id that names no token.
  [[nodiscard]] token_kind kind(token_id id) const noexcept;

  //! The bytes that the token adds to the text.
  //! @throws std::out_of_range if `id` names no token
  [[nodiscard]] std::string const& bytes(token_id id) const;

  [[nodiscard]] std::optional<token_id> find(std::string_view name) const;

  //! The token that is this byte alone and may come out of merging, -1 if there is none.
  [[nodiscard]] token_id byte_token(unsigned char byte) const;

 private:
  struct token {
    token_kind kind{token_kind::absent};
    std::string bytes;
  };
  std::vector<token> tokens_;                      // [size()]
  std::unordered_map<std::string, token_id> ids_;  // by name
};
}  // namespace llama3
