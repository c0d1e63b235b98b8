// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Text to token ids and back: byte-level BPE as GPT-2, SmolLM, Llama 3 and Qwen2 publish it.
//! Read before this: llama3/vocabulary.hpp, llama3/merge_table.hpp, llama3/pretokenizer.hpp.
//! Read next: llama3/chat_template.hpp, llama3/utf8_stream.hpp.
#include "llama3/merge_table.hpp"
#include "llama3/pretokenizer.hpp"
#include "llama3/token_id.hpp"
#include "llama3/vocabulary.hpp"

#include <array>
#include <filesystem>  // path
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! What a control token's name becomes when it stands in a text.
enum class control_text {
  literal,  //!< characters like any other: a user cannot write the end of a turn
  parsed,   //!< the control token
};

//! Immutable; const calls are safe from several threads.
class tokenizer {
 public:
  //! What tokenizer.json and tokenizer_config.json say; see `parse_tokenizer`.
  struct description {
    vocabulary tokens;
    merge_table merges;
    pretokenizer pieces;
    bool ignore_merges{false};  //!< a piece that is a token as a whole is not merged
    bool compose{false};        //!< the normaliser is NFC (built without ICU: text as it is)
    //! Names that are tokens wherever they stand, searched before and after the normaliser.
    std::vector<token_id> added_as_written{}, added_as_normalised{};
    std::optional<token_id> unknown{};  //!< may stand for a byte that no token has
    std::optional<token_id> bos{};
    bool starts_with_bos{false};  //!< a text begins with `bos`
  };
  explicit tokenizer(description parts);

  //! The ids of `text`, without BOS. Added tokens that are not control tokens (as published:
  //! "special": false) are found in any text. Bytes that are not UTF-8 are encoded as they are. A
  //! byte that no token has becomes the vocabulary's unknown token, or is left out where there is
  //! none or it is a control token: SmolLM2 has no token for 10 bytes that UTF-8 hardly uses (C0,
  //! F5 to FF, ...) and for six ASCII control characters. Every other text decodes to itself.
  //! @cost   O(n log n) of the length in bytes, whatever the text
  [[nodiscard]] std::vector<token_id> encode(std::string_view text,
                                             control_text control = control_text::literal) const;

  //! `ids` with BOS in front, where the model wants one and it is not there already: exactly one.
  [[nodiscard]] std::vector<token_id> with_bos(std::vector<token_id> ids) const;

  //! The bytes of the tokens in order, control tokens by name. They need not be valid UTF-8:
  //! llama3::utf8_stream makes them so.
  //! @throws std::out_of_range if an id names no token
  [[nodiscard]] std::string decode(std::vector<token_id> const& ids) const;

  //! @throws std::out_of_range if `id` names no token
  [[nodiscard]] std::string const& token_bytes(token_id id) const
  {
    return parts_.tokens.bytes(id);
  }

  //! An end of turn and the like, which an answer is shown without.
  [[nodiscard]] bool is_control(token_id id) const noexcept
  {
    return parts_.tokens.kind(id) == token_kind::control;
  }

  //! The id of a token by its published name, control or not.
  [[nodiscard]] std::optional<token_id> find(std::string_view name) const
  {
    return parts_.tokens.find(name);
  }

  //! The largest id + 1; there may be gaps below.
  [[nodiscard]] std::size_t size() const noexcept { return parts_.tokens.size(); }

  //! The token for the beginning of a text, if the model has one.
  [[nodiscard]] std::optional<token_id> bos() const noexcept { return parts_.bos; }
  [[nodiscard]] bool starts_with_bos() const noexcept { return parts_.starts_with_bos; }

 private:
  using added_index = std::array<std::vector<token_id>, 256>;  // by first byte, longest first
  struct scratch;

  [[nodiscard]] added_index index_of(std::vector<token_id> const& added) const;
  template <class OnText, class OnToken>
  void split_added(std::string_view text, added_index const& added, control_text control,
                   OnText on_text, OnToken on_token) const;
  void encode_piece(std::string_view piece, scratch& work, std::vector<token_id>& out) const;

  description parts_;
  std::array<token_id, 256> byte_tokens_;
  added_index added_as_written_, added_as_normalised_;
};

//! Reads `folder`/tokenizer.json and, where there is one, `folder`/tokenizer_config.json.
//! @throws file_error naming file and key: missing, damaged, or of a kind that is not supported (a
//!         model other than BPE, Metaspace and other pre-tokenizers that are not byte-level, ...)
[[nodiscard]] tokenizer load_tokenizer(std::filesystem::path const& folder);

//! The same from text; `config_json` may be empty. BOS is the token that the post-processor puts
//! before a text, or "bos_token"; "add_bos_token", if given, says whether a text begins with it.
[[nodiscard]] tokenizer parse_tokenizer(std::string_view tokenizer_json,
                                        std::string_view config_json = {});
}  // namespace llama3
