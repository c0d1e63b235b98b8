// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Rotary position embedding: pair i of a head vector is (x[i], x[i + head_dim / 2]), the half-split
//! order in which Hugging Face publishes q and k projections.
//! Read next: llama3/model.hpp.

#include <cmath>      // pow, cos, sin
#include <cstddef>    // size_t
#include <stdexcept>  // invalid_argument
#include <vector>     // vector

namespace llama3 {

//! How the frequencies are changed for contexts longer than those of the first training.
enum class rope_scaling_type { none, linear, llama3 };

struct rope_parameters {
  int head_dim                 = 0;
  double theta                 = 10000.0;
  rope_scaling_type scaling    = rope_scaling_type::none;
  double factor                = 1.0;     //!< linear, llama3
  double low_freq_factor       = 1.0;     //!< llama3
  double high_freq_factor      = 4.0;     //!< llama3
  double original_max_position = 8192.0;  //!< llama3
};

//! Radians per position of each pair: [head_dim / 2].
//! `llama3` keeps wavelengths below original / high_freq_factor, divides those above
//! original / low_freq_factor by `factor`, and blends between (as the Llama 3.1 model card has it).
//! @throws std::invalid_argument for parameters that give no frequencies
[[nodiscard]] inline std::vector<double> rope_frequencies(rope_parameters const& p)
{
  if (p.head_dim < 2 || p.head_dim % 2 != 0) {
    throw std::invalid_argument("rope: head_dim must be even and positive");
  }
  if (!(p.theta > 0.0) || !(p.factor > 0.0)) {
    throw std::invalid_argument("rope: theta and factor must be positive");
  }
  if (p.scaling == rope_scaling_type::llama3 && !(p.high_freq_factor > p.low_freq_factor)) {
    throw std::invalid_argument("rope: high_freq_factor must be above low_freq_factor");
  }
  constexpr double two_pi = 6.283185307179586476925;
  std::vector<double> frequencies(static_cast<std::size_t>(p.head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double const base = std::pow(p.theta, -2.0 * static_cast<double>(i) / p.head_dim);
    double scaled     = base;
    if (p.scaling == rope_scaling_type::linear) {
      scaled = base / p.factor;
    } else if (p.scaling == rope_scaling_type::llama3) {
      double const turns = p.original_max_position * base / two_pi;  // over the first context
      if (turns < p.low_freq_factor) {
        scaled = base / p.factor;
      } else if (turns <= p.high_freq_factor) {
        double const keep = (turns - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
        scaled            = (1.0 - keep) * base / p.factor + keep * base;
      }
    }
    frequencies[i] = scaled;
  }
  return frequencies;
}

//! Rotates head vectors to a position.
class rope {
 public:
  explicit rope(rope_parameters const& parameters) : frequencies_(rope_frequencies(parameters)) {}

  [[nodiscard]] std::vector<double> const& frequencies() const noexcept { return frequencies_; }

  //! cos and sin of every pair at `position`, each [head_dim / 2]; the same for all heads and layers.
  //! Angles are formed in double: in f32 position 131071 would be off by 0.008 radian.
  void angles(int position, float* cosines, float* sines) const noexcept
  {
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      double const angle = position * frequencies_[i];
      cosines[i]         = static_cast<float>(std::cos(angle));
      sines[i]           = static_cast<float>(std::sin(angle));
    }
  }

  //! @param[in]  in              [num_vectors, head_dim]
  //! @param[out] out             [num_vectors, head_dim]; may be `in`
  //! @param[in]  cosines, sines  [head_dim / 2], of angles()
  void rotate(float const* in, float* out, int num_vectors, float const* cosines,
              float const* sines) const noexcept
  {
    std::size_t const half = frequencies_.size();
    for (int v = 0; v < num_vectors; ++v, in += 2 * half, out += 2 * half) {
      for (std::size_t i = 0; i < half; ++i) {
        float const a = in[i];
        float const b = in[i + half];
        out[i]        = a * cosines[i] - b * sines[i];
        out[i + half] = b * cosines[i] + a * sines[i];
      }
    }
  }

 private:
  std::vector<double> frequencies_;
};

}  // namespace llama3
