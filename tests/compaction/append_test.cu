// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! `append` on the device leaves what its host twin leaves: any element type, alignment and format.
#include <diffkv/policy/paper.hpp>

#include <algorithm>  // equal, fill_n
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/step_run.cuh"

namespace {

using namespace diffkv;
constexpr auto both = conditioning::centred | conditioning::rotated;

//! Steps and appends of a cache that only grows at first.
template <class Format, int HeadDim, conditioning Set, class T>
void compare(bool aligned, bool not_numbers, int score_every, std::uint64_t seed,
             bool no_queries = false)
{
  using config = static_config<paper_policy, Format, void, HeadDim, Set>;
  CAPTURE(HeadDim, aligned, not_numbers, score_every, seed);
  test::step_run_setup setup;
  setup.shape       = {3, 2, 3, 2, HeadDim, 120, 16, score_every};
  setup.num_pages   = 3 * 2 * 3 * 5;
  setup.aligned     = aligned;
  setup.not_numbers = not_numbers;
  setup.no_queries  = no_queries;
  test::step_run<config, T> run{setup, {}, {}, seed};
  run.live(60);
  CHECK(run.trouble() == "");
  CHECK(run.steps() > 20);
}

template <class T>
void compare_elements(std::uint64_t seed)
{
  for (bool aligned : {true, false}) {
    for (bool not_numbers : {true, false}) {
      compare<k8v4, 128, both, T>(aligned, not_numbers, 4, seed++);
      compare<k8v4, 128, conditioning::none, T>(aligned, not_numbers, 4, seed++);
      compare<k4v2, 64, conditioning::none, T>(aligned, not_numbers, 0, seed++);
    }
  }
}

}  // namespace

TEST_CASE("append: f32, f16 and bf16 vectors at any alignment become the host's bytes",
          "[compaction]")
{
  compare_elements<float>(1);
  compare_elements<__half>(101);
  compare_elements<__nv_bfloat16>(201);
}

TEST_CASE("append: every width is written as the host writes it", "[compaction]")
{
  compare<k16v16, 128, conditioning::centred, __half>(true, false, 1, 301);
  compare<k16v8, 128, conditioning::rotated, __half>(true, false, 2, 302);
  compare<k8v16, 64, both, __half>(true, false, 4, 303);
  compare<k8v2, 128, both, __half>(true, true, 4, 304);
  compare<k4v2, 128, both, __half>(true, true, 4, 312);
  compare<k4v2, 128, conditioning::none, __half>(false, true, 4, 313);
  compare<k8v4, 128, conditioning::centred, __half>(true, true, 4, 314);
  compare<k8v4, 128, conditioning::rotated, __half>(true, true, 4, 315);
  compare<format<8, 4, 2, 2>, 128, both, __half>(true, true, 4, 316);
  compare<k8v4, 64, both, __half>(true, true, 4, 317);
  compare<k4v1, 128, both, __half>(true, true, 4, 305);
  compare<k2v4, 64, both, __half>(true, true, 4, 306);
  compare<format<2, 1, 4, 4>, 128, both, __half>(true, true, 4, 307);
  compare<format<4, 2, 2, 2>, 80, both, float>(false, true, 4, 308);
  compare<format<8, 4, 2, 1>, 112, both, float>(true, true, 4, 309);
  compare<k4v8, 96, both, float>(true, true, 4, 310);
  compare<format<8, 4, 4, 2>, 256, both, float>(true, true, 4, 311);
}

TEST_CASE("append: without queries the lag ring is left alone", "[compaction]")
{
  compare<k8v4, 128, both, __half>(true, false, 4, 401, true);
  compare<k8v4, 64, both, float>(false, false, 2, 402, true);
}

TEST_CASE("append: sequences behind the count and refused ones are left alone",
          "[compaction][small]")
{
  using config = static_config<paper_policy, k8v4, void, 64>;
  test::host_cache_parts parts;
  parts.shape     = {3, 1, 1, 1, 64, 120, 16, 1};
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 8;
  test::host_cache cache{parts};
  for (std::size_t row = 0; row < 3; ++row) {
    test::reserve_row(cache.context(), row, {5, 0});
    cache.ref().state.rows[row].append_slot = row == 1 ? no_slot : 4;  // row 1 was refused
    cache.ref().layer(static_cast<std::uint32_t>(row), 0).num_tokens = 5;
  }
  test::device_cache const device{cache.ref(), 1};
  test::device_array<std::uint32_t> const slots{std::vector<std::uint32_t>{0, 1, 2}};
  test::device_array<std::uint32_t> const count{std::vector<std::uint32_t>{2}};
  std::vector<float> const x = test::random{3}.floats(3 * 64, -1.0f, 1.0f);
  test::device_array<float> const vectors_of_batch{x};
  auto const v = packed(static_cast<float const*>(vectors_of_batch.data()), 1, 64);
  test::device_stream const stream;
  append<config>(device.ref(), {slots.data(), count.data(), 3}, 0, v, v, v, stream.get());
  stream.wait();

  std::uint32_t const first = 0;
  auto const on_host        = packed(x.data(), 1, 64);
  host::append(cache.context(), &first, 1, 0, on_host, on_host, on_host);
  test::host_cache answer{parts};
  device.download(answer.ref());
  CHECK(test::difference_of(cache.ref(), answer.ref()) == "");
}

TEST_CASE("append: queries with elements that are not finite leave the host's codes",
          "[compaction][small]")
{
  using config                        = static_config<paper_policy, k8v4, void, 64>;
  constexpr std::uint32_t num_queries = 6;
  test::host_cache_parts parts;
  parts.shape     = {num_queries, 1, 1, 1, 64, 120, 16, 1};
  parts.tiers     = config::layouts::pages;
  parts.num_pages = 8;
  test::host_cache cache{parts};
  std::vector<std::uint32_t> all(num_queries);
  for (std::uint32_t slot = 0; slot < num_queries; ++slot) {
    test::reserve_row(cache.context(), slot, {5, 0});
    cache.ref().state.rows[slot].append_slot = 4;
    cache.ref().layer(slot, 0).num_tokens    = 5;
    all[slot]                                = slot;
  }
  test::random r{4};
  std::vector<float> const x = r.floats(num_queries * 64, -1.0f, 1.0f);
  std::vector<float> q       = r.floats(num_queries * 64, -1.0f, 1.0f);
  float const nan            = std::numeric_limits<float>::quiet_NaN();
  q[7]                       = nan;
  q[63]                      = 8.0f;  // behind it, and larger
  q[64 + 3]                  = detail::infinity;
  q[2 * 64 + 60]             = -detail::infinity;
  q[3 * 64 + 5]              = std::numeric_limits<float>::max();
  std::fill_n(q.begin() + 4 * 64, 64, 0.0f);
  q[5 * 64]     = detail::infinity;
  q[5 * 64 + 1] = nan;

  test::device_cache const device{cache.ref(), 1};
  test::device_array<std::uint32_t> const slots{all};
  test::device_array<float> const vectors_of_batch{x}, queries_of_batch{q};
  auto const v       = packed(static_cast<float const*>(vectors_of_batch.data()), 1, 64);
  auto const v_query = packed(static_cast<float const*>(queries_of_batch.data()), 1, 64);
  test::device_stream const stream;
  append<config>(device.ref(), {slots.data(), nullptr, num_queries}, 0, v, v, v_query,
                 stream.get());
  stream.wait();

  auto const on_host = packed(x.data(), 1, 64);
  host::append(cache.context(), all.data(), num_queries, 0, on_host, on_host,
               packed(static_cast<float const*>(q.data()), 1, 64));
  test::host_cache answer{parts};
  device.download(answer.ref());
  for (std::uint32_t slot = 0; slot < num_queries; ++slot) {
    CAPTURE(slot);
    query_ring_ref const& expected = cache.ref().queries;
    query_ring_ref const& found    = answer.ref().queries;
    std::size_t const i            = expected.index(slot, 4, 0);
    CHECK(std::equal(expected.codes_of(i), expected.codes_of(i) + 64, found.codes_of(i)));
    bool const both_nan = std::isnan(expected.largest[i]) && std::isnan(found.largest[i]);
    CHECK((both_nan || expected.largest[i] == found.largest[i]));
  }
  CHECK(std::isnan(answer.ref().queries.largest[answer.ref().queries.index(0, 4, 0)]));
}
