// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/cuda_device.hpp"

#include "llama3/cuda/convert.hpp"
#include "llama3/cuda/cuda_session.hpp"
#include "llama3/cuda/device_cache_kind.hpp"
#include "llama3/cuda/device_calibration.hpp"
#include "llama3/cuda/runner.hpp"
#include "llama3/weights.hpp"

#include <algorithm>  // min
#include <stdexcept>  // invalid_argument
#include <utility>    // move

namespace llama3 {
namespace {

//! All that decides about pages.
[[nodiscard]] device_cache_setup setup_of(runner_size const& size)
{
  device_cache_setup setup;
  setup.num_slots  = size.slots;
  setup.max_tokens = size.max_tokens;
  setup.pool_bytes = size.kv_bytes;
  return setup;
}

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

  [[nodiscard]] std::unique_ptr<batch_runner> make_runner(cache_settings const& settings,
                                                          runner_size const& size,
                                                          std::vector<float> key_offsets) override
  {
    constexpr int most_prompts = 64;  // more of them do not keep a GPU busier
    DIFFKV_EXPECTS(size.max_tokens <= model_.max_tokens() && size.slots <= model_.max_tokens(),
                   "make_runner: the device was opened for " + std::to_string(model_.max_tokens()) +
                     " tokens at once");
    device_cache_setup setup = setup_of(size);
    setup.prompts            = std::min(size.slots, most_prompts);
    setup.prompt_tokens      = model_.max_tokens();
    auto cache =
      make_device_cache(model_.config(), settings, setup, std::move(key_offsets), model_.stream());
    return std::make_unique<runner>(model_, std::move(cache), setup, size.num_ids);
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

void check_runner_size(model_config const& config, cache_settings const& settings,
                       runner_size const& size, int longest_prompt)
{
  bool const centred = has(settings.conditioning, diffkv::conditioning::centred);
  std::int64_t const offsets =
    centred ? std::int64_t{config.num_layers} * config.num_heads * config.head_dim : 0;
  diffkv::cache_options const options = device_cache_options(
    config, settings, setup_of(size), std::vector<float>(static_cast<std::size_t>(offsets)));
  std::uint64_t const pages = most_pages(options, longest_prompt);
  if (pages > options.num_pages) {
    throw std::invalid_argument("--kv-bytes " + std::to_string(size.kv_bytes) + ": that is " +
                                std::to_string(options.num_pages) + " pages, and a prompt of " +
                                std::to_string(longest_prompt) + " tokens may need " +
                                std::to_string(pages));
  }
}

std::unique_ptr<cuda_device> open_cuda_device(model_config const& config, checkpoint const& files,
                                              int max_tokens)
{
  return std::make_unique<loaded_device>(config, files, max_tokens);
}

}  // namespace llama3
