// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Launches a kernel on any stream, with or without programmatic dependent launch.
//! Read before this: core/device_memory.hpp.  Read next: policy/thresholds.hpp.
#include <diffkv/core/device_memory.hpp>  // device_guard

#include <cuda_runtime.h>  // cudaLaunchKernelEx

#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <initializer_list>
#include <string>
#include <type_traits>

namespace diffkv::detail {

//! Extents of a launch.
struct launch_shape {
  unsigned grid            = 1;  //!< CTAs; 0 launches nothing
  unsigned threads         = 1;
  std::size_t shared_bytes = 0;
  //! The kernel may start before the one in front of it in the stream has ended. It must call
  //! `wait_for_previous` before it reads what that one wrote or overwrites what it reads.
  bool overlaps_previous = false;
};

//! Lets the next kernel start although this one has not waited for the one in front yet. Whoever does
//! this promises less: the next one may rely on what this kernel may rely on before it waits, no more.
__device__ inline void let_next_start() noexcept
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

//! Waits until the kernel in front has ended and all it wrote can be seen; then lets the next one
//! start. Only in this order: whoever has started may then rely on everything before the one in front.
__device__ inline void wait_for_previous() noexcept
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900  // before that, kernels do not overlap
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

//! Waits as `wait_for_previous`, and lets nobody start before this kernel has ended: what it writes may
//! then be read, past the first-level cache, before waiting.
__device__ inline void wait_for_previous_alone() noexcept
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

//! Reads what a kernel before the one in front has written, past the first-level cache: for reads that do
//! not wait for the kernel in front.
template <class Value>
[[nodiscard]] __device__ Value load_uncached(Value const& from) noexcept
{
  static_assert(std::is_trivially_copyable_v<Value> && alignof(Value) % 4 == 0);
  using word = std::conditional_t<alignof(Value) % 16 == 0, uint4, std::uint32_t>;
  word words[sizeof(Value) / sizeof(word)];
#pragma unroll
  for (unsigned i = 0; i < sizeof(Value) / sizeof(word); ++i) {
    words[i] = __ldcg(reinterpret_cast<word const*>(&from) + i);
  }
  Value value;
  memcpy(&value, words, sizeof value);
  return value;
}

//! A stream, and the function that launches into it: a failure names its caller, not `launch`.
struct launch_site {
  // Not explicit: where a stream is given, the default argument is evaluated in the calling
  // function.
  launch_site(cudaStream_t to, char const* caller = __builtin_FUNCTION()) noexcept
    : stream{to}, operation{caller}
  {}
  cudaStream_t stream;
  char const* operation;
};

//! In words: what was launched and, where the program holds no code for the GPU, what it lacks.
[[nodiscard]] inline std::string describe_launch(char const* operation, launch_shape const& shape,
                                                 cudaError_t status)
{
  std::string text = std::string{operation} + ", launch of " + std::to_string(shape.grid) +
                     " CTAs of " + std::to_string(shape.threads) + " threads with " +
                     std::to_string(shape.shared_bytes) + " bytes of dynamic shared memory";
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    int device = 0, major = 0, minor = 0;
    static_cast<void>(cudaGetDevice(&device));
    static_cast<void>(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    static_cast<void>(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    text += ": the program must be compiled for this GPU, too, whose compute capability is " +
            std::to_string(major) + "." + std::to_string(minor);
  }
  return text;
}

//! Whether all code that this compilation makes waits in `wait_for_previous`.
[[nodiscard]] constexpr bool all_code_waits() noexcept
{
#if defined(__CUDA_ARCH_LIST__)
  for (int const architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture < 900) { return false; }
  }
  return true;
#else
  return false;
#endif
}

//! Whether a kernel's code for the current device waits: code that was made for GPUs before 9.0 does not,
//! but may be compiled anew for a later one, whose kernels overlap.
template <class Kernel>
[[nodiscard]] bool waits_for_previous(Kernel* kernel) noexcept
{
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // there is no code: the launch says so
    return false;
  }
  return attributes.ptxVersion >= 90;
}

//! Lets a kernel have the dynamic shared memory that its launch will ask for.
//! @throws cuda_error as `launch`
template <class Kernel>
void allow_shared_memory(Kernel* kernel, launch_shape const& shape, launch_site site)
{
  cudaError_t const status = cudaFuncSetAttribute(
    kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    check_cuda(status, describe_launch(site.operation, shape, status).c_str());
  }
}

//! @tparam AllCodeWaits  of the compilation; part of the name, so that compilations for other GPUs may be
//!                       linked together
//! @throws cuda_error with the status of this launch; its text names the caller. An older error of
//!         somebody else's is not looked at
//! @stream ordered in the stream of `site`, does not wait, may be captured in a graph
template <bool AllCodeWaits = all_code_waits(), class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), launch_shape const& shape, launch_site site,
            Arguments&&... arguments)
{
  if (shape.grid == 0) { return; }
  device_guard const guard{site.stream};
  bool const overlaps = shape.overlaps_previous && (AllCodeWaits || waits_for_previous(kernel));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim           = dim3{shape.grid};
  config.blockDim          = dim3{shape.threads};
  config.dynamicSmemBytes  = shape.shared_bytes;
  config.stream            = site.stream;
  config.attrs             = &attribute;
  config.numAttrs          = overlaps ? 1 : 0;
  cudaError_t const status = cudaLaunchKernelEx(
    &config, kernel, static_cast<Parameters>(static_cast<Arguments&&>(arguments))...);
  if (status != cudaSuccess) {
    check_cuda(status, describe_launch(site.operation, shape, status).c_str());
  }
}

}  // namespace diffkv::detail
