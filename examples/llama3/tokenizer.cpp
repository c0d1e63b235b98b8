// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/tokenizer.hpp"

#include "llama3/byte_alphabet.hpp"
#include "llama3/utf8.hpp"

#include <algorithm>  // find_if, stable_sort
#include <stdexcept>  // runtime_error
#include <utility>    // move

#ifdef LLAMA3_WITH_ICU
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <limits>
#endif

namespace llama3 {
namespace {
// The normaliser NFC of Qwen2: a letter and its accent as one character. Text that people type and
// the web serves is composed already, so without ICU it is taken as it is: only decomposed text
// then gets other ids, and it still decodes to itself. ICU replaces ill-formed bytes by U+FFFD,
// which would lose them, so text with such bytes is taken as it is in either case.
std::string composed(std::string_view text)
{
#ifdef LLAMA3_WITH_ICU
  bool const is_utf8 = [&] {
    for (std::size_t at = 0; at < text.size();) {
      auto const front = read_utf8(text.substr(at));
      if (front.kind != utf8_kind::character) { return false; }
      at += front.num_bytes;
    }
    return true;
  }();
  if (is_utf8 && text.size() <= std::numeric_limits<std::int32_t>::max()) {
    UErrorCode status     = U_ZERO_ERROR;
    auto const* const nfc = icu::Normalizer2::getNFCInstance(status);
    std::string result;
    icu::StringByteSink<std::string> sink(&result);
    if (U_SUCCESS(status)) {
      nfc->normalizeUTF8(0, {text.data(), static_cast<std::int32_t>(text.size())}, sink, nullptr,
                         status);
    }
    if (U_FAILURE(status)) { throw std::runtime_error("ICU cannot normalise the text to NFC"); }
    return result;
  }
#endif
  return std::string(text);
}
}  // namespace

struct tokenizer::scratch {
  merge_table::workspace merges;
  std::vector<token_id> ids;
};

tokenizer::tokenizer(description parts) : parts_(std::move(parts))
{
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_tokens_[byte]      = parts_.tokens.byte_token(static_cast<unsigned char>(byte));
    bool const has_stand_in = parts_.unknown && !is_control(*parts_.unknown);
    if (byte_tokens_[byte] < 0 && has_stand_in) { byte_tokens_[byte] = *parts_.unknown; }
  }
  added_as_written_    = index_of(parts_.added_as_written);
  added_as_normalised_ = index_of(parts_.added_as_normalised);
}

tokenizer::added_index tokenizer::index_of(std::vector<token_id> const& added) const
{
  added_index index;
  for (token_id const id : added) {
    index[static_cast<unsigned char>(token_bytes(id).front())].push_back(id);
  }
  for (auto& ids : index) {
    std::stable_sort(ids.begin(), ids.end(), [&](token_id a, token_id b) {
      return token_bytes(a).size() > token_bytes(b).size();
    });
  }
  return index;
}

// Cuts the added tokens out of `text`: the leftmost first, of several the longest.
template <class OnText, class OnToken>
void tokenizer::split_added(std::string_view text, added_index const& added, control_text control,
                            OnText on_text, OnToken on_token) const
{
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    auto const& candidates = added[static_cast<unsigned char>(text[at])];
    auto const found       = std::find_if(candidates.begin(), candidates.end(), [&](token_id id) {
      std::string const& name = token_bytes(id);
      return (control == control_text::parsed || !is_control(id)) &&
             text.compare(at, name.size(), name) == 0;
    });
    if (found == candidates.end()) {
      ++at;
      continue;
    }
    if (begin < at) { on_text(text.substr(begin, at - begin)); }
    on_token(*found);
    at += token_bytes(*found).size();
    begin = at;
  }
  if (begin < text.size()) { on_text(text.substr(begin)); }
}

void tokenizer::encode_piece(std::string_view piece, scratch& work,
                             std::vector<token_id>& out) const
{
  if (parts_.ignore_merges) {
    auto const whole = parts_.tokens.find(to_letters(piece));
    if (whole && !is_control(*whole)) {
      out.push_back(*whole);
      return;
    }
  }
  work.ids.clear();
  for (char const c : piece) {
    auto const byte = static_cast<unsigned char>(c);
    if (byte_tokens_[byte] >= 0) { work.ids.push_back(byte_tokens_[byte]); }
  }
  parts_.merges.merge(work.ids, work.merges);
  out.insert(out.end(), work.ids.begin(), work.ids.end());
}

std::vector<token_id> tokenizer::encode(std::string_view text, control_text control) const
{
  std::vector<token_id> ids;
  scratch work;
  auto const add_token = [&](token_id id) { ids.push_back(id); };
  auto const add_text  = [&](std::string_view part) {
    for (std::string const& piece : parts_.pieces.split(part)) { encode_piece(piece, work, ids); }
  };
  split_added(
    text, added_as_written_, control,
    [&](std::string_view part) {
      std::string const normalised = parts_.compose ? composed(part) : std::string(part);
      split_added(normalised, added_as_normalised_, control, add_text, add_token);
    },
    add_token);
  return ids;
}

std::vector<token_id> tokenizer::with_bos(std::vector<token_id> ids) const
{
  if (parts_.starts_with_bos && (ids.empty() || ids.front() != *parts_.bos)) {
    ids.insert(ids.begin(), *parts_.bos);
  }
  return ids;
}

std::string tokenizer::decode(std::vector<token_id> const& ids) const
{
  std::string text;
  for (token_id const id : ids) { text += token_bytes(id); }
  return text;
}
}  // namespace llama3
