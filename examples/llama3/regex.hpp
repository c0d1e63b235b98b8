// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Finds the matches of a tokenizer's pattern, through PCRE2 with its Unicode classes.
//! Read next: llama3/pretokenizer.hpp.
#include <cstddef>  // size_t
#include <memory>   // shared_ptr
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! Bytes [begin, end) of a text.
struct byte_range {
  std::size_t begin{0}, end{0};
};

//! A compiled pattern; copies share it, and const calls are safe from several threads.
//! Published patterns are written for Oniguruma. What it shares with PCRE2 means the same here:
//! \s and \S are brought to Unicode's White_Space; what PCRE2 would read differently (\h, sets
//! inside sets, && in sets) is refused.
class regex {
 public:
  enum class syntax { pattern, literal };

  //! @throws file_error if the pattern cannot be compiled, naming it and the place
  explicit regex(std::string const& pattern, syntax kind = syntax::pattern);

  //! All matches from left to right; none overlap, and each may be empty.
  //! @param[in] text  valid UTF-8 (not checked)
  //! @throws std::runtime_error if the pattern needs too many steps on this text
  [[nodiscard]] std::vector<byte_range> find_all(std::string_view text) const;

 private:
  std::string pattern_;  // for messages
  std::shared_ptr<void> code_;
};
}  // namespace llama3
