// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/checkpoint.hpp"

#include "llama3/safetensors_bytes.hpp"
#include "support/catch.hpp"

namespace {
using diffkv::test::contains;
using namespace llama3::test;
using llama3::checkpoint;
using llama3::file_error;

std::string shard(std::vector<std::string> const& names)
{
  std::string header{"{"};
  std::size_t offset = 0;
  for (auto const& name : names) {
    header += (offset == 0 ? "" : ",") +
              entry(name, "F32", "[1]",
                    "[" + std::to_string(offset) + "," + std::to_string(offset + 4) + "]");
    offset += 4;
  }
  return file_of(header + "}", bytes_of_values(std::vector<float>(names.size(), 1.5f)));
}

//! Two shards: a, b in the first, c in the second.
struct sharded_folder {
  sharded_folder()
  {
    add("one.safetensors", shard({"a", "b"}));
    add("two.safetensors", shard({"c"}));
    index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  }

  void add(std::string const& name, std::string const& bytes) const
  {
    write_file(folder.path() / name, bytes);
  }
  void index(std::string const& map) const
  {
    add("model.safetensors.index.json",
        R"({"metadata":{"total_size":12},"weight_map":{)" + map + "}}");
  }
  [[nodiscard]] std::string refusal() const
  {
    try {
      checkpoint const opened{folder.path()};
    } catch (file_error const& error) {
      return error.what();
    }
    return {};
  }

  temporary_folder folder;
};
}  // namespace

TEST_CASE("checkpoint: shards are found through their index", "[llama3]")
{
  sharded_folder const files;
  checkpoint const opened{files.folder.path()};
  CHECK(opened.num_tensors() == 3);
  CHECK(opened.num_bytes() == 12);
  CHECK(opened.names() == std::vector<std::string>{"a", "b", "c"});
  CHECK(llama3::to_f32(opened.at("c", {1})) == std::vector<float>{1.5f});
  CHECK(opened.find("d") == nullptr);
  CHECK_THROWS_WITH(opened.at("d"), contains("'d'"));
  CHECK_THROWS_WITH(opened.at("c", {2}), contains("'c'") && contains("[1]") && contains("[2]"));
}

TEST_CASE("checkpoint: a single file needs no index", "[llama3]")
{
  temporary_folder const folder;
  write_file(folder.path() / "model.safetensors", shard({"a"}));
  checkpoint opened{folder.path()};
  auto const* const view = opened.find("a");
  checkpoint const moved{std::move(opened)};
  CHECK(moved.find("a") == view);
  CHECK(llama3::to_f32(*view) == std::vector<float>{1.5f});
}

TEST_CASE("checkpoint: shards and index that disagree are refused by file and tensor", "[llama3]")
{
  sharded_folder const files;
  SECTION("a shard is missing")
  {
    std::filesystem::remove(files.folder.path() / "two.safetensors");
    CHECK_THAT(files.refusal(), contains("two.safetensors") && contains("'c'"));
  }
  SECTION("the index names a tensor that its shard lacks")
  {
    files.index(R"("a":"one.safetensors","z":"two.safetensors")");
    CHECK_THAT(files.refusal(), contains("two.safetensors") && contains("'z'"));
  }
  SECTION("a tensor stands in both shards")
  {
    files.add("two.safetensors", shard({"c", "a"}));
    CHECK_THAT(files.refusal(), contains("two.safetensors") && contains("'a'"));
  }
  SECTION("a shard is damaged")
  {
    files.add("two.safetensors", shard({"c"}).substr(0, 20));
    CHECK_THAT(files.refusal(), contains("two.safetensors"));
  }
}

TEST_CASE("checkpoint: an index leads nowhere but beside itself", "[llama3]")
{
  sharded_folder const files;
  write_file(files.folder.path().parent_path() / "diffkv_outside.safetensors", shard({"c"}));
  for (char const* const name :
       {"\"../diffkv_outside.safetensors\"", "\"/etc/passwd\"", "\"sub/two.safetensors\"", "\"..\"",
        "\".\"", "\"\"", "\"a\\\\b\"", "\"two.safetensors\\u0000\"", "7", "null", "[]"}) {
    CAPTURE(name);
    files.index(std::string{R"("c":)"} + name);
    CHECK_THAT(files.refusal(), contains("'c'") && contains("index.json"));
  }
  std::filesystem::remove(files.folder.path().parent_path() / "diffkv_outside.safetensors");
}

TEST_CASE("checkpoint: an index that is none is refused", "[llama3]")
{
  sharded_folder const files;
  for (char const* const text :
       {"", "{}", "[]", "{", R"({"weight_map":{}})", R"({"weight_map":[]})",
        R"({"weight_map":{"c":"two.safetensors"},"weight_map":{"c":"two.safetensors"}})", "\xFF"}) {
    CAPTURE(text);
    files.add("model.safetensors.index.json", text);
    CHECK_THAT(files.refusal(), contains("index.json"));
  }
}

TEST_CASE("checkpoint: a folder without weights says how to get some", "[llama3]")
{
  temporary_folder const folder;
  CHECK_THROWS_WITH(checkpoint{folder.path()}, contains("get_model.py"));
  CHECK_THROWS_WITH(checkpoint{folder.path() / "absent"}, contains("get_model.py"));
  auto const file = write_file(folder.path() / "model.gguf", "GGUF");
  CHECK_THROWS_WITH(checkpoint{file}, contains("--gguf"));
}
