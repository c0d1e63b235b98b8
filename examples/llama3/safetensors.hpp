// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Reads and writes one safetensors file: eight bytes of header length, a JSON header, the data.
//! A file is mapped, never copied; it is checked completely when it is opened, so that a view
//! that was handed out is always inside the file and always as long as its shape says.
//! Read before this: llama3/mapped_file.hpp.  Read next: llama3/checkpoint.hpp.
#include "llama3/file_error.hpp"
#include "llama3/mapped_file.hpp"

#include <diffkv/core/half.hpp>  // to_f32

#include <cstddef>     // byte, size_t
#include <cstdint>     // int64_t, uint16_t, uint32_t
#include <cstring>     // memcpy
#include <filesystem>  // path
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! Element types that a file may hold. Others (8-bit floats, packed 4-bit integers) are refused.
//! Only f32, f16 and bf16 are weights; the rest can be listed and skipped, not converted.
enum class dtype { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

//! The spelling of the format, as "BF16".
[[nodiscard]] std::string_view name_of(dtype type) noexcept;
[[nodiscard]] std::size_t bytes_of(dtype type) noexcept;

//! Both exact, Inf and NaN included. Branch-free, so that loops over them become vector code.
[[nodiscard]] inline float f16_to_f32(std::uint16_t bits) noexcept
{
  return diffkv::to_f32(diffkv::f16_bits{bits});
}
[[nodiscard]] inline float bf16_to_f32(std::uint16_t bits) noexcept
{
  std::uint32_t const word = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

//! A window on one tensor, row-major, little-endian, valid while its file is open.
//! `data` need not be aligned to the element: read it through `to_f32` or memcpy.
struct tensor_view {
  std::string name;
  dtype type{dtype::f32};
  std::vector<std::int64_t> shape;  //!< [] is a scalar, a 0 in it an empty tensor
  std::byte const* data{nullptr};
  std::size_t bytes{0};

  [[nodiscard]] std::size_t num_elements() const noexcept { return bytes / bytes_of(type); }
};

//! "[49152, 576]"
[[nodiscard]] std::string to_string(std::vector<std::int64_t> const& shape);

//! Every element as f32; exact for f16, bf16 and f32 (NaN stays NaN, infinity stays infinity).
//! @throws file_error for any other type, naming the tensor
[[nodiscard]] std::vector<float> to_f32(tensor_view const& tensor);
//! The same into [tensor.num_elements()] floats at `out`.
void to_f32(tensor_view const& tensor, float* out);

//! One open file.
class safetensors_file {
 public:
  //! Maps the file and checks all of it but the values.
  //! @throws file_error naming the file, and the tensor where one is at fault: a header longer
  //!         than the file or than 100 MB, JSON that is not the format's, a key twice, an unknown
  //!         type, a shape whose size is not that of its bytes or overflows, and data that
  //!         overlaps, leaves a hole or ends early or late
  //! @cost   proportional to the header, not to the data
  explicit safetensors_file(std::filesystem::path path);

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  //! Ordered by name.
  [[nodiscard]] std::map<std::string, tensor_view, std::less<>> const& tensors() const noexcept
  {
    return tensors_;
  }
  [[nodiscard]] std::map<std::string, std::string> const& metadata() const noexcept
  {
    return metadata_;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  //! nullptr if there is none of that name
  [[nodiscard]] tensor_view const* find(std::string_view name) const;
  //! @throws file_error naming file and tensor if there is none of that name
  [[nodiscard]] tensor_view const& at(std::string_view name) const;
  //! As above, and the tensor has exactly this shape.
  //! @throws file_error naming both shapes
  [[nodiscard]] tensor_view const& at(std::string_view name,
                                      std::vector<std::int64_t> const& shape) const;

 private:
  std::filesystem::path path_;
  mapped_file file_;
  std::map<std::string, tensor_view, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

//! A view of [product of shape] floats that the caller keeps alive, for `write_safetensors`.
[[nodiscard]] tensor_view view_of(std::string name, std::vector<std::int64_t> shape,
                                  std::vector<float> const& values);

//! Writes `tensors` in the order given to a temporary file beside `path`, then renames it, so that
//! a reader never meets half a file.
//! @throws file_error if a name is empty, reserved or used twice, bytes and shape differ, or the
//!         file cannot be written
void write_safetensors(std::filesystem::path const& path, std::vector<tensor_view> const& tensors,
                       std::map<std::string, std::string> const& metadata = {});
}  // namespace llama3
