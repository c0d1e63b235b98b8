// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! diffkv_llama3_throughput: how fast the decode loop is on a GPU, with random weights of a published
//! shape, over a compressed cache and over 16-bit pages. docs/throughput.md says what is measured and how.
//! Read before this: llama3/throughput/step_times.hpp, llama3/throughput/generation.hpp,
//! llama3/throughput/arrivals.hpp.
#include "llama3/cuda/cuda_device.hpp"
#include "llama3/cuda/gpu_memory.hpp"
#include "llama3/throughput/arrivals.hpp"
#include "llama3/throughput/generation.hpp"
#include "llama3/throughput/step_times.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>

namespace {

//! e.g. "NVIDIA H200, CUDA 13.0"
std::string device_name()
{
  cudaDeviceProp properties{};
  int version = 0;
  DIFFKV_CUDA_TRY(cudaGetDeviceProperties(&properties, 0));
  DIFFKV_CUDA_TRY(cudaRuntimeGetVersion(&version));
  return fmt::format("{}, CUDA {}.{}", properties.name, version / 1000, version % 1000 / 10);
}

std::vector<llama3::measured_result> measure(llama3::throughput_options const& options)
{
  llama3::gpu_stream const stream;
  switch (options.mode) {
    case llama3::throughput_mode::step:
      return llama3::measure_steps(options, stream.get());
    case llama3::throughput_mode::throughput:
      return llama3::measure_throughput(options, stream.get());
    case llama3::throughput_mode::arrivals:
      break;
  }
  return llama3::measure_arrivals(options, stream.get());
}

int run(llama3::throughput_options const& options, std::string const& command)
{
  std::string why;
  if (!llama3::cuda_is_usable(why)) {
    fmt::print(stderr, "{}\n", why);
    return 1;
  }
  fmt::print("{}\n{}\nthe mix of tiers is given, not from attention\n", device_name(), command);
  if (options.mode != llama3::throughput_mode::step) {
    auto const config = llama3::config_of(llama3::find_shape(options.shape), options.num_layers, 1);
    fmt::print("weights {:.3f} GB, keys and values {:.3f} GB\n",
               1e-9 * static_cast<double>(llama3::weight_bytes(config)),
               1e-9 * static_cast<double>(llama3::kv_budget(options, config)));
  }
  auto const results = measure(options);
  for (auto const& result : results) { fmt::print("{}", llama3::as_text(result)); }
  if (options.out.empty()) { return 0; }
  std::ofstream file{options.out, std::ios::binary};
  file << llama3::as_json(results, device_name(), command);
  file.close();
  if (file.fail()) {
    fmt::print(stderr, "--out {}: cannot be written\n", options.out);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv)
{
  int exit_code      = 0;
  auto const options = llama3::parse_throughput_options(argc, argv, exit_code);
  if (!options) { return exit_code; }
  std::string command = "diffkv_llama3_throughput";
  for (int i = 1; i < argc; ++i) {
    if (std::string{argv[i]} == "--out") {
      ++i;  // says nothing about the figures
      continue;
    }
    command += fmt::format(" {}", argv[i]);
  }
  try {
    return run(*options, command);
  } catch (std::exception const& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
