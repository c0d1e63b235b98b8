// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/cuda_device.hpp"

#include "llama3/cuda/convert.hpp"
#include "llama3/cuda/cuda_session.hpp"
#include "llama3/weights.hpp"

namespace llama3 {
namespace {

class loaded_device final : public cuda_device {
 public:
  loaded_device(model_config const& config, checkpoint const& files, int max_tokens)
    : model_{config, upload(load_weights(config, files), stream_.get()), max_tokens, max_tokens,
             stream_.get()}
  {
    stream_.wait();
  }

  [[nodiscard]] std::vector<float> calibrate(std::vector<token_id> const& ids) override
  {
    return calibrate_on_device(model_, ids);
  }

  [[nodiscard]] std::unique_ptr<session> make_session(cache_settings const& settings,
                                                      int max_tokens,
                                                      std::vector<float> key_offsets) override
  {
    return std::make_unique<cuda_session>(model_, settings, max_tokens, std::move(key_offsets));
  }

 private:
  gpu_stream stream_;
  device_model model_;
};

}  // namespace

bool cuda_is_usable(std::string& why)
{
  int devices             = 0;
  cudaError_t const error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    static_cast<void>(cudaGetLastError());
    why = error != cudaSuccess ? std::string{"no GPU can be used: "} + cudaGetErrorString(error)
                               : std::string{"there is no GPU"};
    return false;
  }
  if (!has_code_for_this_gpu()) {
    why = "this program was built for other GPUs (CMAKE_CUDA_ARCHITECTURES)";
    return false;
  }
  return true;
}

void check_device_settings(model_config const& config, cache_settings const& settings)
{
  static_cast<void>(find_device_cache(config, settings, /*fixed_mix=*/false));
}

std::unique_ptr<cuda_device> open_cuda_device(model_config const& config, checkpoint const& files,
                                              int max_tokens)
{
  return std::make_unique<loaded_device>(config, files, max_tokens);
}

}  // namespace llama3
