# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# What tests, benches and examples share. Nothing here reaches a consumer.

# The library is checked against its own warnings as an ordinary include path, not a system one.
add_library(diffkv_warnings INTERFACE)
target_compile_options(diffkv_warnings INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wconversion>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(DIFFKV_WERROR)
  target_compile_options(diffkv_warnings INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

# Tests and benches of the example need its packages; each is looked for once, here.
# CUDA as a language is for our own .cu files alone, so it is enabled only where there are some.
file(GLOB_RECURSE diffkv_cuda_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/tests/*.cu ${PROJECT_SOURCE_DIR}/bench/*.cu
  ${PROJECT_SOURCE_DIR}/examples/*.cu)
set(DIFFKV_CUDA_ENABLED FALSE)
if(diffkv_cuda_sources AND NOT DIFFKV_BUILD_CUDA STREQUAL "OFF")
  if(DIFFKV_BUILD_CUDA STREQUAL "AUTO")
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(DIFFKV_BUILD_CUDA STREQUAL "ON" OR CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # With what Hopper alone has, warpgroup products; and what later GPUs can compile anew.
      set(CMAKE_CUDA_ARCHITECTURES 90a-real 90-virtual)
    endif()
    enable_language(CUDA)
    set(DIFFKV_CUDA_ENABLED TRUE)
  else()
    message(STATUS "diffkv: no CUDA compiler found; .cu files are left out (DIFFKV_BUILD_CUDA)")
  endif()
endif()
