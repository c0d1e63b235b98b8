// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The JSON header of a safetensors file, read event by event: what does not belong there is
//! refused where it stands, before it can take memory.
//! Read before this: llama3/safetensors.hpp.
#include "llama3/safetensors.hpp"  // dtype

#include <cstdint>  // int64_t, uint64_t
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llama3 {
//! What the header says of one tensor. The size of `shape` is known not to overflow and to be the
//! size of the byte range; that the range lies inside the file is not known yet.
struct tensor_entry {
  std::string name;
  dtype type{dtype::f32};
  std::vector<std::int64_t> shape;
  std::uint64_t begin{0};  //!< of its bytes, from the end of the header
  std::uint64_t end{0};
};

struct safetensors_header {
  std::vector<tensor_entry> tensors;  //!< in the order of the text
  std::map<std::string, std::string> metadata;
};

//! @param where  names the file in errors
//! @throws file_error naming the file, and the tensor where one is at fault
[[nodiscard]] safetensors_header parse_safetensors_header(std::string_view text,
                                                          std::string const& where);
}  // namespace llama3
