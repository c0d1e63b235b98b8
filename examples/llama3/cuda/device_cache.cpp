// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/device_cache.hpp"

#include <stdexcept>  // invalid_argument
#include <string>

namespace llama3 {

diffkv::cache_options device_cache_options(model_config const& config,
                                           cache_settings const& settings,
                                           device_cache_setup const& setup,
                                           std::vector<float> key_offsets)
{
  diffkv::cache_options options =
    cache_options_for(config, settings, setup.max_tokens, std::move(key_offsets));
  std::uint64_t const pages_of_one = options.num_pages;
  options.shape.num_slots          = static_cast<std::uint32_t>(setup.num_slots);
  std::uint64_t const page_bytes   = diffkv::tiers_of(options).high.page_bytes;
  std::uint64_t pages              = pages_of_one * options.shape.num_slots;
  if (setup.pool_bytes != 0) {
    pages = setup.pool_bytes / page_bytes;
    if (pages < 1 || pages > diffkv::max_pages) {
      throw std::invalid_argument("--kv-bytes " + std::to_string(setup.pool_bytes) +
                                  ": must be at least a page, " + std::to_string(page_bytes) +
                                  " bytes, and at most " +
                                  std::to_string(page_bytes * diffkv::max_pages));
    }
  }
  if (pages > diffkv::max_pages) {
    throw std::invalid_argument(std::to_string(setup.num_slots) + " sequences of " +
                                std::to_string(setup.max_tokens) +
                                " tokens need more pages than a pool can have: ask for less with "
                                "--batch, --context or --kv-bytes");
  }
  options.num_pages = static_cast<std::uint32_t>(pages);
  return options;
}

std::uint64_t most_pages(diffkv::cache_options const& options, int num_tokens)
{
  return std::uint64_t{
           diffkv::tiers_of(options).most_pages(static_cast<std::uint32_t>(num_tokens))} *
         options.shape.rows_per_slot();
}

}  // namespace llama3
