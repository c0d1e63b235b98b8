// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/safetensors_header.hpp"

#include "llama3/json_text.hpp"  // in_quotes

#include <array>
#include <limits>
#include <optional>
#include <set>

namespace llama3 {
namespace {
constexpr std::size_t max_tensors = 100'000;  // the largest published models have a few thousand
constexpr std::size_t max_rank    = 8;

std::optional<dtype> dtype_of(std::string_view name)
{
  constexpr std::array all{dtype::f64, dtype::f32, dtype::f16, dtype::bf16, dtype::i64,
                           dtype::i32, dtype::i16, dtype::i8,  dtype::u8,   dtype::boolean};
  for (dtype const type : all) {
    if (name_of(type) == name) { return type; }
  }
  return std::nullopt;
}

//! Takes the events of the JSON parser and knows at each of them where in the format it is:
//!   { "__metadata__": { key: string, ... }, name: { "dtype": string, "shape": [n, ...],
//!     "data_offsets": [begin, end] }, ... }
class header_reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit header_reader(std::string const& where) : where_(where) {}

  safetensors_header take() { return std::move(header_); }

  bool start_object(std::size_t) override
  {
    switch (place_) {
      case place::start:
        return go(place::top);
      case place::after_name:
        return go(key_ == "__metadata__" ? place::metadata : place::tensor);
      default:
        unexpected("an object");
    }
  }

  bool end_object() override
  {
    switch (place_) {
      case place::tensor:
        finish_tensor();
        return go(place::top);
      case place::metadata:
        return go(place::top);
      default:
        return go(place::end);
    }
  }

  bool key(std::string& text) override
  {
    switch (place_) {
      case place::top:
        if (!names_.insert(text).second) {
          fail("the tensor " + in_quotes(text) + " stands twice");
        }
        if (names_.size() > max_tensors) { fail("more than 100000 tensors"); }
        key_        = text;
        entry_      = {};
        entry_.name = text;
        has_dtype_ = has_shape_ = false;
        offsets_.reset();
        return go(place::after_name);
      case place::metadata:
        if (header_.metadata.count(text) != 0) {
          fail("the metadata key " + in_quotes(text) + " stands twice");
        }
        key_ = text;
        return go(place::after_metadata_key);
      default:  // place::tensor
        if (text == "dtype" && !has_dtype_) { return go(place::after_dtype); }
        if (text == "shape" && !has_shape_) { return go(place::after_shape); }
        if (text == "data_offsets" && !offsets_) { return go(place::after_offsets); }
        fail_tensor("the key " + in_quotes(text) + " is unknown or stands twice");
    }
  }

  bool start_array(std::size_t) override
  {
    switch (place_) {
      case place::after_shape:
        has_shape_ = true;
        return go(place::shape);
      case place::after_offsets:
        offsets_.emplace();
        return go(place::offsets);
      default:
        unexpected("an array");
    }
  }

  bool end_array() override
  {
    if (place_ == place::offsets && offsets_->size() != 2) {
      fail_tensor("data_offsets are not two numbers");
    }
    return go(place::tensor);
  }

  bool string(std::string& text) override
  {
    switch (place_) {
      case place::after_dtype: {
        auto const type = dtype_of(text);
        if (!type) { fail_dtype(in_quotes(text)); }
        entry_.type = *type;
        has_dtype_  = true;
        return go(place::tensor);
      }
      case place::after_metadata_key:
        header_.metadata.emplace(key_, text);
        return go(place::metadata);
      default:
        unexpected("a string");
    }
  }

  bool number_unsigned(std::uint64_t value) override
  {
    switch (place_) {
      case place::shape:
        if (value > std::numeric_limits<std::int64_t>::max()) {
          fail_tensor("its shape is too large");
        }
        if (entry_.shape.size() == max_rank) {
          fail_tensor("its shape has more than 8 dimensions");
        }
        entry_.shape.push_back(static_cast<std::int64_t>(value));
        return true;
      case place::offsets:
        if (offsets_->size() == 2) { fail_tensor("data_offsets are not two numbers"); }
        offsets_->push_back(value);
        return true;
      case place::after_dtype:
        fail_dtype(std::to_string(value));
      default:
        unexpected("a number");
    }
  }

  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool number_float(double, std::string const& text) override
  {
    unexpected("the number " + in_quotes(text));
  }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool null() override { unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }

  bool parse_error(std::size_t, std::string const&, nlohmann::json::exception const& error) override
  {
    fail(std::string{"its header is not JSON ("} + error.what() + ")");
  }

 private:
  enum class place {
    start,
    top,
    after_name,
    metadata,
    after_metadata_key,
    tensor,
    after_dtype,
    after_shape,
    shape,
    after_offsets,
    offsets,
    end
  };

  bool go(place next)
  {
    place_ = next;
    return true;
  }

  [[noreturn]] void fail(std::string const& what) const { throw file_error(where_ + ": " + what); }
  [[noreturn]] void fail_tensor(std::string const& what) const
  {
    fail("tensor " + in_quotes(entry_.name) + ": " + what);
  }
  [[noreturn]] void fail_dtype(std::string const& spelling) const
  {
    fail_tensor("its dtype " + spelling +
                " is not read; weights must be F32, F16 or BF16 (convert a quantised checkpoint)");
  }
  [[noreturn]] void unexpected(std::string const& what) const
  {
    if (place_ == place::start || place_ == place::end) { fail("its header is not a JSON object"); }
    if (place_ == place::after_dtype) { fail_dtype(what); }
    if (place_ == place::after_metadata_key || key_ == "__metadata__") {
      fail("__metadata__ holds " + what + " where a string belongs");
    }
    fail_tensor("its header entry holds " + what + " where it does not belong");
  }

  void finish_tensor()
  {
    if (!has_dtype_ || !has_shape_ || !offsets_) {
      fail_tensor("dtype, shape or data_offsets is missing");
    }
    auto const begin = (*offsets_)[0];
    auto const end   = (*offsets_)[1];
    if (begin > end) { fail_tensor("data_offsets end before they begin"); }
    std::uint64_t bytes = bytes_of(entry_.type);
    for (std::int64_t const size : entry_.shape) {
      auto const factor = static_cast<std::uint64_t>(size);
      if (factor != 0 && bytes > std::numeric_limits<std::int64_t>::max() / factor) {
        fail_tensor("its shape " + to_string(entry_.shape) + " is larger than any file");
      }
      bytes *= factor;
    }
    if (bytes != end - begin) {
      fail_tensor("its shape " + to_string(entry_.shape) + " of " +
                  std::string{name_of(entry_.type)} + " takes " + std::to_string(bytes) +
                  " bytes, its data_offsets span " + std::to_string(end - begin));
    }
    entry_.begin = begin;
    entry_.end   = end;
    header_.tensors.push_back(std::move(entry_));
  }

  std::string where_;
  place place_{place::start};
  std::string key_;  // of the top object or of the metadata
  tensor_entry entry_;
  bool has_dtype_{false};
  bool has_shape_{false};
  std::optional<std::vector<std::uint64_t>> offsets_;
  std::set<std::string> names_;
  safetensors_header header_;
};
}  // namespace

safetensors_header parse_safetensors_header(std::string_view text, std::string const& where)
{
  // The parser takes a NUL for the end of the text and would never look at what follows.
  if (text.find('\0') != std::string_view::npos) {
    throw file_error(where + ": its header is not JSON (it holds a NUL byte)");
  }
  if (text.empty() || text.front() != '{') {
    throw file_error(where + ": its header is not a JSON object; is this a safetensors file?");
  }
  header_reader reader{where};
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}
}  // namespace llama3
