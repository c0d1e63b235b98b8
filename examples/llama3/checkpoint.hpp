// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! All weights of a model folder, whether it holds one safetensors file or shards with an index.
//! Read before this: llama3/safetensors.hpp.  Read next: llama3/model_config.hpp.
#include "llama3/safetensors.hpp"

#include <cstddef>     // size_t
#include <cstdint>     // int64_t
#include <filesystem>  // path
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! The open weight files of one folder; views are valid while it lives.
class checkpoint {
 public:
  //! Opens `model.safetensors`, or the shards of `model.safetensors.index.json`.
  //! @throws file_error if neither is there, a shard is missing, the index names a tensor that its
  //!         shard lacks or a file outside the folder, a tensor stands in two shards, or a file is
  //!         refused by safetensors_file; always before any value is read
  explicit checkpoint(std::filesystem::path const& folder);

  [[nodiscard]] std::filesystem::path const& folder() const noexcept { return folder_; }
  [[nodiscard]] std::size_t num_tensors() const noexcept { return tensors_.size(); }
  //! Bytes of all tensors.
  [[nodiscard]] std::size_t num_bytes() const noexcept;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  //! nullptr if there is none of that name
  [[nodiscard]] tensor_view const* find(std::string_view name) const;
  //! @throws file_error naming folder and tensor if there is none of that name
  [[nodiscard]] tensor_view const& at(std::string_view name) const;
  //! As above, and the tensor has exactly this shape.
  //! @throws file_error naming both shapes
  [[nodiscard]] tensor_view const& at(std::string_view name,
                                      std::vector<std::int64_t> const& shape) const;

 private:
  std::filesystem::path folder_;
  std::vector<safetensors_file> files_;
  std::map<std::string, tensor_view const*, std::less<>> tensors_;  // into files_
};
}  // namespace llama3
