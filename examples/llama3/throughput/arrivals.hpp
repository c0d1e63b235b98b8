// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Mode `arrivals`: what requests wait for that come at random, at rising rates, through the scheduler
//! (DiffKV, arXiv:2412.03131, figures 16 and 17).
//! Read before this: llama3/scheduler.hpp, llama3/throughput/generation.hpp.
//! Read next: llama3/throughput.cpp.
#include "llama3/throughput/results.hpp"
#include "llama3/throughput/throughput_options.hpp"
#include "llama3/token_id.hpp"

#include <cuda_runtime_api.h>

#include <vector>

namespace llama3 {

struct timed_request {
  double arrival = 0.0;  //!< seconds after the first
  std::vector<token_id> prompt{};
  int new_tokens = 0;
};

//! Requests of a Poisson process. Lengths of prompts and answers are uniform from half the mean to one and
//! a half of it. Of `seed` alone, so that every cache serves the same.
[[nodiscard]] std::vector<timed_request> make_timed_requests(double rate, int count,
                                                             int mean_prompt, int mean_new,
                                                             int vocab_size, unsigned seed);

[[nodiscard]] std::vector<measured_result> measure_arrivals(throughput_options const& options,
                                                            cudaStream_t stream);

}  // namespace llama3
