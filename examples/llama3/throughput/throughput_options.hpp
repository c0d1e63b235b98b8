// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line of diffkv_llama3_throughput.
//! Read next: llama3/throughput/model_shapes.hpp.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llama3 {

enum class throughput_mode { step, throughput, arrivals };

//! mix: k8v4+k4v2, of five tokens two high, two low, one pruned. k16v16: plain 16-bit pages.
enum class measured_caches { both, mix, k16v16 };

struct throughput_options {
  throughput_mode mode = throughput_mode::step;
  std::string shape{"llama3-8b"};
  int num_layers         = 0;  //!< 0: all of the shape's
  measured_caches caches = measured_caches::both;
  int prompt_tokens = 0;  //!< of a sequence, arrivals: on average; 0: 4096 in mode step, else 512
  int pass_tokens   = 16384;     //!< of the prompts that go through the model together
  bool all_prompts  = false;     //!< each prompt is computed, not only the first pass
  int batch         = 128;       //!< step: sequences; arrivals: at most at the same time
  int rounds        = 7;         //!< step
  int new_tokens    = 4096;      //!< of each sequence; arrivals: on average
  std::int64_t kv_bytes = 0;     //!< throughput, arrivals: budget; 0: what the card below has left
  double card_bytes     = 48e9;  //!< throughput, arrivals
  std::vector<double> rates{1.0, 2.0, 4.0, 8.0};  //!< arrivals: requests per second, each in turn
  int requests       = 64;                        //!< arrivals: for each rate
  bool sampled_steps = false;  //!< throughput: steps are measured at some lengths only
  int samples        = 5;      //!< throughput: lengths
  std::string out{};           //!< JSON; empty: none
};

//! @return nothing if the program is done (--help, or an error that was printed); `exit_code` says how
[[nodiscard]] std::optional<throughput_options> parse_throughput_options(int argc, char** argv,
                                                                         int& exit_code);

}  // namespace llama3
