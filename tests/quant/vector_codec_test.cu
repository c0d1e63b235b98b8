// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The codec and the conditioning are one definition: device and host agree bit for bit.
#include <diffkv/core/half.hpp>
#include <diffkv/quant/conditioning.hpp>
#include <diffkv/quant/vector_codec.hpp>

#include <cstring>  // memcmp
#include <limits>
#include <random>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"

namespace {

using diffkv::code_spec;
using diffkv::coded_vector;
using diffkv::conditioning;

//! One thread encodes one vector: [count, head_dim] in, codes and decoded values out.
template <class T>
DIFFKV_HOST_DEVICE void encode_one(T const* x, float const* offset, int head_dim, code_spec spec,
                                   conditioning set, coded_vector& coded, float* decoded)
{
  float work[diffkv::max_head_dim];
  for (int d = 0; d < head_dim; ++d) { work[d] = diffkv::to_f32(x[d]); }
  diffkv::condition_key(work, offset, head_dim, set);
  coded = coded_vector{};
  diffkv::encode_vector(work, head_dim, spec, coded);
  diffkv::decode_vector(coded, head_dim, spec, decoded);
}

template <class T>
__global__ void encode_kernel(T const* x, float const* offset, int count, int head_dim,
                              code_spec spec, conditioning set, coded_vector* coded, float* decoded)
{
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) { return; }
  encode_one(x + i * head_dim, offset, head_dim, spec, set, coded[i], decoded + i * head_dim);
}

//! Bell-shaped vectors of many sizes, then the nasty ones.
std::vector<float> make_vectors(int count, int head_dim)
{
  std::mt19937 engine{20261129};
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent{-24, 17};
  float const inf = std::numeric_limits<float>::infinity();
  float const nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(static_cast<std::size_t>(count) * static_cast<std::size_t>(head_dim));
  for (int i = 0; i < count; ++i) {
    float* v          = x.data() + static_cast<std::ptrdiff_t>(i) * head_dim;
    float const scale = std::ldexp(1.0f, exponent(engine));
    float const shift = i % 3 == 0 ? 10.0f * scale : 0.0f;
    for (int d = 0; d < head_dim; ++d) { v[d] = shift + scale * normal(engine); }
    int const last = head_dim - 1;
    switch (i % 16) {
      case 1:
        for (int d = 0; d < head_dim; ++d) { v[d] = 0.3f; }
        break;
      case 2:
        for (int d = 0; d < head_dim; ++d) { v[d] = d % 2 == 0 ? -0.0f : 0.0f; }
        break;
      case 3:
        for (int d = 0; d < head_dim; ++d) { v[d] = d % 2 == 0 ? 1.0f : 1.0009765625f; }
        break;
      case 4:
        v[0] = -125000.0f;
        break;
      case 5:
        v[last] = 3.0e38f;
        break;
      case 6:
        v[3] = nan;
        break;
      case 7:
        v[last] = inf;
        break;
      case 8:
        v[0] = -inf;
        break;
      case 9:
        for (int d = 0; d < head_dim; ++d) { v[d] = d % 2 == 0 ? 0.0f : 22 * 0x1p-24f; }
        break;
      case 10:
        for (int d = 0; d < head_dim; ++d) { v[d] = 0.5f * static_cast<float>(d % 16) - 4.0f; }
        break;
      case 11:
        for (int d = 0; d < head_dim; ++d) { v[d] = static_cast<float>(d % 32) * 0.25f; }
        break;
      default:
        break;
    }
  }
  return x;
}

template <class T>
void compare(int head_dim, code_spec spec, conditioning set)
{
  constexpr int count            = 512;
  std::vector<float> const exact = make_vectors(count, head_dim);
  std::vector<T> x(exact.size());
  for (std::size_t i = 0; i < x.size(); ++i) { diffkv::from_f32(exact[i], x[i]); }
  std::vector<float> offset(static_cast<std::size_t>(head_dim));
  for (int d = 0; d < head_dim; ++d) {
    offset[static_cast<std::size_t>(d)] = 0.1f * static_cast<float>(d) - 3.0f;
  }

  std::vector<coded_vector> coded(count);
  std::vector<float> decoded(x.size());
  for (int i = 0; i < count; ++i) {
    encode_one(x.data() + static_cast<std::ptrdiff_t>(i) * head_dim, offset.data(), head_dim, spec,
               set, coded[static_cast<std::size_t>(i)],
               decoded.data() + static_cast<std::ptrdiff_t>(i) * head_dim);
  }

  diffkv::test::device_stream stream;
  diffkv::test::device_array<T> const device_x{x};
  diffkv::test::device_array<float> const device_offset{offset};
  diffkv::test::device_array<coded_vector> const device_coded{count};
  diffkv::test::device_array<float> const device_decoded{x.size()};
  encode_kernel<<<(count + 127) / 128, 128, 0, stream.get()>>>(
    device_x.data(), device_offset.data(), count, head_dim, spec, set, device_coded.data(),
    device_decoded.data());
  stream.wait();

  std::vector<coded_vector> const got = device_coded.to_host();
  std::vector<float> const values     = device_decoded.to_host();
  int different                       = 0;
  for (int i = 0; i < count; ++i) {
    auto const at = static_cast<std::size_t>(i);
    // A NaN element of a 16-bit vector may carry any payload; codes and metadata may not differ.
    bool same = std::memcmp(coded[at].groups, got[at].groups, sizeof got[at].groups) == 0;
    for (int d = 0; d < head_dim; ++d) {
      float const a =
        decoded[at * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(d)];
      float const b = values[at * static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(d)];
      bool const both_nan = diffkv::detail::is_nan(a) && diffkv::detail::is_nan(b);
      same = same && (both_nan || diffkv::detail::float_bits(a) == diffkv::detail::float_bits(b)) &&
             (spec.bits == 16 ? both_nan || coded[at].codes[d] == got[at].codes[d]
                              : coded[at].codes[d] == got[at].codes[d]);
    }
    different += same ? 0 : 1;
  }
  CHECK(different == 0);
}

}  // namespace

TEST_CASE("vector_codec: device and host write the same codes and metadata, bit for bit", "[quant]")
{
  for (int head_dim : {64, 80, 96, 112, 128, 256}) {
    for (int bits : {1, 2, 4, 8, 16}) {
      for (int groups : {1, 2, 4}) {
        code_spec spec{bits, groups, bits <= 2 ? 0.8f : 1.0f};
        if (!diffkv::is_legal(spec, head_dim)) { continue; }
        CAPTURE(head_dim, bits, groups);
        compare<float>(head_dim, spec, conditioning::none);
        compare<__half>(head_dim, spec, conditioning::centred | conditioning::rotated);
        compare<__nv_bfloat16>(head_dim, spec, conditioning::rotated);
      }
    }
  }
}
