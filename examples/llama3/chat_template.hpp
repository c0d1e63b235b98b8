// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Writes a user's message the way a chat model was taught to read it.
//! Read before this: llama3/tokenizer.hpp.  Read next: llama3/generate.hpp.
#include "llama3/tokenizer.hpp"

#include <filesystem>  // path
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! ChatML (SmolLM2, Qwen2.5, QwQ) or Llama 3 (3 to 3.3), recognised by the markers in the published
//! Jinja template. Only what differs between models of a family is read from the template: the
//! default system message, what opens the answer, whether messages are trimmed, the date line.
class chat_template {
 public:
  enum class family { chatml, llama3 };

  //! @param[in] source  the Jinja text
  //! @throws file_error if the template is of neither family, saying how to go on without it
  //!         (--raw), or if the tokenizer lacks a marker as a control token
  chat_template(std::string_view source, tokenizer const& words);

  //! The ids of a conversation with one message, ready for the answer, BOS included where the
  //! template has it. Only markers of the template become control tokens: `user` and `system` are
  //! encoded as text, whatever they spell.
  //! @param[in] system  the system message; without one, the template's own, if it has one
  //! @pre `words` is the tokenizer given to the constructor
  [[nodiscard]] std::vector<token_id> render(tokenizer const& words, std::string_view user,
                                             std::optional<std::string_view> system = {}) const;

  [[nodiscard]] family kind() const noexcept { return family_; }
  [[nodiscard]] std::optional<std::string> const& default_system() const noexcept
  {
    return default_system_;
  }

 private:
  void append_head(tokenizer const& words, std::string_view role, std::string_view text,
                   std::vector<token_id>& ids) const;
  void append_message(tokenizer const& words, std::string_view role, std::string_view text,
                      std::vector<token_id>& ids) const;

  family family_{family::chatml};
  token_id turn_begin_{-1}, role_end_{-1}, turn_end_{-1};  // role_end_: Llama 3 only
  std::optional<token_id> bos_;
  std::optional<std::string> default_system_;
  std::string system_preamble_;  // Llama 3.1 and later: what stands before any system message
  std::string answer_opening_;   // e.g. "<think>\n" (QwQ)
  bool trims_{false};
};

//! Reads `folder`/chat_template.jinja, or "chat_template" of `folder`/tokenizer_config.json.
//! @throws file_error as the constructor, or if there is no template
[[nodiscard]] chat_template load_chat_template(std::filesystem::path const& folder,
                                               tokenizer const& words);
}  // namespace llama3
