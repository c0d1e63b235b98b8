// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/safetensors.hpp"

#include "llama3/safetensors_bytes.hpp"
#include "support/catch.hpp"

#include <iterator>  // distance

namespace {
using diffkv::test::contains;
using namespace llama3::test;
using llama3::dtype;
using llama3::file_error;
using llama3::safetensors_file;
using llama3::view_of;

std::ptrdiff_t num_files(std::filesystem::path const& folder)
{
  return std::distance(std::filesystem::directory_iterator{folder}, {});
}
}  // namespace

TEST_CASE("write_safetensors: what is written is read back", "[llama3]")
{
  temporary_folder const folder;
  auto const path = folder.path() / "offsets.safetensors";
  std::vector<float> const a{1.0f, -2.0f, 3.5f, 0x1p-149f, 1e30f, -0.0f};
  std::vector<float> const none;
  std::vector<std::uint16_t> const halves{0x3C00, 0x7C00, 0x0001};
  llama3::tensor_view const half{
    "h \"\xC3\xA9\n", dtype::f16, {3}, reinterpret_cast<std::byte const*>(halves.data()), 6};
  std::map<std::string, std::string> const metadata{{"source", "\"a\" {b}\n"}, {"", ""}};
  llama3::write_safetensors(
    path,
    {view_of("a", {2, 3}, a), half, view_of("none", {0, 4}, none), view_of("one", {}, {a[0]})},
    metadata);

  safetensors_file const file{path};
  CHECK(file.metadata() == metadata);
  CHECK(file.tensors().size() == 4);
  CHECK(llama3::to_f32(file.at("a", {2, 3})) == a);
  CHECK(file.at("h \"\xC3\xA9\n", {3}).type == dtype::f16);
  CHECK(llama3::to_f32(file.at("h \"\xC3\xA9\n"))[2] == 0x1p-24f);
  CHECK(llama3::to_f32(file.at("none", {0, 4})).empty());
  CHECK(file.at("one", {}).num_elements() == 1);
  CHECK(num_files(folder.path()) == 1);
}

TEST_CASE("write_safetensors: a file that is being read may be replaced", "[llama3]")
{
  temporary_folder const folder;
  auto const path = folder.path() / "x.safetensors";
  std::vector<float> const first{1.0f};
  std::vector<float> const second{2.0f, 3.0f};
  llama3::write_safetensors(path, {view_of("w", {1}, first)});
  safetensors_file const old{path};
  llama3::write_safetensors(path, {view_of("w", {2}, second)});
  CHECK(llama3::to_f32(old.at("w")) == first);
  CHECK(llama3::to_f32(safetensors_file{path}.at("w")) == second);
  CHECK(num_files(folder.path()) == 1);
}

TEST_CASE("write_safetensors: what could not be read back is not written", "[llama3]")
{
  temporary_folder const folder;
  auto const path = folder.path() / "x.safetensors";
  std::vector<float> const two{1.0f, 2.0f};
  auto const write = [&](std::vector<llama3::tensor_view> const& tensors) {
    llama3::write_safetensors(path, tensors);
  };
  CHECK_THROWS_WITH(write({view_of("w", {3}, two)}), contains("'w'"));
  CHECK_THROWS_WITH(write({view_of("w", {2}, two), view_of("w", {2}, two)}), contains("twice"));
  CHECK_THROWS_AS(write({view_of("", {2}, two)}), file_error);
  CHECK_THROWS_AS(write({view_of("__metadata__", {2}, two)}), file_error);
  CHECK_THROWS_AS(write({view_of("\xFF", {2}, two)}), file_error);
  CHECK_THROWS_AS(write({view_of("w", {-2}, two)}), file_error);
  CHECK(num_files(folder.path()) == 0);
  CHECK_THROWS_WITH(
    llama3::write_safetensors(folder.path() / "no" / "x.safetensors", {view_of("w", {2}, two)}),
    contains("cannot be written"));
}
