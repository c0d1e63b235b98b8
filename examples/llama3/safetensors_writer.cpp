// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/safetensors.hpp"

#include "llama3/json_text.hpp"           // in_quotes
#include "llama3/safetensors_header.hpp"  // the reader's rules are the writer's too

#include <unistd.h>  // getpid

#include <fstream>
#include <string>
#include <system_error>  // error_code

namespace llama3 {
namespace {
std::string header_text(std::vector<tensor_view> const& tensors,
                        std::map<std::string, std::string> const& metadata,
                        std::string const& where)
{
  // Assembled by hand around the library's strings, so that tensors keep the order of their bytes
  // and a name that stands twice reaches the check below.
  auto const json_string = [](std::string const& text) { return nlohmann::json(text).dump(); };
  std::string text{"{"};
  try {
    if (!metadata.empty()) { text += "\"__metadata__\":" + nlohmann::json(metadata).dump(); }
    std::uint64_t offset = 0;
    for (auto const& tensor : tensors) {
      if (tensor.name.empty() || tensor.name == "__metadata__") {
        throw file_error(where + ": " + in_quotes(tensor.name) + " cannot name a tensor");
      }
      text += text.size() > 1 ? "," : "";
      text += json_string(tensor.name) + ":{\"dtype\":\"" + std::string{name_of(tensor.type)} +
              "\",\"shape\":" + nlohmann::json(tensor.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(offset + tensor.bytes) + "]}";
      offset += tensor.bytes;
    }
  } catch (nlohmann::json::exception const& error) {  // a name that is not UTF-8
    throw file_error(where + ": cannot be written: " + error.what());
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // the data then starts at a multiple of 8
  (void)parse_safetensors_header(text, where);
  return text;
}
}  // namespace

void write_safetensors(std::filesystem::path const& path, std::vector<tensor_view> const& tensors,
                       std::map<std::string, std::string> const& metadata)
{
  auto const header          = header_text(tensors, metadata, path.string());
  std::uint64_t const length = header.size();
  auto temporary             = path;
  temporary += ".tmp" + std::to_string(::getpid());
  bool written = false;
  {
    std::ofstream file{temporary, std::ios::binary | std::ios::trunc};
    file.write(reinterpret_cast<char const*>(&length), sizeof length);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (auto const& tensor : tensors) {
      if (tensor.bytes == 0) { continue; }
      file.write(reinterpret_cast<char const*>(tensor.data),
                 static_cast<std::streamsize>(tensor.bytes));
    }
    file.close();
    written = file.good();
  }
  std::error_code error;
  if (written) { std::filesystem::rename(temporary, path, error); }
  if (!written || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw file_error(path.string() +
                     ": cannot be written; is its folder there, writable, with room?");
  }
}
}  // namespace llama3
