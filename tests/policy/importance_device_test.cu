// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Importance on the device, which is computed without a division, is the quotient that the host rounds.
#include <diffkv/policy/importance.hpp>

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/hash.cuh"

namespace {

using namespace diffkv;
using diffkv::test::device_array;
using diffkv::test::device_stream;
using diffkv::test::hash;

struct mismatch {
  unsigned count = 0;
  float score    = 0.0f;
  int queries    = 0;
  float found    = 0.0f;
  float expected = 0.0f;
};

//! Counts from here on may have a reciprocal midway between two floats.
constexpr int first_hard_count = (1 << 24) - 3;

//! A score whose quotient lies beside the middle between two floats, by s / b units for the odd part b of the
//! count; 0 if there is none.
//! @param s  odd, small
__device__ float score_beside_tie(std::uint32_t random, int count, int s)
{
  std::uint32_t const b = static_cast<std::uint32_t>(count) >> (__ffs(count) - 1);
  int const bits        = 33 - __clz(static_cast<int>(b));  // of 2 b
  std::uint32_t inverse = b;                                // of b, modulo 2^32
  for (int i = 0; i < 5; ++i) { inverse *= 2u - b * inverse; }
  // The middle, of 25 bits: b * middle + s is a multiple of 2^bits.
  std::uint32_t const low    = static_cast<std::uint32_t>(-s) * inverse & ((1u << bits) - 1u);
  std::uint32_t const middle = ((random | 1u << 24) & 0x1FF'FFFFu & ~((1u << bits) - 1u)) | low;
  if (middle >> 24 != 1u) { return 0.0f; }
  std::int64_t const multiple = static_cast<std::int64_t>(b) * middle + s;
  return ldexpf(static_cast<float>(multiple >> bits), static_cast<int>(random % 64) - 48);
}

//! Any f32, the product of the count and a quotient, or beside a tie.
__device__ float score_like(std::uint32_t random, int count)
{
  if (random % 4 == 0) { return __uint_as_float(hash(random + 1)); }
  std::uint32_t const other = hash(random + 2);
  if (random % 4 == 1) {
    float const product =
      __fmul_rn(static_cast<float>(other >> 8) * 0x1p-24f, static_cast<float>(count));
    return __uint_as_float(__float_as_uint(product) + other % 3 - 1);
  }
  constexpr int distances[]{-3, -1, 1, 3};
  return score_beside_tie(other, count, distances[random / 4 % 4]);
}

//! Thread i takes the count i + 1, and others of any size.
__global__ void compare_kernel(int each, mismatch* wrong)
{
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  for (std::uint32_t n = 0; n < static_cast<std::uint32_t>(each); ++n) {
    std::uint32_t const random = hash(i * 0x9E37'79B9u + n);
    std::uint32_t const other  = hash(random) >> (8 + random % 23);
    int const count      = static_cast<int>(n % 2 == 0 ? i : other) % (first_hard_count - 1) + 1;
    float const score    = score_like(random, count);
    float const found    = importance_of(score, count);
    float const expected = __fdiv_rn(score, static_cast<float>(count)) + 0.0f;  // -0 is 0
    bool const subnormal = fabsf(expected) < 0x1p-126f;
    bool const is_same   = subnormal ? fabsf(found - expected) <= 0x1p-149f
                                     : __float_as_uint(found) == __float_as_uint(expected);
    bool const both_nan  = isnan(found) && isnan(expected);
    if (!is_same && !both_nan && atomicAdd(&wrong->count, 1u) == 0) {
      *wrong = {1, score, count, found, expected};
    }
  }
}

__global__ void divide_kernel(float const* scores, int count, int queries, float* out)
{
  int const i = static_cast<int>(threadIdx.x);
  if (i < count) { out[i] = importance_of(scores[i], queries); }
}

void check_counts(unsigned blocks, int each)
{
  mismatch const none{};
  device_stream stream;
  device_array<mismatch> const wrong{&none, 1};
  compare_kernel<<<blocks, 256, 0, stream.get()>>>(each, wrong.data());
  stream.wait();
  mismatch const first = wrong.to_host()[0];
  CAPTURE(first.score, first.queries, first.found, first.expected);
  CHECK(first.count == 0);
}

}  // namespace

TEST_CASE("importance: the device rounds the quotient as the host does", "[policy]")
{
  check_counts(4096, 64);  // every count up to 2^20
}

TEST_CASE("importance: a few quotients, small enough for compute-sanitizer", "[policy][small]")
{
  check_counts(4, 16);
}

TEST_CASE("importance: scores that are no usual numbers", "[policy][small]")
{
  std::vector<float> const scores{0.0f,
                                  -0.0f,
                                  0x1p-149f,
                                  0x1p-126f,
                                  0x1p23f,
                                  0x1.fffffep127f,
                                  detail::infinity,
                                  -detail::infinity,
                                  detail::not_a_number};
  device_array<float> const in{scores};
  device_array<float> const out{scores.size()};
  device_stream stream;
  for (int const count : {1, 3, 4096, (1 << 24) - 1, 0x7FFF'FFFF}) {
    divide_kernel<<<1, 32, 0, stream.get()>>>(in.data(), static_cast<int>(scores.size()), count,
                                              out.data());
    stream.wait();
    std::vector<float> const found = out.to_host();
    for (std::size_t i = 0; i < scores.size(); ++i) {
      CAPTURE(count, scores[i], found[i]);
      float const expected = importance_of(scores[i], count);
      if (std::isnan(expected)) {
        CHECK(std::isnan(found[i]));
      } else if (std::isinf(expected)) {
        CHECK(found[i] == expected);
      } else {
        CHECK(std::signbit(found[i]) == std::signbit(expected));
        float const unit = std::nextafter(expected, detail::infinity) - expected;
        bool const exact = count < first_hard_count && expected >= 0x1p-126f;
        CHECK(std::fabs(found[i] - expected) <= (exact ? 0.0f : unit));
      }
    }
  }
}
