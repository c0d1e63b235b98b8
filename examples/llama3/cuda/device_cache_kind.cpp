// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/cuda/device_cache_kind.hpp"

#include <algorithm>  // find_if
#include <stdexcept>  // invalid_argument

namespace llama3 {
namespace {

[[nodiscard]] std::string name_of(diffkv::conditioning set)
{
  bool const centred = has(set, diffkv::conditioning::centred);
  bool const rotated = has(set, diffkv::conditioning::rotated);
  if (!centred && !rotated) { return "none"; }
  return std::string{centred ? "centred" : ""} + (centred && rotated ? "+" : "") +
         (rotated ? "rotated" : "");
}

}  // namespace

std::string device_cache_kind::name() const
{
  std::string text =
    std::to_string(head_dim) + "x" + std::to_string(group_size) + "/" + diffkv::name(high);
  if (low) { text += "+" + diffkv::name(*low); }
  text += "/" + std::to_string(score_every) + "/" + name_of(conditioning);
  return fixed_mix ? text + "/fixed" : text;
}

device_cache_kind find_device_cache(model_config const& config, cache_settings const& settings,
                                    bool fixed_mix)
{
  device_cache_kind wanted;
  wanted.high                                = settings.high;
  wanted.low                                 = settings.low;
  wanted.head_dim                            = config.head_dim;
  wanted.group_size                          = config.group();
  wanted.score_every                         = settings.score_every;
  wanted.conditioning                        = settings.conditioning;
  wanted.fixed_mix                           = fixed_mix;
  std::string const name                     = wanted.name();
  std::vector<device_cache_kind> const kinds = device_cache_kinds();
  auto const found = std::find_if(kinds.begin(), kinds.end(), [&](device_cache_kind const& kind) {
    return kind.name() == name;  // the name says all that is compiled in
  });
  if (found == kinds.end()) {
    std::string names;
    for (device_cache_kind const& kind : kinds) {
      names += (names.empty() ? "" : ", ") + kind.name();
    }
    throw std::invalid_argument("there is no GPU code for a cache of " + name +
                                ", LLAMA3_CUDA_CACHES of this program are " + names);
  }
  return *found;
}

calibrate_function find_calibration(model_config const& config)
{
  for (device_cache_kind const& kind : device_cache_kinds()) {
    if (kind.head_dim == config.head_dim) { return kind.calibrate; }
  }
  throw std::invalid_argument("there is no GPU code for a head_dim of " +
                              std::to_string(config.head_dim));
}

std::unique_ptr<device_cache> make_device_cache(model_config const& config,
                                                cache_settings const& settings,
                                                device_cache_setup const& setup,
                                                std::vector<float> key_offsets, cudaStream_t stream)
{
  device_cache_kind const kind = find_device_cache(config, settings, setup.fixed_mix);
  return kind.make(device_cache_options(config, settings, setup, std::move(key_offsets)), settings,
                   setup, stream);
}

}  // namespace llama3
