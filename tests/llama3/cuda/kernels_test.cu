// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! The kernels between matrix products and attention compute what the functions of the CPU loop do.
#include "llama3/cuda/half.hpp"
#include "llama3/cuda/kernels.hpp"
#include "llama3/rms_norm.hpp"
#include "llama3/rope.hpp"
#include "llama3/swiglu.hpp"

#include <algorithm>  // max
#include <cmath>      // abs, isnan
#include <cstring>    // memcmp
#include <limits>
#include <stdexcept>  // invalid_argument
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/random.hpp"

namespace {
using diffkv::test::device_array;
using diffkv::test::device_stream;
using diffkv::test::random;
using llama3::head_counts;
using llama3::token_id;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity  = std::numeric_limits<float>::infinity();
constexpr int guard       = 16;  // elements behind each result that nobody may write

std::size_t size_of(int rows, int columns)
{
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

std::vector<__half> to_half(std::vector<float> const& values)
{
  std::vector<__half> out;
  for (float const x : values) { out.push_back(llama3::saturated_half(x)); }
  return out;
}

std::vector<float> to_float(std::vector<__half> const& values)
{
  std::vector<float> out;
  for (__half const x : values) { out.push_back(__half2float(x)); }
  return out;
}

//! `size` elements on the device with `guard` more behind, all poisoned; `shift` elements off the
//! alignment of the allocation.
template <class T>
class result {
 public:
  explicit result(std::size_t size, int shift = 0)
    : array_{size + static_cast<std::size_t>(guard + shift)}, size_{size}, shift_{shift}
  {}
  [[nodiscard]] T* data() const { return array_.data() + shift_; }
  //! The elements, after a check that the others are as they were.
  [[nodiscard]] std::vector<T> get() const
  {
    std::vector<T> const all = array_.to_host();
    std::vector<unsigned char> const poison(all.size() * sizeof(T), 0xFF);
    auto const begin = static_cast<std::size_t>(shift_), end = begin + size_;
    CHECK(std::memcmp(all.data(), poison.data(), begin * sizeof(T)) == 0);
    CHECK(std::memcmp(all.data() + end, poison.data(), (all.size() - end) * sizeof(T)) == 0);
    return {all.begin() + shift_, all.end() - guard};
  }

 private:
  device_array<T> array_;
  std::size_t size_;
  int shift_;
};

//! Like `from`, `shift` elements off the alignment of the allocation.
template <class T>
class input {
 public:
  explicit input(std::vector<T> from, int shift = 0) : array_{shifted(from, shift)}, shift_{shift}
  {}
  [[nodiscard]] T* data() const { return array_.data() + shift_; }

 private:
  static std::vector<T> shifted(std::vector<T> from, int shift)
  {
    from.insert(from.begin(), static_cast<std::size_t>(shift), T{});
    return from;
  }
  device_array<T> array_;
  int shift_;
};

//! Elements that are not the expected ones rounded to f16 and saturated, give or take `slack`: what
//! f32 loses on the way.
int num_wrong(std::vector<__half> const& got, std::vector<double> const& expected, double slack)
{
  constexpr double half_ulp = 0x1p-11, half_step = 0x1p-25, largest = 65504.0;
  int wrong = got.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    double const x = __half2float(got[i]);
    double const y = std::max(-largest, std::min(largest, expected[i]));
    bool const ok  = std::isnan(expected[i])
                       ? std::isnan(x)
                       : std::abs(x - y) <= std::abs(y) * (half_ulp + 4e-6) + half_step + slack;
    wrong += ok ? 0 : 1;
  }
  return wrong;
}

void check_rms_norm(int num_tokens, int width, int shift, float scale)
{
  CAPTURE(num_tokens, width, shift, scale);
  random r{static_cast<std::uint64_t>(width + 100 * num_tokens + shift)};
  constexpr float epsilon = 1e-5f;
  auto x                  = r.floats(size_of(num_tokens, width), -scale, scale);
  auto const weight       = r.floats(size_of(1, width), -2.0f, 2.0f);
  if (num_tokens > 2) { x[size_of(1, width)] = nan_value; }  // its token only

  std::vector<double> expected;
  for (int t = 0; t < num_tokens; ++t) {
    std::vector<float> row(size_of(1, width));
    llama3::rms_norm(x.data() + size_of(t, width), weight.data(), row.size(), epsilon, row.data());
    expected.insert(expected.end(), row.begin(), row.end());
  }
  device_stream const stream;
  input<float> const device_x{x, shift}, device_weight{weight, shift};
  result<__half> const out{x.size(), shift};
  llama3::rms_norm(device_x.data(), device_weight.data(), num_tokens, width, epsilon, out.data(),
                   stream.get());
  stream.wait();
  CHECK(num_wrong(out.get(), expected, 0.0) == 0);
}

void check_split_and_rotate(head_counts const& heads, int num_tokens, int shift, bool with_bias,
                            float scale)
{
  CAPTURE(heads.num_q_heads, heads.num_heads, heads.head_dim, num_tokens, shift, with_bias, scale);
  constexpr int max_positions = 300;
  random r{static_cast<std::uint64_t>(heads.head_dim + num_tokens)};
  llama3::rope_parameters parameters;
  parameters.head_dim = heads.head_dim;
  llama3::rope const rope{parameters};
  int const rows = heads.qkv_rows(), dim = heads.head_dim, half = dim / 2;

  std::vector<float> cosines(size_of(1, half)), sines(size_of(1, half));
  std::vector<float2> angles;
  for (int position = 0; position < max_positions; ++position) {
    rope.angles(position, cosines.data(), sines.data());
    for (std::size_t i = 0; i < cosines.size(); ++i) { angles.push_back({cosines[i], sines[i]}); }
  }
  auto const qkv  = r.floats(size_of(num_tokens, rows), -scale, scale);
  auto const bias = r.floats(size_of(1, rows), -3.0f, 3.0f);
  std::vector<std::int32_t> positions;
  for (int t = 0; t < num_tokens; ++t) { positions.push_back(r.between(0, max_positions - 1)); }
  positions[0] = max_positions - 1;

  std::vector<double> q, k, v;
  for (int t = 0; t < num_tokens; ++t) {
    auto const position       = static_cast<std::size_t>(positions[static_cast<std::size_t>(t)]);
    float2 const* const angle = angles.data() + position * static_cast<std::size_t>(half);
    for (int head = 0; head < rows / dim; ++head) {
      auto const element = [&](int d) {
        double const x = qkv[size_of(t, rows) + size_of(head, dim) + static_cast<std::size_t>(d)];
        return x + (with_bias ? bias[size_of(head, dim) + static_cast<std::size_t>(d)] : 0.0f);
      };
      bool const is_q = head < heads.num_q_heads;
      bool const is_v = head >= heads.num_q_heads + heads.num_heads;
      auto& out       = is_q ? q : is_v ? v : k;
      for (int d = 0; d < dim; ++d) {
        double const c = angle[d % half].x, s = angle[d % half].y;
        out.push_back(is_v       ? element(d)
                      : d < half ? element(d) * c - element(d + half) * s
                                 : element(d) * c + element(d - half) * s);
      }
    }
  }
  device_stream const stream;
  input<float> const device_qkv{qkv, shift}, device_bias{bias, shift};
  input<float2> const device_angles{angles, shift};
  device_array<std::int32_t> const device_positions{positions};
  result<__half> const got_q{q.size(), shift}, got_k{k.size(), shift}, got_v{v.size(), shift};
  llama3::split_and_rotate(device_qkv.data(), with_bias ? device_bias.data() : nullptr,
                           device_positions.data(), device_angles.data(), heads, num_tokens,
                           got_q.data(), got_k.data(), got_v.data(), stream.get());
  stream.wait();
  double const slack = (scale + 3.0) * 0x1p-21;
  CHECK(num_wrong(got_q.get(), q, slack) == 0);
  CHECK(num_wrong(got_k.get(), k, slack) == 0);
  CHECK(num_wrong(got_v.get(), v, slack) == 0);
}

void check_swiglu(int num_tokens, int intermediate, int shift, bool with_bias, float scale)
{
  CAPTURE(num_tokens, intermediate, shift, with_bias, scale);
  random r{static_cast<std::uint64_t>(intermediate + num_tokens)};
  auto x = to_float(to_half(r.floats(size_of(num_tokens, 2 * intermediate), -scale, scale)));
  auto const bias = r.floats(size_of(2, intermediate), -3.0f, 3.0f);
  // Gates where exp over- and underflows, products beyond f16, and what is not finite.
  std::vector<std::pair<float, float>> const nasty{
    {65504.0f, 65504.0f}, {-65504.0f, 65504.0f}, {-88.0f, 65504.0f}, {-87.3f, -65504.0f},
    {-89.5f, 1.0f},       {-17.0f, 65504.0f},    {0.0f, 65504.0f},   {300.0f, -300.0f},
    {nan_value, 1.0f},    {1.0f, nan_value},     {infinity, 1.0f},   {1.0f, infinity}};
  for (std::size_t i = 0; i < nasty.size() && i < size_of(1, intermediate); ++i) {
    x[i]                            = nasty[i].first;
    x[i + size_of(1, intermediate)] = nasty[i].second;
  }
  std::vector<__half> stored;
  for (float const value : x) { stored.push_back(__float2half_rn(value)); }

  std::vector<double> expected;
  for (int t = 0; t < num_tokens; ++t) {
    std::vector<float> row(
      x.begin() + static_cast<std::ptrdiff_t>(size_of(t, 2 * intermediate)),
      x.begin() + static_cast<std::ptrdiff_t>(size_of(t + 1, 2 * intermediate)));
    for (std::size_t i = 0; i < row.size(); ++i) { row[i] += with_bias ? bias[i] : 0.0f; }
    llama3::swiglu(row.data(), row.data() + intermediate, size_of(1, intermediate), row.data());
    expected.insert(expected.end(), row.begin(), row.begin() + intermediate);
  }
  device_stream const stream;
  input<__half> const device_x{stored, shift};
  input<float> const device_bias{bias, shift};
  result<__half> const out{expected.size(), shift};
  llama3::swiglu(device_x.data(), with_bias ? device_bias.data() : nullptr, num_tokens,
                 intermediate, out.data(), stream.get());
  stream.wait();
  CHECK(num_wrong(out.get(), expected, 1e-7) == 0);
}

void check_rows(int num_tokens, int width, int shift)
{
  CAPTURE(num_tokens, width, shift);
  constexpr int vocab = 37;
  random r{static_cast<std::uint64_t>(width + num_tokens)};
  auto const table = to_half(r.floats(size_of(vocab, width), -70000.0f, 70000.0f));
  auto const bias  = r.floats(size_of(1, width), -1.0f, 1.0f);
  std::vector<token_id> ids;
  std::vector<std::int32_t> rows;
  for (int t = 0; t < num_tokens; ++t) {
    ids.push_back(r.between(0, vocab - 1));
    rows.push_back(r.between(0, num_tokens - 1));
  }
  ids[0] = vocab - 1;
  std::vector<float> hidden, biased, gathered;
  for (int t = 0; t < num_tokens; ++t) {
    for (int i = 0; i < width; ++i) {
      auto const column = static_cast<std::size_t>(i);
      hidden.push_back(
        __half2float(table[size_of(ids[static_cast<std::size_t>(t)], width) + column]));
      biased.push_back(hidden.back() + bias[column]);
    }
  }
  for (std::int32_t const row : rows) {
    auto const from = biased.begin() + static_cast<std::ptrdiff_t>(size_of(row, width));
    gathered.insert(gathered.end(), from, from + width);
  }
  device_stream const stream;
  input<__half> const device_table{table, shift};
  input<float> const device_bias{bias, shift};
  device_array<token_id> const device_ids{ids};
  device_array<std::int32_t> const device_rows{rows};
  result<float> const device_hidden{hidden.size(), shift}, to{hidden.size(), shift};
  llama3::embed(device_table.data(), device_ids.data(), num_tokens, width, device_hidden.data(),
                stream.get());
  stream.wait();
  CHECK(device_hidden.get() == hidden);
  llama3::add_bias(device_hidden.data(), device_bias.data(), num_tokens, width, stream.get());
  llama3::gather_rows(device_hidden.data(), device_rows.data(), num_tokens, width, to.data(),
                      stream.get());
  stream.wait();
  CHECK(device_hidden.get() == biased);
  CHECK(to.get() == gathered);
}
}  // namespace

TEST_CASE("saturated_half: rounds to nearest, saturates, and keeps NaN", "[llama3]")
{
  auto const rounded = [](float x) { return __half2float(llama3::saturated_half(x)); };
  CHECK(rounded(65504.0f) == 65504.0f);
  CHECK(rounded(65520.0f) == 65504.0f);
  CHECK(rounded(infinity) == 65504.0f);
  CHECK(rounded(-1e30f) == -65504.0f);
  CHECK(rounded(1.0f + 0x1p-11f) == 1.0f);
  CHECK(std::isnan(rounded(nan_value)));
}

TEST_CASE("rms_norm: a few tokens of odd widths are those of the CPU", "[llama3][small]")
{
  check_rms_norm(1, 1, 0, 1.0f);
  check_rms_norm(3, 8, 0, 1.0f);
  check_rms_norm(5, 37, 0, 1.0f);
  check_rms_norm(3, 64, 1, 1.0f);
  check_rms_norm(2, 96, 0, 0.0f);
}

TEST_CASE("rms_norm: many tokens, wide rows and numbers of any size are those of the CPU",
          "[llama3]")
{
  for (float const scale : {1e-6f, 1.0f, 3e4f, 1e15f}) {
    for (int const width : {2048, 4096, 8192, 5119}) {
      check_rms_norm(1, width, 0, scale);
      check_rms_norm(33, width, 0, scale);
    }
  }
  check_rms_norm(70000, 64, 0, 1.0f);  // more than a grid has in y
}

TEST_CASE("split_and_rotate: a few heads are those of the CPU", "[llama3][small]")
{
  for (bool const with_bias : {false, true}) {
    check_split_and_rotate({1, 1, 2}, 1, 0, with_bias, 1.0f);
    check_split_and_rotate({3, 1, 16}, 3, 0, with_bias, 1.0f);
    check_split_and_rotate({2, 2, 10}, 5, 0, with_bias, 1.0f);
    check_split_and_rotate({4, 2, 64}, 3, 1, with_bias, 1.0f);
  }
}

TEST_CASE("split_and_rotate: heads of models are those of the CPU, and saturate", "[llama3]")
{
  for (float const scale : {0.01f, 5.0f, 1e5f}) {
    for (bool const with_bias : {false, true}) {
      check_split_and_rotate({32, 8, 128}, 1, 0, with_bias, scale);
      check_split_and_rotate({32, 8, 128}, 129, 0, with_bias, scale);
      check_split_and_rotate({9, 3, 64}, 77, 0, with_bias, scale);
      check_split_and_rotate({14, 2, 80}, 7, 0, with_bias, scale);
    }
  }
  check_split_and_rotate({1, 1, 8}, 70000, 0, true, 1.0f);
}

TEST_CASE("swiglu: a few rows are those of the CPU", "[llama3][small]")
{
  for (bool const with_bias : {false, true}) {
    check_swiglu(1, 1, 0, with_bias, 4.0f);
    check_swiglu(3, 16, 0, with_bias, 4.0f);
    check_swiglu(5, 37, 0, with_bias, 4.0f);
    check_swiglu(3, 64, 1, with_bias, 4.0f);
  }
}

TEST_CASE("swiglu: a gate of -inf gives 0, a NaN stays", "[llama3][small]")
{
  device_stream const stream;
  for (int const width : {3, 8}) {  // element by element, and by packs
    std::vector<float> x(size_of(2, width), 1.0f);
    x[0] = -infinity;
    x[1] = nan_value;
    input<__half> const device_x{[&] {
                                   std::vector<__half> stored;
                                   for (float const value : x) {
                                     stored.push_back(__float2half_rn(value));
                                   }
                                   return stored;
                                 }(),
                                 0};
    result<__half> const out{size_of(1, width)};
    llama3::swiglu(device_x.data(), nullptr, 1, width, out.data(), stream.get());
    stream.wait();
    auto const got = to_float(out.get());
    CHECK(got[0] == 0.0f);
    CHECK(std::isnan(got[1]));
    CHECK(got[2] > 0.7f);
  }
}

TEST_CASE("swiglu: wide rows are those of the CPU, and saturate", "[llama3]")
{
  for (float const scale : {0.1f, 10.0f, 1000.0f, 60000.0f}) {
    check_swiglu(1, 14336, 0, false, scale);
    check_swiglu(67, 8192, 0, true, scale);
    check_swiglu(3, 1537, 0, true, scale);
  }
  check_swiglu(70000, 24, 0, false, 4.0f);
}

TEST_CASE("embed, add_bias, gather_rows: rows are those of a plain loop, exactly",
          "[llama3][small]")
{
  check_rows(1, 1, 0);
  check_rows(1, 64, 0);
  check_rows(3, 37, 0);
  check_rows(5, 40, 1);
}

TEST_CASE("embed, add_bias, gather_rows: many and wide rows are exact", "[llama3]")
{
  check_rows(129, 4096, 0);
  check_rows(7, 2047, 0);
  check_rows(70000, 8, 0);
}

TEST_CASE("kernels: no tokens is no launch, and fewer are refused", "[llama3][small]")
{
  device_stream const stream;
  auto const all = [&](int count) {
    llama3::embed(nullptr, nullptr, count, 8, nullptr, stream.get());
    llama3::rms_norm(nullptr, nullptr, count, 8, 1e-5f, nullptr, stream.get());
    llama3::split_and_rotate(nullptr, nullptr, nullptr, nullptr, {1, 1, 8}, count, nullptr, nullptr,
                             nullptr, stream.get());
    llama3::swiglu(nullptr, nullptr, count, 8, nullptr, stream.get());
    llama3::add_bias(nullptr, nullptr, count, 8, stream.get());
    llama3::gather_rows(nullptr, nullptr, count, 8, nullptr, stream.get());
    llama3::sample(nullptr, count, 8, 8, nullptr, nullptr, nullptr, stream.get());
  };
  all(0);
  stream.wait();
  CHECK_THROWS_AS(all(-1), std::invalid_argument);
  CHECK_THROWS_AS(llama3::sample(nullptr, 1, llama3::max_sampled_ids + 1, 8, nullptr, nullptr,
                                 nullptr, stream.get()),
                  std::invalid_argument);
  CHECK_THROWS_AS(llama3::split_and_rotate(nullptr, nullptr, nullptr, nullptr, {1, 1, 7}, 1,
                                           nullptr, nullptr, nullptr, stream.get()),
                  std::invalid_argument);
}

TEST_CASE("kernels: a captured chain that overlaps gives what waiting between its links gives",
          "[llama3][small]")
{
  constexpr int num_tokens = 19, width = 256, rounds = 8;
  diffkv::test::random r{11};
  head_counts const heads{2, 1, 64};
  static_assert(head_counts{2, 1, 64}.qkv_rows() == width);
  input<__half> const table{to_half(r.floats(size_of(50, width), -1.0f, 1.0f))};
  input<float> const weight{r.floats(width, 0.5f, 1.5f)}, bias{r.floats(width, -1.0f, 1.0f)};
  std::vector<float2> angles;
  for (int i = 0; i < 100 * 32; ++i) {
    angles.push_back(
      {std::cos(0.01f * static_cast<float>(i)), std::sin(0.01f * static_cast<float>(i))});
  }
  input<float2> const device_angles{angles};
  std::vector<std::int32_t> rows, positions;
  for (int t = 0; t < num_tokens; ++t) {
    rows.push_back((t * 7 + 3) % num_tokens);
    positions.push_back((t * 31) % 100);
  }
  device_array<std::int32_t> const device_rows{rows}, device_positions{positions};
  device_array<llama3::sampling> const options{
    std::vector<llama3::sampling>(num_tokens, {0.9f, 0.8f, 5})};

  auto const run = [&](bool waits) {
    device_stream const stream;
    result<token_id> const ids{num_tokens};
    result<float> const a{size_of(num_tokens, width)}, b{size_of(num_tokens, width)};
    result<__half> const normed{size_of(num_tokens, width)}, gated{size_of(num_tokens, width / 2)};
    result<__half> const q{size_of(num_tokens, 128)}, k{size_of(num_tokens, 64)},
      v{size_of(num_tokens, 64)};
    diffkv::test::check(cudaMemsetAsync(ids.data(), 0, num_tokens * sizeof(token_id), stream.get()),
                        "cudaMemsetAsync");
    cudaGraph_t graph = nullptr;
    auto const s      = stream.get();
    auto const link   = [&] {
      if (waits) { stream.wait(); }
    };
    if (!waits) {
      diffkv::test::check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    }
    for (int round = 0; round < rounds; ++round) {
      llama3::embed(table.data(), ids.data(), num_tokens, width, a.data(), s);
      link();
      llama3::add_bias(a.data(), bias.data(), num_tokens, width, s);
      link();
      llama3::gather_rows(a.data(), device_rows.data(), num_tokens, width, b.data(), s);
      link();
      llama3::rms_norm(b.data(), weight.data(), num_tokens, width, 1e-5f, normed.data(), s);
      link();
      llama3::swiglu(normed.data(), nullptr, num_tokens, width / 2, gated.data(), s);
      link();
      llama3::split_and_rotate(b.data(), bias.data(), device_positions.data(), device_angles.data(),
                               heads, num_tokens, q.data(), k.data(), v.data(), s);
      link();
      llama3::sample(b.data(), num_tokens, width, 50, options.data(), device_positions.data(),
                     ids.data(), s);
      link();
    }
    if (!waits) {
      diffkv::test::check(cudaStreamEndCapture(s, &graph), "cudaStreamEndCapture");
      cudaGraphExec_t executable = nullptr;
      diffkv::test::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      diffkv::test::check(cudaGraphLaunch(executable, s), "cudaGraphLaunch");
      stream.wait();
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
    std::vector<float> all = b.get();
    for (auto const& part : {normed.get(), gated.get(), q.get(), k.get(), v.get()}) {
      auto const values = to_float(part);
      all.insert(all.end(), values.begin(), values.end());
    }
    for (token_id const id : ids.get()) { all.push_back(static_cast<float>(id)); }
    return all;
  };
  CHECK(run(false) == run(true));
}
