// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/vocabulary.hpp"

#include "llama3/byte_alphabet.hpp"
#include "llama3/file_error.hpp"

#include <stdexcept>  // out_of_range

namespace llama3 {
void vocabulary::add(token_id id, std::string_view name, token_kind kind)
{
  // The largest published vocabularies have some 300,000 tokens. A damaged id must not become an
  // allocation of its size.
  constexpr token_id most_ids = 1 << 24;
  if (id < 0 || id >= most_ids) {
    throw file_error("token \"" + std::string(name) + "\" has the id " + std::to_string(id) +
                     ", which is not in 0 .. " + std::to_string(most_ids - 1));
  }
  auto const [entry, is_new_name] = ids_.emplace(name, id);
  if (entry->second != id) {
    throw file_error("token \"" + std::string(name) + "\" has two ids, " +
                     std::to_string(entry->second) + " and " + std::to_string(id));
  }
  auto const index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) { tokens_.resize(index + 1); }
  if (is_new_name && tokens_[index].kind != token_kind::absent) {
    throw file_error("id " + std::to_string(id) + " has two tokens, the second is \"" +
                     std::string(name) + "\"");
  }
  // Only names that merges make are spelled in letters. A name with other characters is its text.
  auto bytes     = kind == token_kind::text ? from_letters(name) : std::nullopt;
  tokens_[index] = {kind, bytes ? *std::move(bytes) : std::string(name)};
}

token_kind vocabulary::kind(token_id id) const noexcept
{
  auto const index = static_cast<std::size_t>(id);
  return id >= 0 && index < tokens_.size() ? tokens_[index].kind : token_kind::absent;
}

std::string const& vocabulary::bytes(token_id id) const
{
  if (kind(id) == token_kind::absent) {
    throw std::out_of_range("the tokenizer has no token with the id " + std::to_string(id) +
                            " (ids: 0 to " + std::to_string(size()) + ", exclusive)");
  }
  return tokens_[static_cast<std::size_t>(id)].bytes;
}

std::optional<token_id> vocabulary::find(std::string_view name) const
{
  auto const found = ids_.find(std::string(name));
  if (found == ids_.end()) { return {}; }
  return found->second;
}

token_id vocabulary::byte_token(unsigned char byte) const
{
  char const c  = static_cast<char>(byte);
  auto const id = find(to_letters({&c, 1}));
  return id && kind(*id) != token_kind::control ? *id : -1;
}
}  // namespace llama3
