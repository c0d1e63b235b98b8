// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/calibration.hpp"

#include "llama3/exact_backend.hpp"
#include "llama3/safetensors.hpp"

#include <cmath>    // isfinite
#include <cstddef>  // byte, size_t
#include <cstdint>  // uint32_t, uint64_t
#include <map>
#include <system_error>  // error_code
#include <utility>       // move

namespace llama3 {
namespace {

constexpr char tensor_name[] = "key_offsets";
constexpr char file_format[] = "diffkv key offsets 1";

//! Passes everything on and keeps the mean of the keys.
class key_mean_backend final : public attention_backend {
 public:
  key_mean_backend(model_config const& config, attention_backend& wrapped)
    : width_{static_cast<std::size_t>(config.num_heads) *
             static_cast<std::size_t>(config.head_dim)},
      wrapped_{wrapped},
      means_(static_cast<std::size_t>(config.num_layers) * width_)
  {}

  void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
              float* out) override
  {
    float* const mean = means_.data() + static_cast<std::size_t>(layer) * width_;
    std::vector<double> sums(width_, 0.0);
    float const* key = k;
    for (int t = 0; t < num_tokens; ++t, key += width_) {
      for (std::size_t i = 0; i < width_; ++i) { sums[i] += key[i]; }
    }
    for (std::size_t i = 0; i < width_; ++i) { mean[i] = static_cast<float>(sums[i] / num_tokens); }
    wrapped_.prompt(layer, num_tokens, q, k, v, out);
  }
  void begin_token() override { wrapped_.begin_token(); }
  void decode(int layer, float const* q, float const* k, float const* v, float* out) override
  {
    wrapped_.decode(layer, q, k, v, out);
  }

  [[nodiscard]] std::vector<float> take_means() { return std::move(means_); }

 private:
  std::size_t width_;
  attention_backend& wrapped_;
  std::vector<float> means_;
};

//! FNV-1a, 64 bits: tells files and texts apart, keeps no secret.
class digest {
 public:
  void add(std::byte const* data, std::size_t size) noexcept
  {
    for (std::size_t i = 0; i < size; ++i) {
      state_ = (state_ ^ std::to_integer<std::uint64_t>(data[i])) * 0x100'0000'01B3u;
    }
  }
  [[nodiscard]] std::string hex() const
  {
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) {
      text += "0123456789abcdef"[(state_ >> shift) & 15u];
    }
    return text;
  }

 private:
  std::uint64_t state_{0xCBF2'9CE4'8422'2325u};
};

std::map<std::string, std::string> metadata_of(offsets_identity const& identity)
{
  return {{"format", file_format},
          {"model_bytes", identity.model_bytes},
          {"weights_digest", identity.weights_digest},
          {"text_digest", identity.text_digest}};
}

}  // namespace

std::vector<float> calibrate(model& of, std::vector<token_id> const& ids, thread_pool& threads,
                             progress_callback const& progress)
{
  exact_backend attention{of.config(), threads};
  key_mean_backend means{of.config(), attention};
  (void)of.prompt_logits(ids, {}, means, progress);
  return means.take_means();
}

offsets_identity identity_of(model_config const& config, checkpoint const& files,
                             std::vector<token_id> const& ids)
{
  offsets_identity identity;
  identity.shape       = {config.num_layers, config.num_heads, config.head_dim};
  identity.model_bytes = std::to_string(files.num_bytes());
  digest weights;
  auto const add = [&](std::string const& name) {
    auto const& tensor = files.at(name);
    weights.add(tensor.data, tensor.bytes);
  };
  add("model.norm.weight");
  add("model.layers.0.self_attn.k_proj.weight");
  add("model.layers." + std::to_string(config.num_layers - 1) + ".self_attn.k_proj.weight");
  identity.weights_digest = weights.hex();
  digest text;
  for (token_id const id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {  // the same on any machine
      auto const part = static_cast<std::byte>((static_cast<std::uint32_t>(id) >> shift) & 255u);
      text.add(&part, 1);
    }
  }
  identity.text_digest = text.hex();
  return identity;
}

std::vector<float> load_key_offsets(std::filesystem::path const& file,
                                    offsets_identity const& identity)
{
  safetensors_file const stored{file};
  for (auto const& [key, expected] : metadata_of(identity)) {
    auto const found = stored.metadata().find(key);
    if (found == stored.metadata().end() || found->second != expected) {
      throw file_error(file.string() + ": " + key + " is " +
                       (found == stored.metadata().end() ? "missing" : found->second) + ", not " +
                       expected + ": it belongs to another model or text");
    }
  }
  auto offsets = to_f32(stored.at(tensor_name, identity.shape));
  for (float const value : offsets) {
    if (!std::isfinite(value)) {
      throw file_error(file.string() + ": tensor " + tensor_name +
                       " holds a value that is not finite");
    }
  }
  return offsets;
}

void save_key_offsets(std::filesystem::path const& file, offsets_identity const& identity,
                      std::vector<float> const& offsets)
{
  write_safetensors(file, {view_of(tensor_name, identity.shape, offsets)}, metadata_of(identity));
}

std::vector<float> key_offsets(model_config const& config, checkpoint const& files,
                               std::vector<token_id> const& ids, offsets_function const& compute,
                               message_callback const& say)
{
  auto const tell = [&](std::string const& text) {
    if (say) { say(text); }
  };
  auto const file     = files.folder() / offsets_file_name;
  auto const identity = identity_of(config, files, ids);
  std::error_code none;
  if (std::filesystem::exists(file, none)) {
    try {
      return load_key_offsets(file, identity);
    } catch (file_error const& error) {
      tell(std::string{error.what()} + "; key offsets are calibrated anew");
    }
  }
  auto offsets = compute();
  try {
    save_key_offsets(file, identity, offsets);
  } catch (file_error const& error) {
    tell(std::string{error.what()} + "; key offsets are kept for this run only");
  }
  return offsets;
}

}  // namespace llama3
