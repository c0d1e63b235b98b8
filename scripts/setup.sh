# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0

# What scripts/test.sh, scripts/test_gpu.sh, scripts/demo.sh and .ci/run share. To be sourced: `. scripts/setup.sh`.
#   root                  the project's folder
#   need PACKAGE...       Debian packages; installed when missing, if that is possible here
#   need_cuda headers     CUDA 13 headers for host code     } fills the array cuda_args, options for
#   need_cuda compiler    the same, and nvcc                } cmake; empty where a toolkit is on the path
#   gpu_architecture      prints a value for CMAKE_CUDA_ARCHITECTURES
#   has_gpu_for_the_loop  whether the llama3 example can be built for a GPU of this machine
#   need_model            the model of the examples; its folder in $model
# DIFFKV_CUDA=toolkit|pypi overrides what need_cuda would choose by itself.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
jobs="${DIFFKV_JOBS:-$(nproc)}"
export CMAKE_BUILD_PARALLEL_LEVEL="$jobs"

# The parts of CUDA 13 as PyPI packages; all of one release of the toolkit.
cuda_header_packages=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-crt==13.0.88)
cuda_compiler_packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88)

say() { printf '\n== %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

need() {
  command -v dpkg-query >/dev/null || return 0  # another system: cmake says what it misses
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "these packages are missing: ${missing[*]}; as root: apt-get install ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

# The compiler of this machine's CUDA Toolkit; it may lie beside the path.
toolkit_nvcc() { command -v nvcc || echo /usr/local/cuda/bin/nvcc; }

# Has this machine a CUDA Toolkit of version 13 or newer?
has_toolkit() {
  local nvcc release
  nvcc="$(toolkit_nvcc)"
  [ -x "$nvcc" ] || return 1
  release="$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')"
  [ "${release:-0}" -ge 13 ]
}

# Is there a GPU of compute capability 8.0 or newer, and a toolkit with cuBLAS to build the loop for it?
has_gpu_for_the_loop() {
  local capability nvcc header
  [ "${DIFFKV_CUDA:-toolkit}" = toolkit ] && has_toolkit || return 1
  capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)" || return 1
  [[ "$capability" =~ ^[0-9]+\.[0-9]+$ ]] && [ "${capability%%.*}" -ge 8 ] || return 1
  nvcc="$(readlink -f "$(toolkit_nvcc)")"
  for header in "${nvcc%/bin/nvcc}"/{include,targets/*/include}/cublas_v2.h; do
    [ ! -e "$header" ] || return 0
  done
  return 1
}

need_cuda() {
  cuda_args=()
  local source="${DIFFKV_CUDA:-}" folder="$root/build/cuda" packages
  if [ -z "$source" ]; then
    if has_toolkit; then source=toolkit; else source=pypi; fi
  fi
  if [ "$source" != pypi ]; then
    # CMake looks for compilers on the path alone.
    if [ "$1" = compiler ] && ! command -v nvcc >/dev/null && [ -x "$(toolkit_nvcc)" ]; then
      cuda_args=("-DCMAKE_CUDA_COMPILER=$(toolkit_nvcc)")
    fi
    return 0
  fi

  packages=("${cuda_header_packages[@]}")
  [ "$1" = headers ] || packages+=("${cuda_compiler_packages[@]}")
  if [ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]; then
    # What has the compiler has the headers, too.
    if [ "$1" != headers ] || [[ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]} "* ]]; then
      python3 -m pip --version >/dev/null 2>&1 || need python3-pip
      say "CUDA 13 ($1) from PyPI"
      rm -rf "$folder"
      python3 -m pip install --quiet --no-deps --no-warn-script-location --root-user-action=ignore \
        --target "$folder" "${packages[@]}"
      ln -s lib "$folder/nvidia/cu13/lib64"  # where nvcc looks for its libraries
      echo "${packages[*]}" >"$folder/packages"
    fi
  fi
  cuda_args=("-DDIFFKV_CUDA_INCLUDE_DIRS=$folder/nvidia/cu13/include")
  [ "$1" = headers ] || cuda_args+=("-DCMAKE_CUDA_COMPILER=$folder/nvidia/cu13/bin/nvcc")
}

# What CMake shall build device code for: this machine's GPU. `native` would leave out what only code for
# Hopper's own architecture has.
gpu_architecture() {
  case "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true)" in
    9.0*) echo 90a ;;
    *) echo native ;;
  esac
}

need_model() {
  model="${DIFFKV_MODELS:-$root/build/models}/SmolLM2-135M-Instruct"
  python3 "$root/scripts/get_model.py"  # returns at once where the folder is complete
}

# configure FOLDER OPTION...: once; again only when the options change.
configure() {
  local folder="$1" stamp
  shift
  stamp="$*"
  if [ "$(cat "$folder/options" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$folder"
    cmake -S "$root" -B "$folder" -G Ninja "$@"
    echo "$stamp" >"$folder/options"
  fi
}

example_packages=(libeigen3-dev libcli11-dev nlohmann-json3-dev libfmt-dev libpcre2-dev libicu-dev)
build_packages=(g++ cmake ninja-build python3 python3-venv ca-certificates)
