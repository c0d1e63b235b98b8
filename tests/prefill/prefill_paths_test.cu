// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

//! @file
//! Prompt attention and importance on both paths, that for all GPUs and that for Hopper: lengths
//! around its tiles, groups, chunks, and what is no number. Without code for sm_90a, or on another
//! GPU, both are the same.
#include <algorithm>
#include <cmath>

#include "prefill/prefill_case.cuh"

namespace {

using namespace diffkv;
using detail::prefill_path;
using test::check;
using test::prefill_case;

//! Lengths around blocks of 64, 128, 192 and 256 tokens.
std::vector<int> const edges{1, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 255, 256, 257};

template <class T>
void put(T& x, float value)
{
  from_f32(value, x);
}

__global__ void has_warpgroup_products_kernel(int* answer)
{
  *answer = DIFFKV_HAS_WARPGROUP_PRODUCTS;
}

//! A prompt of one sequence whose lse can be changed before importance is added.
template <int HeadDim>
class importance_of_lse {
 public:
  explicit importance_of_lse(int tokens) : tokens_{tokens}, x_{numbers(tokens)} {}
  //! The sums, where lse is `base` but for one query.
  [[nodiscard]] std::vector<float> sums(prefill_path path, importance_queries const& counted,
                                        int query, float lse) const
  {
    std::vector<float> all(static_cast<std::size_t>(tokens_), 3.0f);
    all[static_cast<std::size_t>(query)] = lse;
    test::device_array<float> const device_lse{all};
    test::device_array<float> const sums{all.size()};
    test::device_array<std::int64_t> const cuts{std::vector<std::int64_t>{0, tokens_}};
    test::device_stream const stream;
    prefill_batch batch{};
    batch.capacity      = 1;
    batch.first_queries = cuts.data();
    batch.num_queries   = tokens_;
    attention_options options{};
    options.scale = 0.125f;
    vectors<__half const> const q{x_.data(), 2 * HeadDim, HeadDim};
    vectors<__half const> const k{x_.data() + HeadDim, 2 * HeadDim, HeadDim};
    detail::add_importance<HeadDim>(path, {1, 1}, batch, options, counted, q, k, device_lse.data(),
                                    sums.data(), stream.get());
    stream.wait();
    return sums.to_host();
  }

 private:
  [[nodiscard]] static std::vector<__half> numbers(int tokens)
  {
    test::random numbers{29};
    std::vector<__half> x(static_cast<std::size_t>(tokens) * 2 * HeadDim);
    for (__half& each : x) { put(each, numbers.uniform(-1.0f, 1.0f)); }
    return x;
  }

  int tokens_;
  test::device_array<__half> x_;
};

//! By how much a differs from b beyond its share.
float apart(std::vector<float> const& a, std::vector<float> const& b, float share)
{
  float worst = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) {
    float const d = std::abs(a[i] - b[i]) - share * std::abs(b[i]);
    worst         = d <= worst ? worst : d;  // a NaN stays
  }
  return worst;
}

//! The two paths share none of their products, copies and orders of work.
template <int HeadDim>
void are_same_on_both_paths(prefill_case<HeadDim, __half> c)
{
  auto const fastest = c.run();
  c.path             = prefill_path::any_gpu;
  auto const any     = c.run();
  for (std::size_t s = 0; s < any.size(); ++s) {
    CAPTURE(HeadDim, s, c.lengths()[s]);
    CHECK(apart(fastest[s].out, any[s].out, 0.002f) < 1e-3f);
    CHECK(apart(fastest[s].lse, any[s].lse, 1e-6f) < 1e-4f);
    CHECK(apart(fastest[s].importances, any[s].importances, 1e-3f) < 1e-7f);
  }
}

}  // namespace

TEST_CASE("prefill_path: the host knows which code the program has for this GPU", "[prefill]")
{
  test::device_array<int> const answer{1};
  has_warpgroup_products_kernel<<<1, 1>>>(answer.data());
  check(cudaDeviceSynchronize(), "kernel");
  bool const has = answer.to_host()[0] != 0;
  CHECK(detail::has_hopper_body(detail::prefill_hopper_kernel<__half, 64>) == has);
  CHECK(detail::has_hopper_body(detail::prefill_hopper_kernel<__nv_bfloat16, 128>) == has);
  CHECK(detail::has_hopper_body(detail::importance_hopper_kernel<__half, 128, 64>) == has);
  CHECK(detail::has_hopper_body(detail::importance_hopper_kernel<__half, 64, 128>) == has);
}

TEST_CASE("prefill_path: both equal the host twin over lengths around their tiles", "[prefill]")
{
  prefill_case<64, __half>{{1, 2}, edges}.check();
  prefill_case<128, __half>{{2, 1}, edges}.check();
  prefill_case<128, __nv_bfloat16>{{1, 2}, edges}.check();
  prefill_case<64, __nv_bfloat16>{{1, 1}, edges}.check();
}

TEST_CASE("prefill_path: both equal the host twin for groups of any size", "[prefill]")
{
  for (std::uint32_t const group : {1u, 3u, 5u, 7u, 8u}) {
    CAPTURE(group);
    prefill_case<128, __half> c{{2, group}, {70, 1, 200}};
    c.check();
    c.counted = {64, 1};
    c.check();
  }
}

TEST_CASE("prefill_path: chunks of several prompts, and samples of their queries", "[prefill]")
{
  prefill_case<128, __half> c{{2, 2}, {333, 0, 193, 64, 1, 257}};
  for (int const chunk : {0, 50, 128, 190}) {
    for (importance_queries const counted :
         {importance_queries{0, 1}, importance_queries{64, 1}, importance_queries{0, 16},
          importance_queries{300, 3}, importance_queries{0, 1000}}) {
      CAPTURE(chunk, counted.last, counted.every);
      c.counted = counted;
      c.check(chunk);
    }
  }
}

TEST_CASE("prefill_path: a longer prompt moves its reference, whatever the reach", "[prefill]")
{
  for (float const reach : {0.01f, 4.0f, 60.0f}) {
    CAPTURE(reach);
    prefill_case<128, __half>{{1, 2}, {1000, 130}, reach}.check();
  }
}

TEST_CASE("prefill_path: what would take the host twin minutes is the same on both", "[prefill]")
{
  // More items than one round has; heads in two sections; an item a CTA, at once and in chunks.
  are_same_on_both_paths(prefill_case<64, __half>{{8, 4}, {3000, 700, 1, 300}});
  are_same_on_both_paths(prefill_case<128, __half>{{4, 1}, {20000}});
  prefill_case<128, __half> longest{{1, 1}, {131072}};
  are_same_on_both_paths(longest);
  CHECK(test::are_same_attention(longest.run(), longest.run(50000)));
}

TEST_CASE("prefill_path: bits depend neither on the run nor on the batch nor on chunks",
          "[prefill]")
{
  prefill_case<64, __half> c{{2, 2}, {400, 0, 193, 64, 1}};
  prefill_case<64, __half> alone{{2, 2}, {400}};  // the same numbers
  for (auto const path : {prefill_path::any_gpu, prefill_path::fastest}) {
    CAPTURE(static_cast<int>(path));
    c.path = alone.path = path;
    auto const whole    = c.run();
    auto const again    = c.run();
    CHECK(test::are_same_attention(again, whole));
    CHECK(test::are_same_importances(again, whole));
    auto const first = alone.run();
    CHECK(first[0].out == whole[0].out);
    CHECK(first[0].lse == whole[0].lse);
    CHECK(first[0].importances == whole[0].importances);
    for (int const chunk : {192, 129, 37}) {
      CAPTURE(chunk);
      CHECK(test::are_same_attention(c.run(chunk), whole));
    }
  }
}

TEST_CASE("prefill_path: what is no number shows where the host twin shows it", "[prefill]")
{
  for (float const what : {std::nanf(""), INFINITY}) {
    for (int const token : {0, 63, 64, 100, 127, 128, 190, 192, 255, 299}) {
      CAPTURE(what, token);
      prefill_case<128, __half> value{{2, 2}, {300, 40}};
      put(value.value(0, token, 1, 77), what);
      value.check();
      value.check(110);
    }
  }
  for (int const token : {5, 130, 299}) {
    CAPTURE(token);
    prefill_case<64, __nv_bfloat16> key{{1, 2}, {300, 40}};
    put(key.key(0, token, 0, 9), std::nanf(""));
    key.check();
    prefill_case<64, __nv_bfloat16> query{{1, 2}, {300, 40}};
    put(query.query(0, token, 1, 9), std::nanf(""));
    query.check();
  }
}

TEST_CASE("add_importance: probabilities that are not finite are left out", "[prefill]")
{
  constexpr int tokens = 300;
  importance_of_lse<128> const prompt{tokens};
  for (auto const path : {prefill_path::any_gpu, prefill_path::fastest}) {
    for (importance_queries const counted : {importance_queries{0, 1}, importance_queries{0, 7}}) {
      for (int const query : {tokens - 1, tokens - 1 - 7 * 20}) {
        CAPTURE(static_cast<int>(path), counted.every, query);
        // exp(x - inf) = 0: as if the query did not count.
        auto const without = prompt.sums(path, counted, query, INFINITY);
        CHECK(prompt.sums(path, counted, query, -INFINITY) == without);
        CHECK(prompt.sums(path, counted, query, std::nanf("")) == without);
        CHECK(prompt.sums(path, counted, query, -1e30f) == without);
        CHECK(std::all_of(without.begin(), without.end(),
                          [](float sum) { return std::isfinite(sum); }));
        CHECK(prompt.sums(path, counted, query, 3.0f) != without);
      }
    }
  }
}
