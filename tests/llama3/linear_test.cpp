// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/linear.hpp"

#include "support/catch.hpp"
#include "tiny_model.hpp"  // narrowed

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {
using namespace llama3;
using llama3::test::narrowed;

//! A tensor of the given type with multiples of 1/256, and its values.
struct matrix_data {
  matrix_data(std::int64_t rows, std::int64_t columns, dtype type, unsigned seed)
  {
    std::mt19937 random{seed};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      values.push_back(static_cast<float>(static_cast<int>(random() % 127u) - 63) / 256.0f);
      words.push_back(narrowed(values.back(), type));
    }
    view = view_of("w", {rows, columns}, values);
    if (type != dtype::f32) {
      view.type  = type;
      view.data  = reinterpret_cast<std::byte const*>(words.data());
      view.bytes = words.size() * sizeof(std::uint16_t);
    }
  }
  std::vector<float> values;
  std::vector<std::uint16_t> words;
  tensor_view view;
};
}  // namespace

TEST_CASE("linear: every f16 and bf16 value becomes its f32", "[llama3]")
{
  bool f16_right = true, bf16_right = true;
  for (std::uint32_t bits = 0; bits <= 0xFFFFu; ++bits) {
    double const sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    auto const is     = [&](float got, int exponent, int top, int bias, int mantissa, int digits) {
      if (exponent == top && mantissa != 0) { return std::isnan(got); }
      if (exponent == top) { return std::isinf(got) && std::signbit(got) == (sign < 0.0); }
      double const expected =
        exponent == 0 ? std::ldexp(mantissa, 1 - bias - digits)
                          : std::ldexp(mantissa + std::ldexp(1.0, digits), exponent - bias - digits);
      return double{got} == sign * expected && std::signbit(got) == (sign < 0.0);
    };
    auto const word = static_cast<std::uint16_t>(bits);
    int const b     = static_cast<int>(bits);
    f16_right       = f16_right && is(f16_to_f32(word), (b >> 10) & 31, 31, 15, b & 1023, 10);
    bf16_right      = bf16_right && is(bf16_to_f32(word), (b >> 7) & 255, 255, 127, b & 127, 7);
  }
  CHECK(f16_right);
  CHECK(bf16_right);
}

TEST_CASE("linear: products agree with f64 sums for all types, sizes and token counts", "[llama3]")
{
  struct {
    std::int64_t rows, columns;
  } const sizes[] = {{1, 1}, {3, 5}, {31, 32}, {193, 33}, {400, 95}};
  thread_pool threads{2};
  for (auto const type : {dtype::f32, dtype::f16, dtype::bf16}) {
    for (auto const size : sizes) {
      for (std::int64_t const num_tokens : {1, 2, 3, 65}) {
        CAPTURE(name_of(type), size.rows, size.columns, num_tokens);
        matrix_data const w{size.rows, size.columns, type, 21};
        matrix_data const x{num_tokens, size.columns, dtype::f32, 22};
        weight_matrix matrix{size.columns};
        matrix.append_rows(w.view);
        CHECK(matrix.type() == type);
        std::vector<float> y(static_cast<std::size_t>(num_tokens * size.rows), -1.0f);
        matrix.multiply(x.values.data(), num_tokens, y.data(), threads);
        double largest = 0.0;
        for (std::int64_t t = 0; t < num_tokens; ++t) {
          for (std::int64_t r = 0; r < size.rows; ++r) {
            double sum = 0.0;
            for (std::int64_t c = 0; c < size.columns; ++c) {
              sum += double{w.values[static_cast<std::size_t>(r * size.columns + c)]} *
                     x.values[static_cast<std::size_t>(t * size.columns + c)];
            }
            largest =
              std::max(largest, std::abs(sum - y[static_cast<std::size_t>(t * size.rows + r)]));
          }
        }
        CHECK(largest < 1e-6);
      }
    }
  }
}

TEST_CASE("linear: parts of different types are kept as f32", "[llama3]")
{
  for (auto const first : {dtype::f32, dtype::f16, dtype::bf16}) {
    for (auto const second : {dtype::f32, dtype::f16, dtype::bf16}) {
      CAPTURE(name_of(first), name_of(second));
      matrix_data const a{2, 7, first, 31}, b{3, 7, second, 32};
      weight_matrix matrix{7};
      matrix.append_rows(a.view);
      matrix.append_rows(b.view);
      CHECK(matrix.rows() == 5);
      CHECK(matrix.type() == (first == second ? first : dtype::f32));
      std::vector<float> expected = a.values;
      expected.insert(expected.end(), b.values.begin(), b.values.end());
      std::vector<float> got(5 * 7);
      matrix.read_rows(0, 5, got.data());
      CHECK(got == expected);
      got.assign(7, 0.0f);
      matrix.read_rows(3, 1, got.data());
      CHECK(got == std::vector<float>(expected.begin() + 21, expected.begin() + 28));
    }
  }
}

TEST_CASE("linear: what is no weight matrix is refused by name", "[llama3]")
{
  std::vector<float> const values(12, 0.0f);
  weight_matrix matrix{4};
  CHECK_THROWS_AS(matrix.append_rows(view_of("w", {4, 3}, values)), file_error);
  CHECK_THROWS_AS(matrix.append_rows(view_of("w", {12}, values)), file_error);
  CHECK_THROWS_AS(matrix.append_rows(view_of("w", {3, 2, 2}, values)), file_error);
  auto integers = view_of("w", {3, 4}, values);
  integers.type = dtype::i32;
  CHECK_THROWS_AS(matrix.append_rows(integers), file_error);
  CHECK(matrix.empty());
}
