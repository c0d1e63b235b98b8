// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/safetensors.hpp"

#include "llama3/json_text.hpp"  // in_quotes
#include "llama3/safetensors_header.hpp"

#include <algorithm>  // sort
#include <cstring>    // memcpy
#include <limits>
#include <tuple>    // tie
#include <utility>  // move

static_assert(sizeof(float) == 4 && std::numeric_limits<float>::is_iec559);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is read in place"
#endif

namespace llama3 {
namespace {
constexpr std::size_t length_bytes     = 8;
constexpr std::size_t max_header_bytes = 100'000'000;  // the format's own limit

[[noreturn]] void fail(std::filesystem::path const& path, std::string const& what)
{
  throw file_error(path.string() + ": " + what);
}

//! Length of the header text, known to lie inside the file.
std::size_t header_bytes_of(mapped_file const& file, std::filesystem::path const& path)
{
  if (file.size() < length_bytes) {
    fail(path, "has " + std::to_string(file.size()) + " bytes, too few for a safetensors file");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > max_header_bytes) {
    fail(path, "says its header has " + std::to_string(length) +
                 " bytes, more than the format allows; is this a safetensors file?");
  }
  if (length > file.size() - length_bytes) {
    fail(path, "says its header has " + std::to_string(length) +
                 " bytes, but the file ends after " + std::to_string(file.size() - length_bytes) +
                 "; download it again");
  }
  return static_cast<std::size_t>(length);
}

//! The format wants the tensors to cover the data exactly once.
void check_coverage(std::vector<tensor_entry> entries, std::uint64_t data_bytes,
                    std::filesystem::path const& path)
{
  std::sort(entries.begin(), entries.end(), [](tensor_entry const& a, tensor_entry const& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (auto const& entry : entries) {
    auto const name = "tensor " + in_quotes(entry.name) + ": ";
    if (entry.end > data_bytes) {
      fail(path, name + "its data ends at byte " + std::to_string(entry.end) + " of " +
                   std::to_string(data_bytes) + "; the file is cut short, download it again");
    }
    if (entry.begin < covered) { fail(path, name + "its data overlaps another tensor's"); }
    if (entry.begin > covered) { fail(path, name + "bytes before its data belong to no tensor"); }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    fail(path, std::to_string(data_bytes - covered) + " bytes at its end belong to no tensor");
  }
}

template <class Decode>
void decode_16_bit(tensor_view const& tensor, float* out, Decode decode)
{
  std::size_t const count = tensor.num_elements();
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, tensor.data + 2 * i, sizeof bits);
    out[i] = decode(bits);
  }
}
}  // namespace

std::string_view name_of(dtype type) noexcept
{
  switch (type) {
    case dtype::f64:
      return "F64";
    case dtype::f32:
      return "F32";
    case dtype::f16:
      return "F16";
    case dtype::bf16:
      return "BF16";
    case dtype::i64:
      return "I64";
    case dtype::i32:
      return "I32";
    case dtype::i16:
      return "I16";
    case dtype::i8:
      return "I8";
    case dtype::u8:
      return "U8";
    case dtype::boolean:
      return "BOOL";
  }
  return "";
}

std::size_t bytes_of(dtype type) noexcept
{
  switch (type) {
    case dtype::f64:
    case dtype::i64:
      return 8;
    case dtype::f32:
    case dtype::i32:
      return 4;
    case dtype::f16:
    case dtype::bf16:
    case dtype::i16:
      return 2;
    case dtype::i8:
    case dtype::u8:
    case dtype::boolean:
      return 1;
  }
  return 1;
}

std::string to_string(std::vector<std::int64_t> const& shape)
{
  std::string text{"["};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

void to_f32(tensor_view const& tensor, float* out)
{
  switch (tensor.type) {
    case dtype::f32:
      if (tensor.bytes != 0) { std::memcpy(out, tensor.data, tensor.bytes); }
      return;
    case dtype::f16:
      decode_16_bit(tensor, out, f16_to_f32);
      return;
    case dtype::bf16:
      decode_16_bit(tensor, out, bf16_to_f32);
      return;
    default:
      throw file_error("tensor " + in_quotes(tensor.name) + ": its dtype " +
                       std::string{name_of(tensor.type)} +
                       " is not a weight; F32, F16 and BF16 are");
  }
}

std::vector<float> to_f32(tensor_view const& tensor)
{
  std::vector<float> values(tensor.num_elements());
  to_f32(tensor, values.data());
  return values;
}

safetensors_file::safetensors_file(std::filesystem::path path)
  : path_(std::move(path)), file_(path_)
{
  auto const header_bytes = header_bytes_of(file_, path_);
  auto const* text        = reinterpret_cast<char const*>(file_.data()) + length_bytes;
  auto header             = parse_safetensors_header({text, header_bytes}, path_.string());
  check_coverage(header.tensors, file_.size() - length_bytes - header_bytes, path_);

  auto const* data = file_.data() + length_bytes + header_bytes;
  for (auto& entry : header.tensors) {
    tensor_view view;
    view.name  = entry.name;
    view.type  = entry.type;
    view.shape = std::move(entry.shape);
    view.data  = data + entry.begin;
    view.bytes = static_cast<std::size_t>(entry.end - entry.begin);
    tensors_.emplace(std::move(entry.name), std::move(view));
  }
  metadata_ = std::move(header.metadata);
}

tensor_view const* safetensors_file::find(std::string_view name) const
{
  auto const found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

tensor_view const& safetensors_file::at(std::string_view name) const
{
  auto const* const tensor = find(name);
  if (tensor == nullptr) { fail(path_, "holds no tensor " + in_quotes(name)); }
  return *tensor;
}

tensor_view const& safetensors_file::at(std::string_view name,
                                        std::vector<std::int64_t> const& shape) const
{
  auto const& tensor = at(name);
  if (tensor.shape != shape) {
    fail(path_, "tensor " + in_quotes(name) + ": its shape is " + to_string(tensor.shape) +
                  ", the configuration needs " + to_string(shape));
  }
  return tensor;
}

tensor_view view_of(std::string name, std::vector<std::int64_t> shape,
                    std::vector<float> const& values)
{
  tensor_view view;
  view.name  = std::move(name);
  view.type  = dtype::f32;
  view.shape = std::move(shape);
  view.data  = reinterpret_cast<std::byte const*>(values.data());
  view.bytes = values.size() * sizeof(float);
  return view;
}
}  // namespace llama3
