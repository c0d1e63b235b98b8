# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# Makes the imported target `diffkv::cuda`: the headers of the CUDA Toolkit (libcu++ and CUB with
# them) as system headers, and its runtime where there is one. Read by the project itself and, once
# installed, by diffkv-config.cmake, so that both find the toolkit in the same way:
#   1. DIFFKV_CUDA_INCLUDE_DIRS, a list of folders, if set: headers alone, enough for host code;
#   2. the CUDA Toolkit, version 13 or newer.
# Sets diffkv_cuda_problem to a sentence that says what to do, or to nothing.
set(DIFFKV_CUDA_INCLUDE_DIRS "" CACHE STRING
    "Folders with the headers of the CUDA Toolkit, where no toolkit is installed")
mark_as_advanced(DIFFKV_CUDA_INCLUDE_DIRS)
set(diffkv_cuda_problem "")

if(NOT TARGET diffkv::cuda)
  set(_diffkv_cuda_dirs ${DIFFKV_CUDA_INCLUDE_DIRS})
  set(_diffkv_cuda_runtime "")
  if(NOT _diffkv_cuda_dirs)
    find_package(CUDAToolkit 13.0 QUIET)
    if(CUDAToolkit_FOUND)
      set(_diffkv_cuda_dirs ${CUDAToolkit_INCLUDE_DIRS})
      if(TARGET CUDA::cudart)
        set(_diffkv_cuda_runtime CUDA::cudart)
      endif()
    endif()
  endif()

  # CUDA 13 keeps libcu++, CUB and Thrust one folder deeper, where nvcc looks and a host compiler
  # does not. A consumer that has brought its own copies of them (CCCL::CCCL) keeps to those.
  set(_diffkv_cuda_found "")
  foreach(_diffkv_dir IN LISTS _diffkv_cuda_dirs)
    if(EXISTS "${_diffkv_dir}/cccl/cuda/std/span" AND NOT TARGET CCCL::CCCL)
      list(PREPEND _diffkv_cuda_found "${_diffkv_dir}/cccl")
    endif()
    list(APPEND _diffkv_cuda_found "${_diffkv_dir}")
  endforeach()
  list(REMOVE_DUPLICATES _diffkv_cuda_found)
  find_file(_diffkv_span cuda/std/span PATHS ${_diffkv_cuda_found} NO_DEFAULT_PATH NO_CACHE)
  find_file(_diffkv_fp16 cuda_fp16.h PATHS ${_diffkv_cuda_found} NO_DEFAULT_PATH NO_CACHE)

  if(NOT _diffkv_fp16 OR NOT (_diffkv_span OR TARGET CCCL::CCCL))
    set(diffkv_cuda_problem
        "diffkv needs the headers of the CUDA Toolkit 13 or newer (cuda_fp16.h, cuda/std/span): \
install the toolkit (and name it by CUDAToolkit_ROOT if it is in an unusual place), or set \
DIFFKV_CUDA_INCLUDE_DIRS to folders that hold these headers.")
  else()
    if(DEFINED CMAKE_FIND_PACKAGE_NAME)
      add_library(diffkv::cuda INTERFACE IMPORTED)
    else()  # a subproject: the target is linked from folders above this one
      add_library(diffkv::cuda INTERFACE IMPORTED GLOBAL)
    endif()
    set_target_properties(diffkv::cuda PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_diffkv_cuda_found}")
    if(TARGET CCCL::CCCL)
      set_property(TARGET diffkv::cuda APPEND PROPERTY INTERFACE_LINK_LIBRARIES CCCL::CCCL)
    endif()
    if(_diffkv_cuda_runtime)
      set_property(TARGET diffkv::cuda APPEND PROPERTY
                   INTERFACE_LINK_LIBRARIES ${_diffkv_cuda_runtime})
    endif()
  endif()
  unset(_diffkv_span)
  unset(_diffkv_fp16)
endif()
