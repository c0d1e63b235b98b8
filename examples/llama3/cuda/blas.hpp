// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Products of weights and hidden vectors, by cuBLAS.
//! Read before this: llama3/cuda/gpu_memory.hpp.  Read next: llama3/cuda/device_weights.hpp.
#include "llama3/cuda/gpu_memory.hpp"

#include <cuda_fp16.h>

#include <cstdint>

struct cublasContext;

namespace llama3 {

//! A weight matrix [rows, columns] in f16, row-major, in device memory.
struct device_matrix {
  device_array<__half> data{};
  std::int64_t rows    = 0;
  std::int64_t columns = 0;

  [[nodiscard]] bool empty() const noexcept { return rows == 0; }
};

//! cuBLAS on one stream, with its scratch, so that calls can be captured in a graph.
class blas {
 public:
  //! @throws std::runtime_error if cuBLAS cannot be had
  explicit blas(cudaStream_t stream);
  blas(blas const&)            = delete;
  blas& operator=(blas const&) = delete;
  ~blas();

  //! y[t, r] = sum over c of w[r, c] * x[t, c], summed in f32.
  //! @param[in]  x  [num_tokens, w.columns]
  //! @param[out] y  [num_tokens, w.rows]
  //! @stream     ordered in the stream, does not wait, may be captured in a graph
  //! @throws     std::runtime_error naming what cuBLAS answered
  void multiply(device_matrix const& w, __half const* x, int num_tokens, __half* y);
  void multiply(device_matrix const& w, __half const* x, int num_tokens, float* y);
  //! The same, added to y.
  void multiply_add(device_matrix const& w, __half const* x, int num_tokens, float* y);

  //! While it is so, nothing is multiplied and y stays as it is: to measure what the rest takes.
  void leave_out(bool products) noexcept { left_out_ = products; }

 private:
  void product(device_matrix const& w, __half const* x, int num_tokens, void* y, bool is_half,
               float keep);

  device_array<std::byte> scratch_;
  cublasContext* handle_ = nullptr;
  bool left_out_         = false;
};

}  // namespace llama3
