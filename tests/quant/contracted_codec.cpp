// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/contracted_codec.hpp"

// The library's inline functions once more under another name: with one name the linker would keep
// a single copy of each for the whole program, compiled with either set of flags.
#define diffkv diffkv_contracted
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/vector_codec.hpp>
#undef diffkv

namespace diffkv::test {

void contracted_codec(float const* x, int head_dim, int bits, int groups, float clip,
                      contracted_result& out)
{
  diffkv_contracted::code_spec const spec{bits, groups, clip};
  diffkv_contracted::coded_vector coded{};
  diffkv_contracted::encode_vector(x, head_dim, spec, coded);
  for (int d = 0; d < head_dim; ++d) { out.codes[d] = coded.codes[d]; }
  for (int g = 0; g < groups; ++g) {
    out.scales[g] = static_cast<std::uint16_t>(coded.groups[g].scale);
    out.zeros[g]  = static_cast<std::uint16_t>(coded.groups[g].zero);
  }
  diffkv_contracted::decode_vector(coded, head_dim, spec, out.values);
}

std::uint32_t contracted_fit(float min, float max, int bits, float clip)
{
  auto const a = diffkv_contracted::fit_affine(min, max, {bits, 1, clip});
  return static_cast<std::uint32_t>(a.scale) << 16 | static_cast<std::uint32_t>(a.zero);
}

void contracted_rotate(float* x, int head_dim) { diffkv_contracted::rotate(x, head_dim); }

float contracted_expression(float a, float b, float c) { return a * b + c; }

bool contraction_is_possible()
{
#if defined(__FMA__) || defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

}  // namespace diffkv::test
