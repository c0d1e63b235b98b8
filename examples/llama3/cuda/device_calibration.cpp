// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/device_calibration.hpp"

#include "llama3/cuda/device_cache_kind.hpp"
#include "llama3/cuda/gpu_memory.hpp"

#include <cstddef>  // size_t
#include <cstdint>

namespace llama3 {

std::vector<float> calibrate_on_device(device_model& of, std::vector<token_id> const& ids)
{
  model_config const& config = of.config();
  of.check_ids(ids);
  cudaStream_t const stream = of.stream();
  std::vector<std::int32_t> positions;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    positions.push_back(static_cast<std::int32_t>(t));
  }
  auto const device_ids       = to_device(ids, stream);
  auto const device_positions = to_device(positions, stream);
  auto const first_tokens =
    to_device(std::vector<std::int64_t>{0, static_cast<std::int64_t>(ids.size())}, stream);
  std::size_t const per_layer =
    static_cast<std::size_t>(config.num_heads) * static_cast<std::size_t>(config.head_dim);
  auto offsets =
    make_array<float>(std::int64_t{config.num_layers} * config.num_heads * config.head_dim, stream);
  calibrate_function const calibrate = find_calibration(config);
  auto const count                   = static_cast<int>(ids.size());
  of.run({count, device_ids.data(), device_positions.data()},
         [&](int layer, __half const* q, __half const* k, __half const* v, __half* out) {
           calibrate({config.num_q_heads, config.num_heads, count, first_tokens.data(), q, k, v,
                      out, offsets.data() + static_cast<std::size_t>(layer) * per_layer},
                     stream);
         });
  return to_host(offsets.data(), offsets.size(), stream);
}

}  // namespace llama3
