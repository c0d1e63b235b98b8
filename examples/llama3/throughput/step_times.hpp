// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Mode `step`: the time of a step and what its parts take (DiffKV, arXiv:2412.03131, figure 14), of both
//! caches in turn.
//! Read before this: llama3/throughput/measured_cache.hpp.  Read next: llama3/throughput/generation.hpp.
#include "llama3/throughput/model_shapes.hpp"
#include "llama3/throughput/results.hpp"
#include "llama3/throughput/throughput_options.hpp"

#include <cuda_runtime_api.h>

#include <vector>

namespace llama3 {

//! Every part is the difference of two kinds of steps, of which the second leaves it out: attention
//! first, then products, the plan of attention, compaction (step and append). What stays is `other`. So the
//! parts sum up to the step. The small parts come last, as a difference of long steps would drown them.
[[nodiscard]] std::vector<measured_result> measure_steps(throughput_options const& options,
                                                         cudaStream_t stream);

}  // namespace llama3
