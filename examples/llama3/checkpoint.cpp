// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/checkpoint.hpp"

#include "llama3/json_text.hpp"

#include <system_error>  // error_code

namespace llama3 {
namespace {
constexpr std::size_t max_index_bytes = 100'000'000;

//! tensor name -> shard file name, both from the index.
std::map<std::string, std::string> read_index(std::filesystem::path const& path)
{
  auto const where = path.string();
  auto const index = parse_json_object(read_text_file(path, max_index_bytes), where);
  auto const found = index.find("weight_map");
  if (found == index.end() || !found->is_object() || found->empty()) {
    throw file_error(where + ": weight_map is missing or names no tensor");
  }
  std::map<std::string, std::string> shards;
  for (auto const& [tensor, value] : found->items()) {
    auto const shard = value.is_string() ? value.get<std::string>() : std::string{};
    // A shard lies beside its index. Anything that could lead elsewhere is not followed.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view{"/\\\0", 3}) != std::string::npos) {
      throw file_error(where + ": tensor " + in_quotes(tensor) + " is said to be in " +
                       in_quotes(shard) + ", which is no file name");
    }
    shards.emplace(tensor, shard);
  }
  return shards;
}
}  // namespace

checkpoint::checkpoint(std::filesystem::path const& folder) : folder_(folder)
{
  expect_model_folder(folder);
  std::error_code ignored;
  auto const single = folder / "model.safetensors";
  auto const index  = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single, ignored)) {
    files_.emplace_back(single);
  } else if (std::filesystem::exists(index, ignored)) {
    auto const shards = read_index(index);
    std::map<std::string, std::size_t> opened;  // file name -> place in files_
    for (auto const& [tensor, shard] : shards) {
      if (opened.count(shard) != 0) { continue; }
      if (!std::filesystem::exists(folder / shard, ignored)) {
        throw file_error((folder / shard).string() + ": is missing, though " + index.string() +
                         " finds tensor " + in_quotes(tensor) + " in it; download it");
      }
      opened.emplace(shard, files_.size());
      files_.emplace_back(folder / shard);
    }
    for (auto const& [tensor, shard] : shards) {
      if (!files_[opened.at(shard)].contains(tensor)) {
        throw file_error((folder / shard).string() + ": holds no tensor " + in_quotes(tensor) +
                         ", though " + index.string() + " says so");
      }
    }
  } else {
    throw file_error(folder.string() + ": holds neither model.safetensors nor " +
                     index.filename().string() + "; scripts/get_model.py makes a model folder");
  }
  for (auto const& file : files_) {
    for (auto const& [name, view] : file.tensors()) {
      if (!tensors_.emplace(name, &view).second) {
        throw file_error(file.path().string() + ": tensor " + in_quotes(name) +
                         " stands in another shard too");
      }
    }
  }
}

std::size_t checkpoint::num_bytes() const noexcept
{
  std::size_t total = 0;
  for (auto const& entry : tensors_) { total += entry.second->bytes; }
  return total;
}

std::vector<std::string> checkpoint::names() const
{
  std::vector<std::string> all;
  all.reserve(tensors_.size());
  for (auto const& entry : tensors_) { all.push_back(entry.first); }
  return all;
}

tensor_view const* checkpoint::find(std::string_view name) const
{
  auto const found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

tensor_view const& checkpoint::at(std::string_view name) const
{
  auto const* const tensor = find(name);
  if (tensor == nullptr) {
    throw file_error(folder_.string() + ": no weight file holds the tensor " + in_quotes(name) +
                     ", which config.json asks for");
  }
  return *tensor;
}

tensor_view const& checkpoint::at(std::string_view name,
                                  std::vector<std::int64_t> const& shape) const
{
  auto const& tensor = at(name);
  if (tensor.shape != shape) {
    throw file_error(folder_.string() + ": tensor " + in_quotes(name) + ": its shape is " +
                     to_string(tensor.shape) + ", config.json asks for " + to_string(shape));
  }
  return tensor;
}
}  // namespace llama3
