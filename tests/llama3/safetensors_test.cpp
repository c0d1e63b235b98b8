// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/safetensors.hpp"

#include "llama3/safetensors_bytes.hpp"
#include "support/catch.hpp"

#include <sys/resource.h>  // getrusage

#include <cmath>
#include <limits>
#include <random>

namespace {
using diffkv::test::contains;
using namespace llama3::test;
using llama3::dtype;
using llama3::file_error;
using llama3::safetensors_file;

//! One file at a time, under a name that errors must repeat.
class one_file {
 public:
  safetensors_file open(std::string const& bytes) const
  {
    return safetensors_file{write_file(folder_.path() / "w.safetensors", bytes)};
  }

  //! What the reader says against these bytes; empty if it takes them.
  std::string refusal(std::string const& bytes) const
  {
    try {
      (void)open(bytes);
    } catch (file_error const& error) {
      CHECK_THAT(error.what(), contains("w.safetensors"));
      return error.what();
    }
    return {};
  }

 private:
  temporary_folder folder_;
};

std::string const good_entry = entry("w", "F32", "[2]", "[0,8]");

long peak_kilobytes()
{
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}
}  // namespace

TEST_CASE("safetensors: the smallest file is read however its header is spelled", "[llama3]")
{
  one_file const file;
  for (std::string const& header : std::vector<std::string>{
         "{" + good_entry + "}", "{" + good_entry + "}   ",
         std::string{R"({"w":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}})"},
         std::string{
           "{\n \"w\" :\n{ \"shape\":[ 2 ],\t\"dtype\": \"F32\",\n\"data_offsets\":[0, 8]}}\n"},
         R"({"__metadata__":{"format":"pt"},)" + good_entry + "}",
         "{" + good_entry + R"(,"__metadata__":{}})"}) {
    CAPTURE(header);
    auto const opened = file.open(file_of(header, one_minus_two));
    REQUIRE(opened.tensors().size() == 1);
    auto const& tensor = opened.at("w", {2});
    CHECK(tensor.type == dtype::f32);
    CHECK(llama3::to_f32(tensor) == std::vector<float>{1.0f, -2.0f});
  }
}

TEST_CASE("safetensors: a header length that lies is refused without taking memory", "[llama3]")
{
  one_file const file;
  auto const before = peak_kilobytes();
  for (std::uint64_t const length :
       {std::uint64_t{93}, std::uint64_t{1'000'000'000}, std::uint64_t{1} << 63, ~std::uint64_t{0},
        std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    CAPTURE(length);
    CHECK_FALSE(file.refusal(file_with_length(length, std::string(92, ' '))).empty());
  }
  for (std::size_t const size : {std::size_t{0}, std::size_t{7}}) {
    CHECK_THAT(file.refusal(std::string(size, '\0')), contains("too few"));
  }
  auto const header = "{" + good_entry + "}";
  CHECK_THAT(file.refusal(file_with_length(header.size() / 2, header + one_minus_two)),
             contains("JSON"));
  CHECK(peak_kilobytes() - before < 10'000);
}

TEST_CASE("safetensors: bytes that do not fit the shape are refused by the tensor's name",
          "[llama3]")
{
  one_file const file;
  auto const refusal = [&](std::string const& dtype, std::string const& shape,
                           std::string const& offsets) {
    return file.refusal(file_of("{" + entry("w", dtype, shape, offsets) + "}", one_minus_two));
  };
  REQUIRE(refusal("F32", "[2]", "[0,8]").empty());
  for (char const* const offsets :
       {"[0,9]", "[0,16]", "[8,0]", "[4,12]", "[-8,0]", "[0]", "[0,8,16]", "[]", "[0,8.0]",
        "[0,18446744073709551616]", "[18446744073709551608,18446744073709551615]", "8", "null",
        "[[0,8]]", "\"0,8\"", "{}"}) {
    CAPTURE(offsets);
    CHECK_THAT(refusal("F32", "[2]", offsets), contains("'w'"));
  }
  for (char const* const shape : {"[3]",
                                  "[1]",
                                  "[-2]",
                                  "[2.0]",
                                  "[0]",
                                  "[]",
                                  "2",
                                  "null",
                                  "[\"2\"]",
                                  "[[2]]",
                                  "[4294967296,4294967296]",
                                  "[9223372036854775807]",
                                  "[9223372036854775809]",
                                  "[18446744073709551615,2]",
                                  "[4294967296,4294967296,0]",
                                  "[1000000000,1000000000]",
                                  "[4611686018427387906]",
                                  "[2305843009213693954]",
                                  "[1,1,1,1,1,1,1,1,2]",
                                  "true"}) {
    CAPTURE(shape);
    CHECK_THAT(refusal("F32", shape, "[0,8]"), contains("'w'"));
  }
  CHECK_THAT(refusal("F16", "[2]", "[0,8]"), contains("'w'"));
  CHECK_THAT(
    file.refusal(file_of("{" + entry("w", "F32", "[4294967296,1073741824]", "[0,0]") + "}", "")),
    contains("'w'"));  // 2^64 bytes
  CHECK_THAT(file.refusal(file_of("{" + good_entry + "}", one_minus_two.substr(0, 7))),
             contains("'w'"));
  CHECK_THAT(file.refusal(file_of("{" + good_entry + "}", one_minus_two + "x")),
             contains("belong to no tensor"));
}

TEST_CASE("safetensors: data is covered once, without overlap and without holes", "[llama3]")
{
  one_file const file;
  auto const refusal = [&](std::string const& first, std::string const& second) {
    return file.refusal(file_of("{" + first + "," + second + "}", std::string(16, '\0')));
  };
  CHECK(refusal(entry("a", "F32", "[2]", "[8,16]"), entry("b", "F32", "[2]", "[0,8]")).empty());
  CHECK(refusal(entry("a", "F32", "[4]", "[0,16]"), entry("e", "F32", "[0]", "[0,0]")).empty());
  CHECK(refusal(entry("a", "F32", "[4]", "[0,16]"), entry("e", "F32", "[0]", "[16,16]")).empty());
  CHECK_THAT(refusal(entry("a", "F32", "[3]", "[0,12]"), entry("b", "F32", "[2]", "[8,16]")),
             contains("overlaps"));
  CHECK_THAT(refusal(entry("a", "F32", "[4]", "[0,16]"), entry("b", "F32", "[4]", "[0,16]")),
             contains("overlaps"));
  CHECK_THAT(refusal(entry("a", "F32", "[4]", "[0,16]"), entry("e", "F32", "[0]", "[8,8]")),
             contains("overlaps"));
  CHECK_THAT(refusal(entry("a", "F32", "[1]", "[0,4]"), entry("b", "F32", "[2]", "[8,16]")),
             contains("'b'"));
  CHECK_THAT(refusal(entry("a", "F32", "[1]", "[0,4]"), entry("b", "F32", "[1]", "[4,8]")),
             contains("8 bytes at its end"));
}

TEST_CASE("safetensors: what is no header of the format is refused", "[llama3]")
{
  one_file const file;
  auto const with = [&](std::string const& header) {
    return file.refusal(file_of(header, one_minus_two));
  };
  CHECK_THAT(with("{" + good_entry + "," + good_entry + "}"), contains("twice"));
  CHECK_THAT(with(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
             contains("twice"));
  CHECK_THAT(with(R"({"w":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})"),
             contains("twice"));
  CHECK_THAT(with(R"({"__metadata__":{"a":"1","a":"2"},)" + good_entry + "}"), contains("twice"));
  CHECK_THAT(with(R"({"__metadata__":{"a":1},)" + good_entry + "}"), contains("__metadata__"));
  CHECK_THAT(with(R"({"__metadata__":[],)" + good_entry + "}"), contains("__metadata__"));
  CHECK_THAT(with(R"({"__metadata__":{"a":{}},)" + good_entry + "}"), contains("__metadata__"));
  CHECK_THAT(with(R"({"w":{"dtype":"F32","shape":[2]}})"), contains("missing"));
  CHECK_THAT(with(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})"), contains("missing"));
  CHECK_THAT(with(R"({"w":{"shape":[2],"data_offsets":[0,8]}})"), contains("missing"));
  CHECK_THAT(with(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})"),
             contains("'x'"));
  for (std::string const& header : std::vector<std::string>{
         std::string{"[]"}, std::string{"null"}, std::string{"{"}, std::string{"{}{}"},
         " {" + good_entry + "}", "{" + good_entry + "},", "{" + good_entry + "} x",
         "{" + good_entry + "}" + std::string(3, '\0'), std::string{R"({"w":1})"},
         std::string{R"({"w":[]})"}, std::string{R"({"w":null})"}, std::string{R"({"w":"F32"})"},
         std::string{"{\"\xFF\":1}"}, "{'w':1}", std::string(2000, '['),
         "{\"w\":" + std::string(2000, '{')}) {
    CAPTURE(header);
    CHECK_FALSE(with(header).empty());
  }
}

TEST_CASE("safetensors: an element type that is not read is named with its tensor", "[llama3]")
{
  one_file const file;
  for (char const* const type :
       {"\"F8_E4M3\"", "\"I4\"", "\"f32\"", "\"\"", "7", "null", "\"U32\"", "[]", "{}", "true"}) {
    CAPTURE(type);
    auto const said = file.refusal(
      file_of(std::string{R"({"w":{"dtype":)"} + type + R"(,"shape":[2],"data_offsets":[0,8]}})",
              one_minus_two));
    CHECK_THAT(said, contains("'w'") && contains("dtype"));
  }
  CHECK_THAT(
    file.refusal(file_of("{" + entry("w", "F8_E4M3", "[8]", "[0,8]") + "}", one_minus_two)),
    contains("F8_E4M3"));
}

TEST_CASE("safetensors: integers can be listed but are no weights", "[llama3]")
{
  one_file const file;
  for (auto const& [name, size] : {std::pair<char const*, int>{"I64", 1},
                                   {"F64", 1},
                                   {"I32", 2},
                                   {"I16", 4},
                                   {"I8", 8},
                                   {"U8", 8},
                                   {"BOOL", 8}}) {
    CAPTURE(name);
    auto const opened = file.open(file_of(
      "{" + entry("w", name, "[" + std::to_string(size) + "]", "[0,8]") + "}", one_minus_two));
    CHECK(llama3::name_of(opened.at("w").type) == name);
    CHECK(opened.at("w").num_elements() == static_cast<std::size_t>(size));
    CHECK_THROWS_WITH(llama3::to_f32(opened.at("w")), contains("'w'") && contains(name));
  }
}

TEST_CASE("safetensors: no tensors, empty tensors, scalars and rich metadata are read", "[llama3]")
{
  one_file const file;
  CHECK(file.open(file_of("{}", "")).tensors().empty());
  auto const only = file.open(
    file_of(R"({"__metadata__":{"a\"b":"{\"x\": [1,2]} }{","\u00e9":"caf\u00e9 \\ \n"}})", ""));
  CHECK(only.tensors().empty());
  REQUIRE(only.metadata().size() == 2);
  CHECK(only.metadata().at("a\"b") == "{\"x\": [1,2]} }{");
  CHECK(only.metadata().at("\xC3\xA9") == "caf\xC3\xA9 \\ \n");

  auto const empty = file.open(file_of(
    "{" + entry("e", "F32", "[0]", "[0,0]") + "," + entry("m", "BF16", "[3,0,5]", "[0,0]") + "}",
    ""));
  CHECK(empty.at("e", {0}).num_elements() == 0);
  CHECK(llama3::to_f32(empty.at("e")).empty());
  CHECK(llama3::to_f32(empty.at("m", {3, 0, 5})).empty());

  auto const scalar = file.open(file_of("{" + entry("model.\\u00e9.x", "F32", "[]", "[0,4]") + "}",
                                        bytes_of_values(std::vector<float>{2.5f})));
  CHECK(llama3::to_f32(scalar.at("model.\xC3\xA9.x", {})) == std::vector<float>{2.5f});
}

TEST_CASE("safetensors: a tensor that is not there or has another shape is named", "[llama3]")
{
  one_file const file;
  auto const opened = file.open(file_of("{" + good_entry + "}", one_minus_two));
  CHECK(opened.find("v") == nullptr);
  CHECK_FALSE(opened.contains("v"));
  CHECK_THROWS_WITH(opened.at("v"), contains("w.safetensors") && contains("'v'"));
  CHECK_THROWS_WITH(opened.at("w", {1, 2}),
                    contains("'w'") && contains("[2]") && contains("[1, 2]"));
}

TEST_CASE("to_f32: bf16 is widened exactly", "[llama3]")
{
  std::vector<std::uint16_t> const bits{0x3F80, 0xC020, 0x4049, 0x477F, 0x4780,
                                        0x0001, 0x7F80, 0x7FC1, 0x8000, 0xFF80};
  one_file const file;
  auto const opened =
    file.open(file_of("{" + entry("w", "BF16", "[10]", "[0,20]") + "}", bytes_of_values(bits)));
  auto const values = llama3::to_f32(opened.at("w"));
  REQUIRE(values.size() == bits.size());
  std::vector<float> const right{1.0f, -2.5f, 3.140625f, 65280.0f, 65536.0f, 0x1p-133f};
  for (std::size_t i = 0; i < right.size(); ++i) { CHECK(values[i] == right[i]); }
  CHECK(values[6] == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(values[7]));
  CHECK((values[8] == 0.0f && std::signbit(values[8])));
  CHECK(values[9] == -std::numeric_limits<float>::infinity());
}

TEST_CASE("to_f32: each of the 65536 f16 values is widened exactly", "[llama3]")
{
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) { bits[i] = static_cast<std::uint16_t>(i); }
  one_file const file;
  // An odd header length, so that no element is aligned.
  auto const header = "{" + entry("w", "F16", "[256,256]", "[0,131072]") + "}";
  auto const opened =
    file.open(file_of(header + std::string(1 - header.size() % 2, ' '), bytes_of_values(bits)));
  auto const values = llama3::to_f32(opened.at("w"));
  REQUIRE(values.size() == bits.size());
  int wrong = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    int const exponent = static_cast<int>((i >> 10) & 31u);
    int const mantissa = static_cast<int>(i & 1023u);
    bool right         = std::signbit(values[i]) == (i >= 32768);
    float const size   = std::fabs(values[i]);
    if (exponent == 31) {
      right = right && (mantissa == 0 ? std::isinf(size) : std::isnan(size));
    } else {
      right = right && size == (exponent == 0
                                  ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25));
    }
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("safetensors: a file cut anywhere is refused", "[llama3]")
{
  one_file const file;
  auto const whole = file_of(
    "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "BF16", "[2,2]", "[8,16]") + "}",
    std::string(16, '\1'));
  REQUIRE(file.refusal(whole).empty());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(file.refusal(whole.substr(0, size)).empty());
  }
}

TEST_CASE("safetensors: a damaged file is refused or stays inside itself", "[llama3]")
{
  one_file const file;
  auto const whole = file_of(R"({"__metadata__":{"k":"v"},)" + entry("a", "F32", "[2]", "[0,8]") +
                               "," + entry("b", "BF16", "[2,2]", "[8,16]") + "}",
                             std::string(16, '\1'));
  std::mt19937 random{20};
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    auto bytes       = whole;
    int const damage = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < damage; ++i) {
      // Digits and brackets reach deeper into the reader than arbitrary bytes.
      std::string const likely{"0123456789-.,:[]{}\" "};
      bytes[random() % bytes.size()] =
        round % 2 == 0 ? likely[random() % likely.size()] : static_cast<char>(random() % 256);
    }
    try {
      auto const opened = file.open(bytes);
      float sum         = 0.0f;
      for (auto const& item : opened.tensors()) {
        for (std::size_t i = 0; i < item.second.bytes; ++i) {
          sum += static_cast<float>(item.second.data[i]);  // the sanitizer sees a read outside
        }
      }
      CHECK(sum <= 16.0f * 255.0f);
      ++accepted;
    } catch (file_error const&) {}
  }
  CHECK(accepted > 0);
  CHECK(accepted < 3000);
}

TEST_CASE("safetensors: a header of a million entries is refused before it takes memory",
          "[llama3]")
{
  one_file const file;
  std::string ones{"[1"};
  for (int i = 0; i < 1'000'000; ++i) { ones += ",1"; }
  auto const shapes  = file_of("{" + entry("w", "F32", ones + "]", "[0,8]") + "}", one_minus_two);
  auto const offsets = file_of("{" + entry("w", "F32", "[2]", ones + "]") + "}", one_minus_two);
  std::string names{"{"};
  for (int i = 0; i < 100'001; ++i) {
    names += (i == 0 ? "" : ",") + entry("w" + std::to_string(i), "U8", "[0]", "[0,0]");
  }
  auto const tensors = file_of(names + "}", "");
  auto const before  = peak_kilobytes();
  CHECK_THAT(file.refusal(shapes), contains("'w'") && contains("dimensions"));
  CHECK_THAT(file.refusal(offsets), contains("'w'"));
  CHECK(peak_kilobytes() - before < 20'000);  // the file's own pages are 2 MB each
  CHECK_THAT(file.refusal(tensors), contains("tensors"));
}

TEST_CASE("safetensors: a path that is no file is refused", "[llama3]")
{
  temporary_folder const folder;
  CHECK_THROWS_AS(safetensors_file{folder.path()}, file_error);
  CHECK_THROWS_WITH(safetensors_file{folder.path() / "absent"}, contains("absent"));
}

TEST_CASE("safetensors: an open file can be moved, its views stay", "[llama3]")
{
  one_file const file;
  auto opened      = file.open(file_of("{" + good_entry + "}", one_minus_two));
  auto const* view = &opened.at("w");
  auto const moved = std::move(opened);
  CHECK(&moved.at("w") == view);
  CHECK(llama3::to_f32(*view) == std::vector<float>{1.0f, -2.0f});
}
