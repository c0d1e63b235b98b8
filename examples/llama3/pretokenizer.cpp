// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/pretokenizer.hpp"

#include "llama3/file_error.hpp"
#include "llama3/regex.hpp"
#include "llama3/utf8.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>  // reverse
#include <iterator>   // make_move_iterator
#include <utility>    // move

namespace llama3 {
namespace {
using nlohmann::json;

// GPT-2's pattern, which the file does not spell out: "ByteLevel" with "use_regex" means it.
constexpr char const* byte_level_pattern =
  R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of the matches of a pattern and of the text between them.
enum class split_behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct segment {
  byte_range bytes;
  bool is_match{false};
};

// The matches and what lies between them, together the whole text.
std::vector<segment> cover(std::string_view text, std::vector<byte_range> const& matches)
{
  std::vector<segment> segments;
  std::size_t end = 0;
  for (byte_range const& match : matches) {
    if (match.begin > end) { segments.push_back({{end, match.begin}, false}); }
    segments.push_back({match, true});
    end = match.end;
  }
  if (end < text.size()) { segments.push_back({{end, text.size()}, false}); }
  return segments;
}

std::vector<segment> join(std::vector<segment> segments, split_behavior behavior)
{
  if (behavior == split_behavior::isolated || behavior == split_behavior::removed) {
    return segments;
  }
  // Joining with the next is joining with the previous, seen from the other end.
  bool const backwards = behavior == split_behavior::merged_with_next;
  if (backwards) { std::reverse(segments.begin(), segments.end()); }
  std::vector<segment> joined;
  bool previous_match = false;
  for (segment const& s : segments) {
    bool const attach =
      !joined.empty() && (behavior == split_behavior::contiguous ? s.is_match == previous_match
                                                                 : s.is_match && !previous_match);
    if (attach) {
      (backwards ? joined.back().bytes.begin : joined.back().bytes.end) =
        backwards ? s.bytes.begin : s.bytes.end;
    } else {
      joined.push_back(s);
    }
    previous_match = s.is_match;
  }
  if (backwards) { std::reverse(joined.begin(), joined.end()); }
  return joined;
}

class split_step final : public pretokenizer::step {
 public:
  split_step(regex pattern, split_behavior behavior, bool invert)
    : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert)
  {}

  void apply(std::string piece, std::vector<std::string>& out) const override
  {
    auto segments = cover(piece, pattern_.find_all(piece));
    for (segment& s : segments) { s.is_match = s.is_match != invert_; }
    for (segment const& s : join(std::move(segments), behavior_)) {
      if (s.is_match && behavior_ == split_behavior::removed) { continue; }
      if (s.bytes.begin < s.bytes.end) {
        out.push_back(piece.substr(s.bytes.begin, s.bytes.end - s.bytes.begin));
      }
    }
  }

 private:
  regex pattern_;
  split_behavior behavior_;
  bool invert_;
};

class prefix_space_step final : public pretokenizer::step {
 public:
  void apply(std::string piece, std::vector<std::string>& out) const override
  {
    if (piece.front() != ' ') { piece.insert(piece.begin(), ' '); }
    out.push_back(std::move(piece));
  }
};

// The value at `key`, which must have the type of T; `fallback` where the key is missing.
template <class T>
T get(json const& object, char const* key, T fallback)
{
  auto const found = object.find(key);
  if (found == object.end()) { return fallback; }
  try {
    return found->get<T>();
  } catch (json::exception const&) {
    throw file_error(std::string("pre_tokenizer: \"") + key + "\" cannot be " + found->dump());
  }
}

split_behavior behavior_of(std::string const& name)
{
  if (name == "Isolated") { return split_behavior::isolated; }
  if (name == "Removed") { return split_behavior::removed; }
  if (name == "MergedWithPrevious") { return split_behavior::merged_with_previous; }
  if (name == "MergedWithNext") { return split_behavior::merged_with_next; }
  if (name == "Contiguous") { return split_behavior::contiguous; }
  throw file_error("pre_tokenizer: Split has an unknown behavior \"" + name + "\"");
}

regex pattern_of(json const& split)
{
  auto const pattern = split.find("pattern");
  if (pattern != split.end() && pattern->is_object()) {
    if (pattern->contains("Regex")) { return regex(get<std::string>(*pattern, "Regex", "")); }
    if (pattern->contains("String")) {
      return regex(get<std::string>(*pattern, "String", ""), regex::syntax::literal);
    }
  }
  throw file_error("pre_tokenizer: Split needs a pattern, {\"Regex\": ...} or {\"String\": ...}");
}

using step_list = std::vector<std::shared_ptr<pretokenizer::step const>>;

// Appends the steps of `element`; true if it was the ByteLevel that ends every description.
bool read_element(json const& element, step_list& steps)
{
  std::string const type =
    element.is_object() ? get<std::string>(element, "type", "") : element.dump();
  if (type == "Split") {
    steps.push_back(std::make_shared<split_step>(
      pattern_of(element), behavior_of(get<std::string>(element, "behavior", "")),
      get(element, "invert", false)));
    return false;
  }
  if (type == "Digits") {
    steps.push_back(std::make_shared<split_step>(regex(R"(\p{N})"),
                                                 get(element, "individual_digits", false)
                                                   ? split_behavior::isolated
                                                   : split_behavior::contiguous,
                                                 false));
    return false;
  }
  if (type == "ByteLevel") {
    if (get(element, "add_prefix_space", true)) {
      steps.push_back(std::make_shared<prefix_space_step>());
    }
    if (get(element, "use_regex", true)) {
      steps.push_back(
        std::make_shared<split_step>(regex(byte_level_pattern), split_behavior::isolated, false));
    }
    return true;
  }
  throw file_error("pre_tokenizer: type \"" + type +
                   "\" is not supported, only Split, Digits and ByteLevel (byte-level BPE)");
}
}  // namespace

pretokenizer::pretokenizer(json const& description)
{
  bool const is_sequence =
    description.is_object() && get<std::string>(description, "type", "") == "Sequence";
  json const elements =
    is_sequence ? description.value("pretokenizers", json::array()) : json::array({description});
  if (!elements.is_array()) { throw file_error("pre_tokenizer: Sequence without a list"); }
  bool complete = false;
  for (json const& element : elements) {
    if (complete) { throw file_error("pre_tokenizer: nothing may follow ByteLevel"); }
    complete = read_element(element, steps_);
  }
  if (!complete) {
    throw file_error("pre_tokenizer: there is no ByteLevel, so this is no byte-level tokenizer");
  }
}

std::vector<std::string> pretokenizer::split(std::string_view text) const
{
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  bool valid        = true;  // of the run [begin, at)
  auto const flush  = [&](std::size_t end) {
    if (begin == end) { return; }
    std::string_view const run = text.substr(begin, end - begin);
    if (valid) {
      split_valid(run, pieces);
    } else {
      pieces.emplace_back(run);
    }
    begin = end;
  };
  for (std::size_t at = 0; at < text.size();) {
    auto const front     = read_utf8(text.substr(at));
    bool const now_valid = front.kind == utf8_kind::character;
    if (now_valid != valid) { flush(at); }
    valid = now_valid;
    at += front.num_bytes;
  }
  flush(text.size());
  return pieces;
}

void pretokenizer::split_valid(std::string_view text, std::vector<std::string>& out) const
{
  std::vector<std::string> pieces{std::string(text)};
  for (auto const& s : steps_) {
    std::vector<std::string> next;
    for (std::string& piece : pieces) { s->apply(std::move(piece), next); }
    pieces = std::move(next);
  }
  out.insert(out.end(), std::make_move_iterator(pieces.begin()),
             std::make_move_iterator(pieces.end()));
}
}  // namespace llama3
