// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Failures of CUDA calls as exceptions.
//! Read before this: core/error.hpp.  Read next: core/device_memory.hpp.
#include <cuda_runtime_api.h>  // cudaError_t

#include <stdexcept>  // runtime_error
#include <string>

namespace diffkv {

//! A CUDA call failed; `code` is its status. The error is not left pending for a later call.
class cuda_error : public std::runtime_error {
 public:
  cuda_error(cudaError_t code, char const* call)
    : std::runtime_error{"diffkv: " + std::string{call} + ": " + cudaGetErrorName(code) + ", " +
                         cudaGetErrorString(code)},
      code_{code}
  {}
  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

namespace detail {
inline void check_cuda(cudaError_t code, char const* call)
{
  if (code == cudaSuccess) { return; }
  static_cast<void>(cudaGetLastError());  // what failed here must not fail the next, innocent call
  throw cuda_error{code, call};
}
}  // namespace detail

}  // namespace diffkv

//! Throws `cuda_error` unless the call succeeds; its text names the call.
#define DIFFKV_CUDA_TRY(call) ::diffkv::detail::check_cuda((call), #call)
