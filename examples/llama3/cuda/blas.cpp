// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/blas.hpp"

#include <cublas_v2.h>

#include <stdexcept>  // runtime_error
#include <string>

namespace llama3 {
namespace {

constexpr std::size_t scratch_bytes = std::size_t{32} << 20;  // what cuBLAS advises for Hopper

void check(cublasStatus_t status, char const* call)
{
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string{call} + ": " + cublasGetStatusString(status));
  }
}

}  // namespace

blas::blas(cudaStream_t stream) : scratch_{scratch_bytes, {stream}}
{
  check(cublasCreate(&handle_), "cublasCreate");
  check(cublasSetStream(handle_, stream), "cublasSetStream");
  check(cublasSetWorkspace(handle_, scratch_.data(), scratch_.size()), "cublasSetWorkspace");
}

blas::~blas() { static_cast<void>(cublasDestroy(handle_)); }

// Seen by columns, w is [columns, rows], x [columns, tokens] and y [rows, tokens].
void blas::product(device_matrix const& w, __half const* x, int num_tokens, void* y, bool is_half,
                   float keep)
{
  if (num_tokens == 0 || left_out_) { return; }
  float const one    = 1.0f;
  auto const rows    = static_cast<int>(w.rows);
  auto const columns = static_cast<int>(w.columns);
  check(
    cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, rows, num_tokens, columns, &one, w.data.data(),
                 CUDA_R_16F, columns, x, CUDA_R_16F, columns, &keep, y,
                 is_half ? CUDA_R_16F : CUDA_R_32F, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
    "cublasGemmEx");
}

void blas::multiply(device_matrix const& w, __half const* x, int num_tokens, __half* y)
{
  product(w, x, num_tokens, y, true, 0.0f);
}

void blas::multiply(device_matrix const& w, __half const* x, int num_tokens, float* y)
{
  product(w, x, num_tokens, y, false, 0.0f);
}

void blas::multiply_add(device_matrix const& w, __half const* x, int num_tokens, float* y)
{
  product(w, x, num_tokens, y, false, 1.0f);
}

}  // namespace llama3
