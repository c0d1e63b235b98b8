// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/calibration.hpp"

#include "llama3/exact_backend.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace {
using namespace llama3;
using diffkv::test::contains;
using llama3::test::make_tiny_model;
using llama3::test::temporary_folder;

//! A tiny model in a folder of its own, and what `key_offsets` said of it last.
struct fixture {
  explicit fixture(unsigned seed = 41)
  {
    auto const tiny = make_tiny_model({}, seed);
    tiny.write(folder.path());
    files  = std::make_unique<checkpoint>(folder.path());
    loaded = std::make_unique<model>(tiny.config, *files, threads);
  }
  std::vector<float> run(std::vector<token_id> const& ids)
  {
    said.clear();
    layers_run = 0;
    return key_offsets(
      loaded->config(), *files, ids,
      [&] { return calibrate(*loaded, ids, threads, [&](int, int) { ++layers_run; }); },
      [&](std::string const& text) { said += text; });
  }
  [[nodiscard]] std::filesystem::path file() const { return folder.path() / offsets_file_name; }
  [[nodiscard]] bool calibrated() const { return layers_run == loaded->config().num_layers; }

  temporary_folder folder;
  thread_pool threads{2};
  std::unique_ptr<checkpoint> files;
  std::unique_ptr<model> loaded;
  std::string said;
  int layers_run{0};
};

std::vector<token_id> const text{1, 5, 9, 2, 6, 3, 30, 39, 7, 7, 8};
}  // namespace

TEST_CASE("calibration: offsets are the mean keys of the prompt", "[llama3]")
{
  fixture f;
  auto const& c      = f.loaded->config();
  auto const offsets = calibrate(*f.loaded, text, f.threads);
  exact_backend cache{c, f.threads};
  (void)f.loaded->prompt(text, cache);
  auto const width = static_cast<std::size_t>(c.num_heads * c.head_dim);
  REQUIRE(offsets.size() == static_cast<std::size_t>(c.num_layers) * width);
  for (int layer = 0; layer < c.num_layers; ++layer) {
    for (std::size_t i = 0; i < width; ++i) {
      CAPTURE(layer, i);
      double sum = 0.0;
      for (std::size_t t = 0; t < text.size(); ++t) { sum += cache.keys(layer)[t * width + i]; }
      CHECK(std::abs(offsets[static_cast<std::size_t>(layer) * width + i] -
                     sum / static_cast<double>(text.size())) < 1e-6);
    }
  }
}

TEST_CASE("calibration: it is done once, then read from the file", "[llama3]")
{
  fixture f;
  auto const first = f.run(text);
  CHECK(f.calibrated());
  CHECK(f.said.empty());
  CHECK(std::filesystem::exists(f.file()));
  auto const second = f.run(text);
  CHECK(f.layers_run == 0);
  CHECK(f.said.empty());
  CHECK(second == first);
}

TEST_CASE("calibration: another text or other weights are not mixed up", "[llama3]")
{
  fixture f;
  auto const first = f.run(text);
  auto other_text  = text;
  other_text.back() += 1;
  auto const second = f.run(other_text);
  CHECK(f.calibrated());
  CHECK_THAT(f.said, contains("text_digest"));
  CHECK(second != first);

  fixture other{42};  // the same shapes and bytes
  std::filesystem::copy_file(f.file(), other.file());
  (void)other.run(other_text);
  CHECK(other.calibrated());
  CHECK_THAT(other.said, contains("weights_digest"));
  (void)other.run(other_text);
  CHECK(other.layers_run == 0);
}

TEST_CASE("calibration: a damaged file is replaced, with a message", "[llama3]")
{
  fixture f;
  auto const expected = f.run(text);
  auto const size     = std::filesystem::file_size(f.file());
  for (auto const cut : {std::uintmax_t{0}, std::uintmax_t{7}, size / 2, size - 1}) {
    CAPTURE(cut);
    std::filesystem::resize_file(f.file(), cut);
    CHECK(f.run(text) == expected);
    CHECK(f.calibrated());
    CHECK_THAT(f.said, contains(offsets_file_name));
    CHECK(std::filesystem::file_size(f.file()) == size);
  }
  auto const identity = identity_of(f.loaded->config(), *f.files, text);
  auto infinite       = expected;
  infinite[3]         = std::numeric_limits<float>::infinity();
  save_key_offsets(f.file(), identity, infinite);
  CHECK(f.run(text) == expected);
  CHECK_THAT(f.said, contains("not finite"));

  auto narrower  = identity;
  narrower.shape = {2, 4, 4};  // as many values, other heads
  save_key_offsets(f.file(), narrower, expected);
  CHECK(f.run(text) == expected);
  CHECK_THAT(f.said, contains("[2, 4, 4]"));
}

TEST_CASE("calibration: where the file cannot be written the offsets serve this run", "[llama3]")
{
  fixture f;
  std::filesystem::create_directory(f.file());  // a folder stands where the file should
  std::ofstream{f.file() / "occupied"} << "x";
  auto const first = f.run(text);
  CHECK(f.calibrated());
  CHECK_THAT(f.said, contains("this run only"));
  CHECK(first == calibrate(*f.loaded, text, f.threads));
}
