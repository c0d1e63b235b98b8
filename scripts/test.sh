#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# Sets up what the tests need, builds them and runs them all; no GPU needed. Arguments go to ctest:
#   scripts/test.sh -R codec
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

need "${build_packages[@]}" "${example_packages[@]}" catch2 libbenchmark-dev clang
need_cuda compiler
if ! need_model; then
  [ "${CI:-}" != true ] || fail "the model could not be had"
  say "the model could not be had: tests that read it are skipped"
fi

say "building the tests"
# One architecture, as nothing is run on a GPU here. -O1: most of the time is the compiler's. The example's own library asks for more by itself.
configure "$root/build/test" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 \
  -DDIFFKV_WERROR=ON -DCMAKE_CUDA_ARCHITECTURES=90a "${cuda_args[@]}"
cmake --build "$root/build/test"

say "running the tests"
ctest --test-dir "$root/build/test" -L host --no-tests=error --output-on-failure \
  --parallel "$jobs" "$@"
