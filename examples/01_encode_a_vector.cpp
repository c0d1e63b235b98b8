// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

// What this teaches: how a vector becomes codes of a few bits and what is lost on the way.
//   1. The affine codec: one scale and one zero per vector, one code per element.
//   2. How the error shrinks with the bits, and the bound that it never passes.
//   3. Why conditioning helps: the same bytes, a fraction of the error.
// No GPU is needed. The program ends with 0 if every answer is as it must be.
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <algorithm>  // minmax_element
#include <array>
#include <cmath>
#include <cstddef>  // size_t
#include <cstdio>
#include <random>

constexpr int head_dim = 64;
using vector           = std::array<float, head_dim>;

static float rms(vector const& a, vector const& b)
{
  float sum = 0.0f;
  for (std::size_t d = 0; d < head_dim; ++d) { sum += (a[d] - b[d]) * (a[d] - b[d]); }
  return std::sqrt(sum / head_dim);
}

int main()
{
  bool right = true;

  // A key as a model makes them: small numbers, and one dimension that is large for every token.
  vector key;  // [head_dim] f32
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  for (float& x : key) { x = normal(random); }
  key[20] += 12.0f;

  // --- 1. Four bits: 16 levels between the smallest and the largest element.
  diffkv::code_spec const four_bits{4};
  diffkv::coded_vector coded;  // codes [head_dim], scale and zero [groups] as f16
  diffkv::encode_vector(key.data(), head_dim, four_bits, coded);
  vector decoded;  // [head_dim] f32
  diffkv::decode_vector(coded, head_dim, four_bits, decoded.data());

  float const scale = to_f32(coded.groups[0].scale);
  float const zero  = to_f32(coded.groups[0].zero);
  std::printf("4 bits: scale %.4f, zero %.4f\n", scale, zero);
  for (std::size_t d = 18; d < 23; ++d) {
    std::printf("  element %zu: %8.4f -> code %2d -> %8.4f\n", d, key[d], int{coded.codes[d]},
                decoded[d]);
    // A code stands for scale * code + zero, rounded once.
    right = right && decoded[d] == std::fma(scale, static_cast<float>(coded.codes[d]), zero);
  }

  // --- 2. Half a step is lost at most, plus what rounding scale and zero to f16 costs.
  auto const [min, max] = std::minmax_element(key.begin(), key.end());
  for (int bits : {8, 4, 2, 1}) {
    diffkv::code_spec const spec{bits};
    diffkv::encode_vector(key.data(), head_dim, spec, coded);
    diffkv::decode_vector(coded, head_dim, spec, decoded.data());
    float const step  = to_f32(coded.groups[0].scale);
    float const bound = 0.5f * step + std::ldexp(std::fabs(*min) + (*max - *min), -10);
    float worst       = 0.0f;
    for (std::size_t d = 0; d < head_dim; ++d) {
      worst = std::fmax(worst, std::fabs(key[d] - decoded[d]));
    }
    int const bytes = head_dim * bits / 8 + spec.metadata_bytes();
    std::printf("%d bits: %3d bytes instead of %d, worst error %.4f, bound %.4f\n", bits, bytes,
                head_dim * 2, worst, bound);
    right = right && worst <= bound;
  }

  // --- 3. The large element stretches the range, so all others get few levels. What is large for
  // every token carries no information: take the offset away, and spread what is left evenly.
  vector offset{};  // [head_dim] f32: calibrated once per layer and head of a model
  offset[20]      = 12.0f;
  auto const both = diffkv::conditioning::centred | diffkv::conditioning::rotated;

  diffkv::encode_vector(key.data(), head_dim, four_bits, coded);
  diffkv::decode_vector(coded, head_dim, four_bits, decoded.data());
  float const plain_error = rms(key, decoded);

  vector conditioned = key;  // k' = R (k - c)
  diffkv::condition_key(conditioned.data(), offset.data(), head_dim, both);
  diffkv::encode_vector(conditioned.data(), head_dim, four_bits, coded);
  diffkv::decode_vector(coded, head_dim, four_bits, decoded.data());
  diffkv::rotate(decoded.data(), head_dim);  // R is its own inverse
  for (std::size_t d = 0; d < head_dim; ++d) { decoded[d] += offset[d]; }
  float const conditioned_error = rms(key, decoded);

  std::printf("rms error at 4 bits: %.4f, conditioned %.4f\n", plain_error, conditioned_error);
  right = right && conditioned_error < 0.6f * plain_error;

  std::puts(right ? "every answer is right" : "WRONG");
  return right ? 0 : 1;
}
