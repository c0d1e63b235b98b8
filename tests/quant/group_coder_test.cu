// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! The division in four operations gives the code of the IEEE division, above all beside and on the
//! middle between two codes.
#include <diffkv/quant/group_coder.cuh>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/hash.cuh"

namespace {

using diffkv::test::hash;

struct mismatch {
  unsigned count;
  float x, scale, zero;
  unsigned code, expected;
};

//! Thread i takes the scale of bits i mod 2^15, so that every one is met.
template <int Bits>
__global__ void compare_kernel(mismatch* wrong)
{
  std::uint32_t const i  = blockIdx.x * blockDim.x + threadIdx.x;
  auto const scale_bits  = static_cast<diffkv::f16_bits>(i & 0x7FFFu);
  std::uint32_t const r  = hash(i);
  auto const zero_bits   = static_cast<diffkv::f16_bits>((i >> 15) % 4 == 0 ? 0u : r >> 16);
  float const scale      = diffkv::to_f32(scale_bits);
  float const zero       = diffkv::to_f32(zero_bits);
  bool const is_number   = diffkv::detail::is_finite(scale) && diffkv::detail::is_finite(zero);
  diffkv::affine const a = is_number ? diffkv::affine{scale_bits, zero_bits}
                                     : diffkv::affine{diffkv::f16_nan, diffkv::f16_nan};
  diffkv::group_coder<Bits> const coder{a};
  constexpr std::uint32_t max_code = (1u << Bits) - 1u;
  for (std::uint32_t n = 0; n < 64; ++n) {
    std::uint32_t const s = hash(r + n);
    float const steps     = n % 2 == 0 ? static_cast<float>(s % (max_code + 1u)) + 0.5f
                                       : static_cast<float>(s >> 8) * 0x1p-24f * (max_code + 1.5f);
    float x               = is_number ? fmaf(steps, scale, zero) : __uint_as_float(s);
    x                     = __uint_as_float(__float_as_uint(x) + s % 5 - 2);
    if (is_number) { x = diffkv::codec_input(x); }
    if (is_number && !diffkv::detail::is_finite(x)) { continue; }
    std::uint32_t const code     = coder(x) & 0xFFFFu;
    std::uint32_t const expected = is_number ? diffkv::affine_code(x, scale, zero, max_code) : 0u;
    if (code != expected && atomicAdd(&wrong->count, 1u) == 0) {
      *wrong = {1, x, scale, zero, code, expected};
    }
  }
}

template <int Bits>
void check_all_scales()
{
  mismatch const none{};
  diffkv::test::device_stream stream;
  diffkv::test::device_array<mismatch> const wrong{&none, 1};
  compare_kernel<Bits><<<8192, 256, 0, stream.get()>>>(wrong.data());
  stream.wait();
  mismatch const found = wrong.to_host()[0];
  CAPTURE(Bits, found.x, found.scale, found.zero, found.code, found.expected);
  CHECK(found.count == 0);
}

}  // namespace

TEST_CASE("group_coder: every scale gives the codes of affine_code", "[quant]")
{
  check_all_scales<1>();
  check_all_scales<2>();
  check_all_scales<4>();
  check_all_scales<8>();
}
