// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Weight matrices as checkpoints keep them (f32, f16, bf16) and their product with hidden vectors.
//! Read before this: llama3/safetensors.hpp, llama3/thread_pool.hpp.  Read next: llama3/weights.hpp.
#include "llama3/safetensors.hpp"  // dtype, tensor_view
#include "llama3/thread_pool.hpp"

#include <cstdint>  // int64_t, uint16_t
#include <vector>

namespace llama3 {

//! A matrix [rows, columns], row-major, in the type in which it was published.
class weight_matrix {
 public:
  weight_matrix() = default;
  explicit weight_matrix(std::int64_t columns) : columns_(columns) {}

  //! Adds the rows of `tensor`, [any, columns], below those that are there. Parts of different types
  //! are kept as f32.
  //! @throws file_error naming the tensor if it is not [any, columns] of f32, f16 or bf16
  void append_rows(tensor_view const& tensor);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  [[nodiscard]] dtype type() const noexcept { return type_; }
  [[nodiscard]] bool empty() const noexcept { return rows_ == 0; }

  //! Rows `first` to `first + count` as f32.  @param[out] out  [count, columns]
  void read_rows(std::int64_t first, std::int64_t count, float* out) const;

  //! y[t, r] = sum over c of w[r, c] * x[t, c], f32. One token: every weight is read once, as it is
  //! stored. Many: blocks of rows are converted once and multiplied by all tokens (Eigen).
  //! The result does not depend on the number of threads.
  //! @param[in]  x  [num_tokens, columns]
  //! @param[out] y  [num_tokens, rows]
  void multiply(float const* x, std::int64_t num_tokens, float* y, thread_pool& threads) const;

 private:
  void multiply_one(float const* x, float* y, thread_pool& threads) const;

  std::int64_t rows_    = 0;
  std::int64_t columns_ = 0;
  dtype type_           = dtype::f32;
  std::vector<float> wide_;            // [rows, columns] if f32
  std::vector<std::uint16_t> narrow_;  // [rows, columns] if f16 or bf16
};

//! A row-major f32 matrix inside a larger one: row r begins at data + r * stride.
struct matrix_view {
  float const* data;
  std::int64_t rows, columns, stride;
};

//! out = a * transpose(b): [a.rows, b.rows], row-major with `out_stride`; in the calling thread.
//! @pre a.columns == b.columns
void multiply_transposed(matrix_view a, matrix_view b, float* out, std::int64_t out_stride);

//! out = a * b: [a.rows, b.columns], row-major with `out_stride`; in the calling thread.
//! @pre a.columns == b.rows
void multiply(matrix_view a, matrix_view b, float* out, std::int64_t out_stride);

}  // namespace llama3
