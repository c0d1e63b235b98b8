// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A std::vector through the codec and back, and the lists that the tests of the codec go through.
#include "quant/vectors.hpp"

#include <diffkv/quant/vector_codec.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace diffkv::test {

[[nodiscard]] inline coded_vector encode(std::vector<float> const& x, code_spec spec)
{
  coded_vector out{};
  encode_vector(x.data(), static_cast<int>(x.size()), spec, out);
  return out;
}

[[nodiscard]] inline std::vector<float> decode(coded_vector const& coded, std::size_t size,
                                               code_spec spec)
{
  std::vector<float> x(size);
  decode_vector(coded, static_cast<int>(size), spec, x.data());
  return x;
}

[[nodiscard]] inline std::vector<float> round_trip(std::vector<float> const& x, code_spec spec)
{
  return decode(encode(x, spec), x.size(), spec);
}

//! Nasty and random vectors, each as f32, f16 and bf16 input; what rounds to Inf is left out.
[[nodiscard]] inline std::vector<named_vector> all_vectors(int head_dim)
{
  std::vector<named_vector> vectors = nasty_vectors(head_dim);
  for (auto& v : random_vectors(head_dim, 24, 31)) { vectors.push_back(v); }
  std::vector<named_vector> out;
  for (auto const& v : vectors) {
    named_vector const typed[] = {{v.name + ", f32", as_elements<float>(v.x)},
                                  {v.name + ", f16", as_elements<__half>(v.x)},
                                  {v.name + ", bf16", as_elements<__nv_bfloat16>(v.x)}};
    for (auto const& t : typed) {
      bool const finite =
        std::all_of(t.x.begin(), t.x.end(), [](float x) { return std::isfinite(x); });
      if (finite) { out.push_back(t); }
    }
  }
  return out;
}

[[nodiscard]] inline std::vector<code_spec> all_specs(int head_dim)
{
  std::vector<code_spec> out;
  for (int bits : {1, 2, 4, 8}) {
    for (int groups : {1, 2, 4}) {
      for (float clip : {1.0f, 0.8f, 0.55f}) {
        if (is_legal(code_spec{bits, groups, clip}, head_dim)) {
          out.push_back({bits, groups, clip});
        }
      }
    }
  }
  return out;
}

[[nodiscard]] inline std::string describe(code_spec spec)
{
  return std::to_string(spec.bits) + " bits, " + std::to_string(spec.groups) + " groups, clip " +
         std::to_string(spec.clip);
}

}  // namespace diffkv::test
