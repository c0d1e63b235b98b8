// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/round_trip.hpp"
#include "reference/plain_codec.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>

namespace {

using diffkv::code_spec;
using diffkv::coded_vector;
using diffkv::test::all_specs;
using diffkv::test::all_vectors;
using diffkv::test::decode;
using diffkv::test::describe;
using diffkv::test::encode;
using diffkv::test::round_trip;

bool same_bytes(coded_vector const& got, diffkv::test::plain_codes const& want)
{
  for (std::size_t d = 0; d < want.codes.size(); ++d) {
    if (got.codes[d] != want.codes[d]) { return false; }
  }
  for (std::size_t g = 0; g < want.groups.size(); ++g) {
    if (static_cast<std::uint16_t>(got.groups[g].scale) != want.groups[g].scale) { return false; }
    if (static_cast<std::uint16_t>(got.groups[g].zero) != want.groups[g].zero) { return false; }
  }
  return true;
}

}  // namespace

TEST_CASE("vector_codec: bytes and values are those of the written definition", "[quant]")
{
  int const head_dim = GENERATE(64, 96, 128, 80);
  CAPTURE(head_dim);
  for (auto const& v : all_vectors(head_dim)) {
    for (code_spec const spec : all_specs(head_dim)) {
      auto const want = diffkv::test::plain_encode(v.x, spec.bits, spec.groups, spec.clip);
      auto const got  = encode(v.x, spec);
      if (!same_bytes(got, want)) { FAIL_CHECK(v.name << ": codes differ, " << describe(spec)); }
      if (decode(got, v.x.size(), spec) != diffkv::test::plain_decode(want)) {
        FAIL_CHECK(v.name << ": values differ, " << describe(spec));
      }
    }
  }
  SUCCEED();
}

TEST_CASE("vector_codec: every element comes back within the stated bound", "[quant]")
{
  int const head_dim = GENERATE(64, 96, 128);
  CAPTURE(head_dim);
  for (auto const& v : all_vectors(head_dim)) {
    for (code_spec const spec : all_specs(head_dim)) {
      auto const back    = round_trip(v.x, spec);
      auto const per     = v.x.size() / static_cast<std::size_t>(spec.groups);
      double worst_share = 0.0;
      for (std::size_t first = 0; first < v.x.size(); first += per) {
        std::vector<double> x;
        for (std::size_t d = first; d < first + per; ++d) {
          x.push_back(std::clamp(double{v.x[d]}, -65504.0, 65504.0));
        }
        auto const [min, max] = std::minmax_element(x.begin(), x.end());
        double const bound    = diffkv::test::codec_bound(*min, *max, spec.bits, spec.clip);
        for (std::size_t i = 0; i < per; ++i) {
          worst_share = std::max(worst_share, std::fabs(back[first + i] - x[i]) / bound);
        }
      }
      if (!(worst_share <= 1.0)) {
        FAIL_CHECK(v.name << ": " << worst_share << " of the bound, " << describe(spec));
      }
    }
  }
  SUCCEED();
}

TEST_CASE("vector_codec: the bound is not idle, some vector comes near it at every width",
          "[quant]")
{
  for (int const bits : {1, 2, 4, 8}) {
    for (float const clip : {1.0f, 0.8f}) {
      double share = 0.0;
      for (auto const& v : diffkv::test::random_vectors(128, 64, 32)) {
        auto const back       = round_trip(v.x, {bits, 1, clip});
        auto const [min, max] = std::minmax_element(v.x.begin(), v.x.end());
        double const bound    = diffkv::test::codec_bound(*min, *max, bits, clip);
        for (std::size_t d = 0; d < v.x.size(); ++d) {
          share = std::max(share, std::fabs(double{back[d]} - v.x[d]) / bound);
        }
      }
      CAPTURE(bits, clip, share);
      CHECK(share > 0.9);
    }
  }
}

TEST_CASE("vector_codec: groups are coded as vectors of their own", "[quant]")
{
  for (int const groups : {2, 4}) {
    for (auto const& v : diffkv::test::random_vectors(128, 8, 33)) {
      code_spec const spec{4, groups, 0.8f};
      auto const whole = encode(v.x, spec);
      int const per    = 128 / groups;
      for (int g = 0; g < groups; ++g) {
        coded_vector part{};
        diffkv::encode_vector(v.x.data() + g * per, per, {4, 1, 0.8f}, part);
        CHECK(part.groups[0].scale == whole.groups[g].scale);
        CHECK(part.groups[0].zero == whole.groups[g].zero);
        CHECK(std::equal(part.codes, part.codes + per, whole.codes + g * per));
      }
    }
  }
}

TEST_CASE("vector_codec: requantising errs by no more than both bounds together", "[quant]")
{
  for (int const to : {4, 2, 1}) {
    for (float const clip : {1.0f, 0.8f}) {
      for (auto const& v : diffkv::test::random_vectors(128, 24, 34)) {
        auto const once   = round_trip(v.x, {8});
        auto const twice  = round_trip(once, {to, 1, clip});
        auto const [a, b] = std::minmax_element(v.x.begin(), v.x.end());
        auto const [c, d] = std::minmax_element(once.begin(), once.end());
        double const bound =
          diffkv::test::codec_bound(*a, *b, 8, 1.0) +
          diffkv::test::codec_bound(std::clamp(double{*c}, -65504.0, 65504.0),
                                    std::clamp(double{*d}, -65504.0, 65504.0), to, clip);
        for (std::size_t i = 0; i < 128; ++i) {
          if (!(std::fabs(double{twice[i]} - v.x[i]) <= bound)) { FAIL(v.name << ", lane " << i); }
        }
      }
    }
  }
  std::vector<float> ramp(128);
  for (std::size_t d = 0; d < 128; ++d) { ramp[d] = static_cast<float>(d) / 127; }
  auto const key   = round_trip(round_trip(ramp, {8}), {4});
  auto const value = round_trip(round_trip(ramp, {4}), {2});
  for (std::size_t d = 0; d < 128; ++d) {
    CHECK(std::fabs(key[d] - ramp[d]) <= 0.037f);
    CHECK(std::fabs(value[d] - ramp[d]) <= 0.201f);
  }
  CHECK(round_trip(round_trip(std::vector<float>(128, 5.0f), {8}), {2}) ==
        std::vector<float>(128, 5.0f));
}
