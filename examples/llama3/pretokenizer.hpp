// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cuts text into the pieces inside which a byte-level tokenizer merges.
//! Read before this: llama3/regex.hpp.  Read next: llama3/tokenizer.hpp.
#include <nlohmann/json_fwd.hpp>

#include <memory>  // shared_ptr
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! The "pre_tokenizer" of a tokenizer.json: Split, Digits and ByteLevel, alone or in a Sequence
//! that ends with ByteLevel. Immutable; copies share the compiled patterns.
class pretokenizer {
 public:
  //! @param[in] description  the JSON value of "pre_tokenizer"
  //! @throws file_error naming a type, behaviour or option that is not known
  explicit pretokenizer(nlohmann::json const& description);

  //! The pieces of `text` in order. They are copies, since a pre-tokenizer may add a space before
  //! them (add_prefix_space). Bytes that are not UTF-8 are in no class of any pattern: each run of
  //! them is a piece of its own, and the text before and after is cut as if it ended there.
  //! @cost  O(text.size()) with the patterns that models are published with
  [[nodiscard]] std::vector<std::string> split(std::string_view text) const;

  //! One element of a Sequence: turns a piece into the pieces that it appends to `out`.
  struct step {
    virtual ~step()                                                            = default;
    virtual void apply(std::string piece, std::vector<std::string>& out) const = 0;
  };

 private:
  void split_valid(std::string_view text, std::vector<std::string>& out) const;

  std::vector<std::shared_ptr<step const>> steps_;
};
}  // namespace llama3
