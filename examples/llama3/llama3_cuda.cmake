# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# Adds the loop on the GPU to the target `llama3`: its sources, and one file of device code for each of
# LLAMA3_CUDA_CACHES.
function(llama3_add_device_code)
  set(distinct_caches ${LLAMA3_CUDA_CACHES})
  list(REMOVE_DUPLICATES distinct_caches)
  if(NOT distinct_caches STREQUAL LLAMA3_CUDA_CACHES)
    message(FATAL_ERROR "LLAMA3_CUDA_CACHES: a cache is listed twice: ${LLAMA3_CUDA_CACHES}")
  endif()
  file(GLOB sources CONFIGURE_DEPENDS cuda/*.cpp cuda/*.cu)
  set(declarations "")
  set(calls "")
  set(number 0)
  foreach(cache IN LISTS LLAMA3_CUDA_CACHES)
    if(NOT cache MATCHES
       "^([0-9]+)x([0-9]+)/(k[0-9]+v[0-9]+)(\\+(k[0-9]+v[0-9]+))?/([0124])/(none|centred|rotated|centred\\+rotated)(/fixed)?$")
      message(FATAL_ERROR "LLAMA3_CUDA_CACHES: '${cache}' is not "
        "HEAD_DIMxGROUP/HIGH[+LOW]/SCORE_EVERY/CONDITIONING[/fixed], such as "
        "64x3/k8v4+k4v2/4/centred+rotated")
    endif()
    set(head_dim ${CMAKE_MATCH_1})
    set(group_size ${CMAKE_MATCH_2})
    set(high ${CMAKE_MATCH_3})
    set(low void)
    if(CMAKE_MATCH_5)
      set(low diffkv::${CMAKE_MATCH_5})
    endif()
    set(score_every ${CMAKE_MATCH_6})
    set(policy diffkv::any_policy)
    if(CMAKE_MATCH_8)
      set(policy fixed_mix_policy)
    endif()
    string(REGEX REPLACE "([a-z]+)" "diffkv::conditioning::\\1" conditioning ${CMAKE_MATCH_7})
    string(REPLACE "+" " | " conditioning ${conditioning})
    set(source ${CMAKE_CURRENT_BINARY_DIR}/device_cache_kind_${number}.cu)
    configure_file(cuda/device_cache_kind.cu.in ${source} @ONLY)
    list(APPEND sources ${source})
    string(APPEND declarations "device_cache_kind device_cache_kind_${number}();\n")
    string(APPEND calls "device_cache_kind_${number}(), ")
    math(EXPR number "${number} + 1")
  endforeach()
  configure_file(cuda/device_cache_kinds.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/device_cache_kinds.cpp
    @ONLY)
  list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/device_cache_kinds.cpp)

  target_sources(llama3 PRIVATE ${sources})
  target_compile_definitions(llama3 PUBLIC LLAMA3_CUDA=1)
  target_link_libraries(llama3 PUBLIC CUDA::cublas CUDA::cudart)
endfunction()

# How fast the loop is, with random weights (docs/throughput.md). Its mix of tiers is a cache of its own:
# -DLLAMA3_CUDA_CACHES="128x4/k8v4+k4v2/4/centred+rotated/fixed;128x4/k16v16/0/none" for Llama3-8B.
function(llama3_add_throughput)
  file(GLOB throughput_sources CONFIGURE_DEPENDS throughput/*.cpp)
  add_library(llama3_throughput OBJECT throughput.cpp ${throughput_sources})  # compiled in any case
  target_link_libraries(llama3_throughput PRIVATE llama3 diffkv_warnings)
  if(LLAMA3_CUDA_CACHES MATCHES "/fixed")
    add_executable(diffkv_llama3_throughput $<TARGET_OBJECTS:llama3_throughput>)
    target_link_libraries(diffkv_llama3_throughput PRIVATE llama3)
  else()
    message(STATUS "diffkv: diffkv_llama3_throughput is left out, as no cache of LLAMA3_CUDA_CACHES is /fixed")
  endif()
  if("128x4/k8v4+k4v2/4/centred+rotated/fixed" IN_LIST LLAMA3_CUDA_CACHES
     AND "128x4/k16v16/0/none" IN_LIST LLAMA3_CUDA_CACHES)
    add_test(NAME "llama3: throughput of a tiny model is measured"
      COMMAND diffkv_llama3_throughput --shape tiny --mode step --rounds 1)
    set_tests_properties("llama3: throughput of a tiny model is measured" PROPERTIES LABELS gpu)
    add_dependencies(diffkv_gpu_tests diffkv_llama3_throughput)
  endif()
endfunction()

llama3_add_device_code()
llama3_add_throughput()
