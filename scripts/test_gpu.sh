#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# Runs what needs a GPU: all tests with the ctest label gpu (of the library, of examples and, where there is
# cuBLAS, of the llama3 loop), then compute-sanitizer over those tagged [small], which are a representative
# subset. The last line says how it went.
#   scripts/test_gpu.sh                      builds build/gpu-test for the GPU of this machine first
#   scripts/test_gpu.sh --build FOLDER       a folder that cmake has configured
#   scripts/test_gpu.sh --binary PATH        a program built elsewhere; nothing else is needed. More of
#                                            them may follow; compute-sanitizer looks at those whose
#                                            names end in device_tests
#   scripts/test_gpu.sh --no-sanitizer ...   the tests alone
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

sanitized='[small]'  # the one place that says what compute-sanitizer looks at
tools=(memcheck racecheck initcheck synccheck)
# Of the loop's tests, then of diffkv_llama3_throughput.
tested_caches='64x3/k8v4+k4v2/4/centred+rotated;64x3/k8v4+k4v2/1/centred+rotated;64x3/k16v16/0/none'
tested_caches+=';128x4/k8v4+k4v2/4/centred+rotated/fixed;128x4/k16v16/0/none'
binaries=() folder=''
while [ "$#" -gt 0 ]; do
  case "$1" in
    --binary) binaries+=("${2:?--binary needs a path}"); shift 2 ;;
    --build) folder="${2:?--build needs a folder}"; shift 2 ;;
    --no-sanitizer) tools=(); shift ;;
    *) echo "error: unknown argument $1; see the head of scripts/test_gpu.sh" >&2; exit 2 ;;
  esac
done

say() { printf '\n== %s\n' "$*" >&2; }
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
summary='' failed=0

say "running the tests"
if [ "${#binaries[@]}" -gt 0 ]; then
  for binary in "${binaries[@]}"; do
    [ -x "$binary" ] || { echo "error: $binary is no program" >&2; exit 2; }
    "$binary" 2>&1 | tee "$log" || failed=1
    result="$(grep -E '^(All tests passed|test cases:)' "$log" | tail -n 1 || true)"
    summary+="${summary:+; }${result:-$binary did not end}"
  done
else
  . "$here/setup.sh"
  if [ -z "$folder" ]; then
    folder="$root/build/gpu-test"
    need "${build_packages[@]}" "${example_packages[@]}" catch2
    need_cuda compiler
    configure "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="$(gpu_architecture)" \
      -DDIFFKV_BUILD_BENCH=OFF -DDIFFKV_WERROR=ON "-DLLAMA3_CUDA_CACHES=$tested_caches" "${cuda_args[@]}"
  fi
  cmake --build "$folder" --target diffkv_gpu_tests
  ctest --test-dir "$folder" -L gpu --no-tests=error --output-on-failure 2>&1 | tee "$log" || failed=1
  summary="$(grep -E '^[0-9]+% tests passed' "$log" | tail -n 1 || true)"
  mapfile -t binaries < <(find "$folder" -name '*device_tests' -type f -perm -u+x)
fi
summary="${summary:-the tests did not end}"

# A toolkit may lie beside the path.
sanitizer="$(command -v compute-sanitizer || true)"
for place in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do
  [ -n "$sanitizer" ] || [ ! -x "$place/compute-sanitizer" ] || sanitizer="$place/compute-sanitizer"
done
# has_tests PROGRAM TESTS
has_tests() { ! "$1" --list-tests "$2" 2>/dev/null | grep -q '^0 matching'; }

# sanitize TOOL PROGRAM TESTS OPTION...
sanitize() {
  local tool="$1" binary="$2" tests="$3" status=0 errors
  shift 3
  # Tests provoke errors of calls on purpose; what kernels do is looked at.
  "$sanitizer" --tool "$tool" "$@" --report-api-errors no --print-limit 10 --error-exitcode 9 \
    "$binary" "$tests" 2>&1 | tee "$log" || status=1
  errors="$(sed -n 's/^=* *\(ERROR SUMMARY\|RACECHECK SUMMARY\): *//p' "$log" | head -n 1)"
  summary+="; $tool ${errors:-did not end}"
  [ "$status" -eq 0 ] || failed=1
}

for tool in "${tools[@]}"; do
  if [ -z "$sanitizer" ]; then
    say "compute-sanitizer is not here: left out"
    summary+='; compute-sanitizer not found'
    break
  fi
  say "$tool"
  # Hundreds of launches take racecheck minutes.
  [ "$tool" = racecheck ] && tests="$sanitized~[many-steps]" || tests="$sanitized"
  looked_at=0
  for binary in "${binaries[@]}"; do
    [[ "$binary" == *device_tests ]] || continue
    looked_at=1
    if ! has_tests "$binary" "$tests"; then
      summary+="; $tool: $binary has no tests $tests" failed=1
      continue
    fi
    # Warps of attention have barriers each, more in a launch than synccheck keeps track of by itself; and
    # for more it takes memory with every launch, of which other tests have many.
    rest="$tests"
    if [ "$tool" = synccheck ] && has_tests "$binary" "$tests[attention]"; then
      sanitize "$tool" "$binary" "$tests[attention]" --num-cuda-barriers 2048
      rest="$tests~[attention]"
      has_tests "$binary" "$rest" || continue
    fi
    sanitize "$tool" "$binary" "$rest"
  done
  [ "$looked_at" -eq 1 ] || summary+="; $tool: no program whose name ends in device_tests"
done

[ "$failed" -eq 0 ] && verdict=passed || verdict=FAILED
printf '\ngpu tests %s: %s\n' "$verdict" "$summary"
exit "$failed"
