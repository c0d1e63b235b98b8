// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! safetensors files made by hand, byte by byte, so that tests can make them wrong.
#include "llama3/tiny_model.hpp"  // temporary_folder

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace llama3::test {
//! The bytes of trivially copyable values, little-endian as on every machine this runs on.
template <class T>
std::string bytes_of_values(std::vector<T> const& values)
{
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!bytes.empty()) { std::memcpy(bytes.data(), values.data(), bytes.size()); }
  return bytes;
}

//! A file that says its header has `length` bytes, whatever it has.
inline std::string file_with_length(std::uint64_t length, std::string const& rest)
{
  return bytes_of_values(std::vector<std::uint64_t>{length}) + rest;
}

inline std::string file_of(std::string const& header, std::string const& data)
{
  return file_with_length(header.size(), header + data);
}

inline std::filesystem::path write_file(std::filesystem::path const& path, std::string const& bytes)
{
  std::ofstream file{path, std::ios::binary | std::ios::trunc};
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

//! {1, -2} as f32
inline std::string const one_minus_two = bytes_of_values(std::vector<float>{1.0f, -2.0f});

//! The header entry of a tensor.
inline std::string entry(std::string const& name, std::string const& dtype,
                         std::string const& shape, std::string const& offsets)
{
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}
}  // namespace llama3::test
