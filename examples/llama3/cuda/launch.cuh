// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How the kernels of the loop are launched, and how a matrix is shared out among their threads.
//! Read before this: llama3/cuda/kernels.hpp.  Read next: llama3/cuda/rows.cu.
#include <diffkv/core/cuda_error.hpp>  // DIFFKV_CUDA_TRY

#include <cuda_runtime.h>  // cudaLaunchKernelEx

#include <cstdint>    // int64_t, uintptr_t
#include <stdexcept>  // invalid_argument

namespace llama3 {
//! Waits until the kernel in front has ended and all it wrote can be seen, then lets the next one
//! start: each kernel begins with this. Before compute capability 9.0 kernels do not overlap.
__device__ inline void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

//! Whether the code of a kernel that the current GPU would run waits by itself: code for an older GPU runs on
//! a newer one, too, and does not.
template <class... Parameters>
[[nodiscard]] bool waits_for_previous([[maybe_unused]] void (*kernel)(Parameters...))
{
#if defined(__CUDA_ARCH_LIST__)
  constexpr int compiled_for[] = {__CUDA_ARCH_LIST__};  // ascending
  if (compiled_for[0] >= 900) { return true; }
#endif
  cudaFuncAttributes attributes{};
  DIFFKV_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90;
}

//! Launches a kernel that may start while the one in front of it in the stream is ending.
//! @param num_ctas  0 launches nothing
//! @throws diffkv::cuda_error if the launch fails
template <class... Parameters>
void launch(void (*kernel)(Parameters...), std::int64_t num_ctas, int threads, cudaStream_t stream,
            Parameters... parameters)
{
  if (num_ctas == 0) { return; }
  if (num_ctas < 0 || num_ctas > 0x7FFF'FFFF) {
    throw std::invalid_argument("kernel: counts must be 0 or more, and fit a grid");
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim  = dim3{static_cast<unsigned>(num_ctas)};
  config.blockDim = dim3{static_cast<unsigned>(threads)};
  config.stream   = stream;
  config.attrs    = &overlap;
  config.numAttrs = waits_for_previous(kernel) ? 1 : 0;
  DIFFKV_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, parameters...));
}

//! `Size` neighbours, read and written at once.
template <class T, int Size>
struct alignas(Size * sizeof(T) < 16 ? Size * sizeof(T) : 16) pack {
  T at[Size];
};

template <int Size, class T>
__device__ pack<T, Size> load_pack(T const* from)
{
  return *reinterpret_cast<pack<T, Size> const*>(from);
}

template <int Size, class T>
__device__ void store_pack(pack<T, Size> const& values, T* to)
{
  *reinterpret_cast<pack<T, Size>*>(to) = values;
}

//! Whether packs of `Size` may be read from all the matrices: from rows of `width` elements.
template <int Size, class... Pointers>
[[nodiscard]] bool fits_packs(int width, Pointers const*... matrices)
{
  return width % Size == 0 &&
         ((reinterpret_cast<std::uintptr_t>(matrices) % alignof(pack<Pointers, Size>) == 0) && ...);
}

//! Shares the rows of a matrix out: each thread has one piece of one row, a CTA stays in one row.
struct row_pieces {
  static constexpr int threads = 256;

  int pieces_per_row, ctas_per_row;

  explicit row_pieces(int pieces)
    : pieces_per_row{pieces}, ctas_per_row{pieces / threads + (pieces % threads != 0 ? 1 : 0)}
  {}
  [[nodiscard]] std::int64_t num_ctas(int num_rows) const
  {
    return std::int64_t{num_rows} * ctas_per_row;
  }
  [[nodiscard]] __device__ std::int64_t row() const
  {
    return blockIdx.x / static_cast<unsigned>(ctas_per_row);
  }
  //! Number of the thread's piece; may lie past the end of the row.
  [[nodiscard]] __device__ int piece() const
  {
    return static_cast<int>(blockIdx.x % static_cast<unsigned>(ctas_per_row)) * threads +
           static_cast<int>(threadIdx.x);
  }
};
}  // namespace llama3
