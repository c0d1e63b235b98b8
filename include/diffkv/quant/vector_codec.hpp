// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A whole vector to codes and back, one element after the other: the meaning of a codec.
//! Read before this: quant/affine.hpp.  Read next: quant/conditioning.hpp.
#include <diffkv/quant/affine.hpp>

namespace diffkv {

inline constexpr int max_head_dim    = 256;
inline constexpr int max_code_groups = 4;

//! Codes (or f16 bits) of one vector, in the order of its elements, before they go into a page.
struct coded_vector {
  std::uint16_t codes[max_head_dim]{};  //!< code, or the f16 bits where spec.bits = 16
  affine groups[max_code_groups]{};     //!< not used where spec.bits = 16
};

//! Encodes `x[0 .. head_dim)`. A vector that holds NaN or Inf gets NaN metadata in every group, so
//! every element decodes to NaN; a 16-bit vector keeps its NaN and Inf elements.
//! @pre  is_legal(spec, head_dim), head_dim <= max_head_dim
DIFFKV_HOST_DEVICE inline void encode_vector(float const* x, int head_dim, code_spec spec,
                                             coded_vector& out) noexcept
{
  if (!spec.is_quantised()) {
    for (int d = 0; d < head_dim; ++d) {
      out.codes[d] = static_cast<std::uint16_t>(to_f16(codec_input(x[d])));
    }
    return;
  }
  bool finite = true;
  for (int d = 0; d < head_dim; ++d) { finite = finite && detail::is_finite(x[d]); }
  int const group_elements = head_dim / spec.groups;
  for (int g = 0; g < spec.groups; ++g) {
    int const first = g * group_elements;
    if (!finite) {
      out.groups[g] = {f16_nan, f16_nan};
      for (int d = first; d < first + group_elements; ++d) { out.codes[d] = 0; }
      continue;
    }
    float min = codec_input(x[first]);
    float max = min;
    for (int d = first + 1; d < first + group_elements; ++d) {
      float const value = codec_input(x[d]);
      min               = value < min ? value : min;
      max               = value > max ? value : max;
    }
    out.groups[g]     = fit_affine(min, max, spec);
    float const scale = to_f32(out.groups[g].scale);
    float const zero  = to_f32(out.groups[g].zero);
    for (int d = first; d < first + group_elements; ++d) {
      out.codes[d] =
        static_cast<std::uint16_t>(affine_code(codec_input(x[d]), scale, zero, spec.max_code()));
    }
  }
}

//! Decodes into `x[0 .. head_dim)`, f32.
DIFFKV_HOST_DEVICE inline void decode_vector(coded_vector const& in, int head_dim, code_spec spec,
                                             float* x) noexcept
{
  if (!spec.is_quantised()) {
    for (int d = 0; d < head_dim; ++d) { x[d] = to_f32(static_cast<f16_bits>(in.codes[d])); }
    return;
  }
  int const group_elements = head_dim / spec.groups;
  for (int g = 0; g < spec.groups; ++g) {
    float const scale = to_f32(in.groups[g].scale);
    float const zero  = to_f32(in.groups[g].zero);
    for (int d = g * group_elements; d < (g + 1) * group_elements; ++d) {
      x[d] = affine_value(in.codes[d], scale, zero);
    }
  }
}

}  // namespace diffkv
