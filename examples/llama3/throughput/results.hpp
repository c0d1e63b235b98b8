// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What was measured, in the form that scripts/performance.py stores: Google Benchmark's JSON.
//! Read next: llama3/throughput/step_times.hpp.
#include <string>
#include <utility>  // pair
#include <vector>

namespace llama3 {

struct measured_result {
  std::string name;
  double seconds = 0.0;
  //! Times end in _us. A name that begins with "figure:" is one that others rely on.
  std::vector<std::pair<std::string, double>> counters{};
};

//! @param device   what was measured, e.g. "NVIDIA H200, CUDA 13.0"
//! @param command  how
[[nodiscard]] std::string as_json(std::vector<measured_result> const& results,
                                  std::string const& device, std::string const& command);

[[nodiscard]] std::string as_text(measured_result const& result);

}  // namespace llama3
