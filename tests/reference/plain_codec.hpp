// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The codec as docs/numerics.md states it, in f64 with every rounding to f32 and f16 spelled out.
//! f64 holds the exact sum, product or enough of the quotient of two f32 numbers, so that one
//! conversion to f32 afterwards is the rounded f32 operation.
#include "reference/f16_table.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace diffkv::test {

struct plain_codes {
  struct group {
    std::uint16_t scale = 0;
    std::uint16_t zero  = 0;
  };
  std::vector<std::uint16_t> codes{};
  std::vector<group> groups{};
};

[[nodiscard]] inline double as_f32(double x) { return static_cast<double>(static_cast<float>(x)); }

//! Scale and zero of a range within +-65504.
[[nodiscard]] inline plain_codes::group plain_fit(double min, double max, int bits, float clip)
{
  if (clip != 1.0f) {
    double const mid  = as_f32(0.5 * as_f32(min + max));
    double const half = as_f32(as_f32(0.5 * double{clip}) * as_f32(max - min));
    min               = as_f32(mid - half);
    max               = as_f32(mid + half);
  }
  std::uint16_t const zero = f16_nearest(min);
  double const step        = as_f32(as_f32(max - f16_value(zero)) / (std::ldexp(1.0, bits) - 1.0));
  return {step > 0.0 ? f16_nearest(std::fmin(step, 65504.0)) : std::uint16_t{0}, zero};
}

//! @pre bits of 1, 2, 4, 8
[[nodiscard]] inline plain_codes plain_encode(std::vector<float> const& vector, int bits,
                                              int groups, float clip)
{
  plain_codes out{};
  std::size_t const elements = vector.size() / static_cast<std::size_t>(groups);
  double const top           = std::ldexp(1.0, bits) - 1.0;
  bool finite                = true;
  for (float const x : vector) { finite = finite && std::isfinite(x); }
  for (std::size_t first = 0; first < vector.size(); first += elements) {
    if (!finite) {
      out.groups.push_back({0x7FFF, 0x7FFF});
      out.codes.insert(out.codes.end(), elements, std::uint16_t{0});
      continue;
    }
    std::vector<double> x;
    for (std::size_t i = first; i < first + elements; ++i) {
      x.push_back(std::fmin(std::fmax(vector[i], -65504.0), 65504.0));
    }
    auto const group = plain_fit(*std::min_element(x.begin(), x.end()),
                                 *std::max_element(x.begin(), x.end()), bits, clip);
    double const z   = f16_value(group.zero);
    double const s   = f16_value(group.scale);
    out.groups.push_back(group);
    for (double const element : x) {
      double code = 0.0;
      if (s > 0.0) {
        double const steps = as_f32(as_f32(element - z) / s);
        double const below = std::floor(steps);
        double const part  = steps - below;
        bool const up      = part > 0.5 || (part == 0.5 && std::fmod(below, 2.0) != 0.0);
        code               = std::fmin(std::fmax(below + (up ? 1.0 : 0.0), 0.0), top);
      }
      out.codes.push_back(static_cast<std::uint16_t>(code));
    }
  }
  return out;
}

//! s * code + z is exact in f64 (at most 48 bits), so this is the fused f32 operation.
[[nodiscard]] inline std::vector<float> plain_decode(plain_codes const& in)
{
  std::vector<float> out;
  std::size_t const elements = in.codes.size() / in.groups.size();
  for (std::size_t i = 0; i < in.codes.size(); ++i) {
    auto const& group = in.groups[i / elements];
    out.push_back(static_cast<float>(f16_value(group.scale) * in.codes[i] + f16_value(group.zero)));
  }
  return out;
}

//! Bound of |decoded - x| over one group of numbers from `min` to `max` (clamped to the f16 range):
//! docs/numerics.md, "Affine codes".
[[nodiscard]] inline double codec_bound(double min, double max, int bits, double clip)
{
  double const top     = std::ldexp(1.0, bits) - 1.0;
  double const range   = max - min;
  double const cut     = (1.0 - clip) * range / 2.0;  // what clipping takes off each end
  double const zero_by = f16_half_step(min + cut);
  double const step    = (range - 2.0 * cut + zero_by) / top;
  double const step_by = std::fmax(f16_half_step(step), step - 65504.0);
  double const inside  = (std::fmin(step, 65504.0) + f16_half_step(step)) / 2.0;
  double const outside = cut + std::fmax(zero_by, top * step_by);
  double const f32     = std::ldexp(std::fmax(std::fabs(min), std::fabs(max)), -20);
  return std::fmax(inside, outside) + f32;
}

}  // namespace diffkv::test
