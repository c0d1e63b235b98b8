// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Key offsets found on the device equal those of the host twin, and are the mean.
#include <diffkv/compaction/calibrate.cuh>
#include <diffkv/host/calibrate.hpp>

#include <cstring>  // memcmp
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/difference.hpp"
#include "support/random.hpp"

using namespace diffkv;

TEMPLATE_TEST_CASE("calibrate_key_offsets: device and host find the same means",
                   "[compaction][small]", float, __half, __nv_bfloat16)
{
  constexpr std::uint32_t num_layers = 3;
  constexpr std::uint32_t num_heads  = 2;
  constexpr std::int32_t head_dim    = 80;
  for (std::int32_t const tokens : {1, 255, 256, 257, 1000}) {
    CAPTURE(tokens);
    test::random r{static_cast<std::uint64_t>(tokens)};
    constexpr std::ptrdiff_t stride = head_dim + 3;
    std::ptrdiff_t const layer      = tokens * std::ptrdiff_t{num_heads} * stride;
    std::vector<TestType> keys(static_cast<std::size_t>(num_layers * layer));
    for (auto& x : keys) { from_f32(r.uniform(-3.0f, 5.0f), x); }
    from_f32(std::numeric_limits<float>::quiet_NaN(), keys[7]);
    from_f32(std::numeric_limits<float>::infinity(), keys[8]);
    std::vector<float> expected(std::size_t{num_layers} * num_heads * head_dim);
    for (std::uint32_t l = 0; l < num_layers; ++l) {
      host::calibrate_key_offsets(
        vectors<TestType const>{keys.data() + l * layer, num_heads * stride, stride}, tokens,
        num_heads, head_dim, expected.data() + std::size_t{l} * num_heads * head_dim);
    }
    if (tokens == 1) { CHECK(expected[7] == 0.0f); }  // nothing was summed
    double sum = 0.0;
    for (std::int32_t i = 0; i < tokens; ++i) {
      sum += static_cast<double>(to_f32(keys[static_cast<std::size_t>(i * num_heads * stride)]));
    }
    CHECK(test::difference(expected[0], sum / tokens) <= 1e-6);

    test::device_array<TestType> const device_keys{keys};
    test::device_array<float> const offsets(expected.size());
    calibration_keys<TestType> const of{{device_keys.data(), num_heads * stride, stride},
                                        layer,
                                        num_layers,
                                        num_heads,
                                        tokens,
                                        head_dim};
    std::size_t const bytes = calibrate_workspace_bytes(of);
    test::device_array<std::uint64_t> const workspace(bytes / 8);
    test::device_stream stream;
    calibrate_key_offsets(of, offsets.data(), workspace.data(), bytes, stream.get());
    stream.wait();
    CHECK(std::memcmp(offsets.to_host().data(), expected.data(), expected.size() * sizeof(float)) ==
          0);
  }
}

TEST_CASE("calibrate_key_offsets: arguments that cannot be are refused", "[compaction]")
{
  calibration_keys<__half> keys{{}, 0, 1, 1, 0, 64};
  CHECK_THROWS_WITH(calibrate_key_offsets(keys, nullptr, nullptr, 1024, nullptr),
                    test::contains("num_tokens"));
  keys.num_tokens = 10;
  CHECK_THROWS_WITH(calibrate_key_offsets(keys, nullptr, nullptr, 8, nullptr),
                    test::contains("workspace"));
  keys.head_dim = 300;
  CHECK_THROWS_WITH(calibrate_key_offsets(keys, nullptr, nullptr, 1 << 20, nullptr),
                    test::contains("head_dim"));
}
