// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/linear.hpp"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own AVX-512 intrinsics where Eigen uses them.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <Eigen/Core>  // here only: its code depends on the instruction set that a file is built for

#include <algorithm>  // copy_n, min
#include <cstring>    // memcpy
#include <string>
#include <utility>  // move

namespace llama3 {
namespace {

template <dtype Type>
float widen_one(std::uint16_t bits) noexcept
{
  return Type == dtype::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

template <dtype Type>
void widen(std::uint16_t const* in, std::int64_t count, float* out) noexcept
{
  for (std::int64_t i = 0; i < count; ++i) { out[i] = widen_one<Type>(in[i]); }
}

//! Independent partial sums: the compiler may not reorder one f32 sum into vector lanes by itself.
constexpr int num_lanes = 32;

float sum_of_lanes(float* lanes) noexcept
{
  for (int width = num_lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) { lanes[i] += lanes[i + width]; }
  }
  return lanes[0];
}

template <class Weight, class Widen>
float dot(Weight const* w, float const* x, std::int64_t size, Widen value_of) noexcept
{
  float lanes[num_lanes] = {};
  std::int64_t c         = 0;
  for (; c + num_lanes <= size; c += num_lanes) {
    for (int i = 0; i < num_lanes; ++i) { lanes[i] += value_of(w[c + i]) * x[c + i]; }
  }
  for (int i = 0; c + i < size; ++i) { lanes[i] += value_of(w[c + i]) * x[c + i]; }
  return sum_of_lanes(lanes);
}

using matrix        = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic>;
using row_matrix    = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using column_stride = Eigen::OuterStride<>;
using const_map     = Eigen::Map<row_matrix const, 0, column_stride>;

const_map map(matrix_view view)
{
  return {view.data, view.rows, view.columns, column_stride{view.stride}};
}

}  // namespace

void weight_matrix::append_rows(tensor_view const& tensor)
{
  bool const is_weight =
    tensor.type == dtype::f32 || tensor.type == dtype::f16 || tensor.type == dtype::bf16;
  if (!is_weight || tensor.shape.size() != 2 || tensor.shape[1] != columns_) {
    throw file_error("tensor " + tensor.name + " " + to_string(tensor.shape) + " of type " +
                     std::string{name_of(tensor.type)} + " is not a matrix of " +
                     std::to_string(columns_) + " columns of F32, F16 or BF16");
  }
  std::size_t const count = tensor.num_elements();
  if (count == 0) { return; }
  if (rows_ == 0) {
    type_ = tensor.type;
  } else if (tensor.type != type_ && type_ != dtype::f32) {
    std::vector<float> wide(narrow_.size());
    read_rows(0, rows_, wide.data());
    wide_   = std::move(wide);
    narrow_ = {};
    type_   = dtype::f32;
  }
  if (type_ == dtype::f32) {
    auto const old = wide_.size();
    wide_.resize(old + count);
    to_f32(tensor, wide_.data() + old);
  } else {
    auto const old = narrow_.size();
    narrow_.resize(old + count);
    std::memcpy(narrow_.data() + old, tensor.data, tensor.bytes);
  }
  rows_ += tensor.shape[0];
}

void weight_matrix::read_rows(std::int64_t first, std::int64_t count, float* out) const
{
  std::int64_t const begin = first * columns_;
  std::int64_t const size  = count * columns_;
  switch (type_) {
    case dtype::f32:
      std::copy_n(wide_.data() + begin, size, out);
      break;
    case dtype::f16:
      widen<dtype::f16>(narrow_.data() + begin, size, out);
      break;
    case dtype::bf16:
      widen<dtype::bf16>(narrow_.data() + begin, size, out);
      break;
    default:
      break;  // append_rows lets nothing else in
  }
}

void weight_matrix::multiply_one(float const* x, float* y, thread_pool& threads) const
{
  threads.parallel_for(rows_, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t const at = r * columns_;
      switch (type_) {
        case dtype::f32:
          y[r] = dot(wide_.data() + at, x, columns_, [](float w) { return w; });
          break;
        case dtype::f16:
          y[r] = dot(narrow_.data() + at, x, columns_, f16_to_f32);
          break;
        case dtype::bf16:
          y[r] = dot(narrow_.data() + at, x, columns_, bf16_to_f32);
          break;
        default:
          break;
      }
    }
  });
}

void weight_matrix::multiply(float const* x, std::int64_t num_tokens, float* y,
                             thread_pool& threads) const
{
  if (num_tokens == 1) {
    multiply_one(x, y, threads);
    return;
  }
  // x and y hold one token after the other: seen by columns they are [columns, num_tokens] and
  // [rows, num_tokens]. A block of converted rows stays in the second-level cache.
  constexpr std::int64_t block_rows = 192;
  Eigen::Map<matrix const> const hidden{x, columns_, num_tokens};
  threads.parallel_for((rows_ + block_rows - 1) / block_rows, [&](std::int64_t block) {
    std::int64_t const first = block * block_rows;
    std::int64_t const count = std::min(block_rows, rows_ - first);
    Eigen::Map<matrix, 0, column_stride> out{y + first, count, num_tokens, column_stride{rows_}};
    if (type_ == dtype::f32) {
      Eigen::Map<row_matrix const> const rows{wide_.data() + first * columns_, count, columns_};
      out.noalias() = rows * hidden;
    } else {
      thread_local std::vector<float> converted;
      converted.resize(static_cast<std::size_t>(count * columns_));
      read_rows(first, count, converted.data());
      Eigen::Map<row_matrix const> const rows{converted.data(), count, columns_};
      out.noalias() = rows * hidden;
    }
  });
}

void multiply_transposed(matrix_view a, matrix_view b, float* out, std::int64_t out_stride)
{
  Eigen::Map<row_matrix, 0, column_stride> result{out, a.rows, b.rows, column_stride{out_stride}};
  result.noalias() = map(a) * map(b).transpose();
}

void multiply(matrix_view a, matrix_view b, float* out, std::int64_t out_stride)
{
  Eigen::Map<row_matrix, 0, column_stride> result{out, a.rows, b.columns,
                                                  column_stride{out_stride}};
  result.noalias() = map(a) * map(b);
}

}  // namespace llama3
