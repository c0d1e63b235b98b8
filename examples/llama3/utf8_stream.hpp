// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Turns the bytes of tokens into text that is valid UTF-8 at every moment.
//! Read before this: llama3/utf8.hpp.
#include <string>
#include <string_view>

namespace llama3 {
//! A token may end inside a character; what is shown may not. Each maximal subpart of an ill-formed
//! sequence becomes one U+FFFD as soon as a byte shows it to be ill-formed.
class utf8_stream {
 public:
  //! Takes the bytes of the next token and returns the text that is certain by now: valid UTF-8,
  //! perhaps empty.  @cost O(bytes.size())
  [[nodiscard]] std::string push(std::string_view bytes);

  //! Ends the stream: an unfinished character becomes one U+FFFD. The object is then as new.
  [[nodiscard]] std::string finish();

  //! Bytes kept back: 0 to 3.
  [[nodiscard]] std::size_t num_held_bytes() const noexcept { return held_.size(); }

 private:
  std::string held_;  // the beginning of a character
};
}  // namespace llama3
