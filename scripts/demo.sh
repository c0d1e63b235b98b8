#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# Sets up everything, then answers a prompt with a real model whose K/V cache is diffkv's, and
# reports what the cache took. Arguments go to the example:
#   scripts/demo.sh --prompt "Name three rivers of Africa." --high k4v2 --low none
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

need "${build_packages[@]}" "${example_packages[@]}"
# On the GPU where there is one and a toolkit with cuBLAS to build for it; else on the CPU.
if has_gpu_for_the_loop; then
  need_cuda compiler
  device_args=(-DDIFFKV_BUILD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(gpu_architecture)"
    "-DLLAMA3_CUDA_CACHES=64x3/k8v4+k4v2/4/centred+rotated;64x3/k16v16/0/none")
else
  need_cuda headers
  device_args=(-DDIFFKV_BUILD_CUDA=OFF)
fi

configure "$root/build/demo" -DCMAKE_BUILD_TYPE=Release -DDIFFKV_BUILD_TESTS=OFF \
  -DDIFFKV_BUILD_BENCH=OFF "${device_args[@]}" "${cuda_args[@]}" >&2
cmake --build "$root/build/demo" --target diffkv_llama3 >&2

model_given=no prompt_given=no
for argument in "$@"; do
  case "$argument" in
    --model | --model=*) model_given=yes ;;
    --prompt | --prompt=* | --prompt-file | --prompt-file=* | --requests | --requests=* | -h | --help) prompt_given=yes ;;
  esac
done
options=()
if [ "$model_given" = no ]; then
  need_model >&2
  options+=(--model "$model")
fi
if [ "$prompt_given" = no ]; then
  options+=(--prompt "Explain in a few sentences why the sky is blue during the day and red at sunset.")
fi
exec "$root/build/demo/examples/llama3/diffkv_llama3" "${options[@]}" "$@"
