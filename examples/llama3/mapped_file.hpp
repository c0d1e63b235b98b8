// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A file as bytes: mapped read-only, or read whole where it is small text.
//! Read before this: llama3/file_error.hpp.  Read next: llama3/safetensors.hpp.
#include <cstddef>     // byte, size_t
#include <filesystem>  // path
#include <string>

namespace llama3 {
//! Owns a read-only mapping of a whole file. Moving keeps `data()`; an empty file maps to nothing.
class mapped_file {
 public:
  //! @throws file_error if the file is missing, not a regular file, or cannot be read
  explicit mapped_file(std::filesystem::path const& path);
  ~mapped_file();
  mapped_file(mapped_file&& other) noexcept;
  mapped_file& operator=(mapped_file&& other) noexcept;
  mapped_file(mapped_file const&)            = delete;
  mapped_file& operator=(mapped_file const&) = delete;

  [[nodiscard]] std::byte const* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  void unmap() noexcept;

  std::byte const* data_{nullptr};
  std::size_t size_{0};
};

//! The bytes of a small text file, such as config.json.
//! @throws file_error if it is missing, unreadable, or longer than `max_bytes`
[[nodiscard]] std::string read_text_file(std::filesystem::path const& path, std::size_t max_bytes);

//! @throws file_error saying how to make one, if `folder` is no folder
void expect_model_folder(std::filesystem::path const& folder);
}  // namespace llama3
