// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
//! @file
//! The kernel that samples chooses the tokens of its twin, and the twin follows the probabilities.
#include "llama3/cuda/kernels.hpp"
#include "llama3/cuda/sample_twin.hpp"
#include "llama3/sampler.hpp"

#include <algorithm>  // adjacent_find, reverse, sort
#include <cmath>      // abs, exp, sqrt
#include <limits>
#include <stdexcept>  // runtime_error
#include <vector>

#include "support/catch.hpp"
#include "support/device.hpp"
#include "support/random.hpp"

namespace {
using diffkv::test::device_array;
using diffkv::test::device_stream;
using diffkv::test::random;
using llama3::sample_on_host;
using llama3::sampling;
using llama3::token_id;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity  = std::numeric_limits<float>::infinity();

//! Sequences whose next tokens are chosen together.
struct batch {
  int vocab;
  std::vector<std::vector<float>> rows;  // [n][vocab]
  std::vector<sampling> options;
  std::vector<std::int32_t> positions;

  void add(std::vector<float> const& row, sampling const& how, std::int32_t position)
  {
    rows.push_back(row);
    options.push_back(how);
    positions.push_back(position);
  }
};

//! @param shift  elements by which the logits are off the alignment of their allocation
std::vector<token_id> on_device(batch const& b, int num_ids, int shift = 0)
{
  std::vector<float> logits(static_cast<std::size_t>(shift));
  for (auto const& row : b.rows) { logits.insert(logits.end(), row.begin(), row.end()); }
  device_stream const stream;
  device_array<float> const device_logits{logits};
  device_array<sampling> const options{b.options};
  device_array<std::int32_t> const positions{b.positions};
  device_array<token_id> const ids{b.rows.size() + 1};
  llama3::sample(device_logits.data() + shift, static_cast<int>(b.rows.size()), b.vocab, num_ids,
                 options.data(), positions.data(), ids.data(), stream.get());
  stream.wait();
  auto chosen = ids.to_host();
  CHECK(chosen.back() == -1);
  chosen.pop_back();
  return chosen;
}

std::vector<token_id> on_host(batch const& b, int num_ids)
{
  std::vector<token_id> ids;
  for (std::size_t i = 0; i < b.rows.size(); ++i) {
    ids.push_back(sample_on_host(b.rows[i].data(), b.vocab, num_ids, b.options[i], b.positions[i]));
  }
  return ids;
}

//! Roughly a bell.
float bell(random& r)
{
  float sum = 0.0f;
  for (int i = 0; i < 6; ++i) { sum += r.uniform(-1.0f, 1.0f); }
  return sum;
}

constexpr int num_kinds = 12;

//! Rows of many characters, by `kind`.
std::vector<float> make_row(int kind, int vocab, random& r)
{
  std::vector<float> row(static_cast<std::size_t>(vocab));
  for (float& x : row) {
    switch (kind) {
      case 0:
        x = 2.0f * bell(r);
        break;  // flat
      case 1:
        x = 4.0f * bell(r) + (r.one_in(1000) ? 12.0f : 0.0f);
        break;  // as of a model
      case 2:
        x = -3.25f;
        break;  // all equal
      case 3:
        x = std::floor(2.0f * bell(r));
        break;  // many ties
      case 4:
        x = r.one_in(3) ? nan_value : r.one_in(3) ? -infinity : bell(r);
        break;
      case 5:
        x = r.one_in(50) ? infinity : bell(r);
        break;
      case 6:
        x = nan_value;
        break;
      case 7:
        x = r.one_in(2) ? -infinity : nan_value;
        break;
      case 8:
        x = r.one_in(2) ? 3e38f : -3e38f;
        break;
      case 9:
        x = r.one_in(2) ? 0.0f : -0.0f;
        break;
      case 10:
        x = 1e-42f * bell(r);
        break;
      default:
        x = 1e6f + 30.0f * bell(r);
        break;
    }
  }
  if (kind == 0 && vocab > 3) { row[static_cast<std::size_t>(vocab) - 1] = 9.0f; }
  return row;
}

sampling make_options(random& r)
{
  sampling options;
  options.temperature =
    r.pick<float>({0.0f, 0.01f, 0.7f, 1.0f, 1.0f, 2.0f, 50.0f, 1e30f, 1e-42f, 0.3f});
  options.top_p = r.pick<float>({1.0f, 0.9f, 0.95f, 0.5f, 0.1f, 1e-30f, 0.999f, 0.99999994f});
  options.seed  = r.one_in(4) ? 0 : r.next();
  return options;
}

void check_against_twin(int vocab, int num_ids, int n, int shift)
{
  CAPTURE(vocab, num_ids, n, shift);
  random r{static_cast<std::uint64_t>(vocab) * 31 + static_cast<std::uint64_t>(n)};
  batch b{vocab, {}, {}, {}};
  for (int i = 0; i < n; ++i) {
    b.add(make_row(i % num_kinds, vocab, r), make_options(r), r.between(0, 200000));
  }
  auto const got = on_device(b, num_ids, shift);
  CHECK(got == on_host(b, num_ids));
  CHECK(got == on_device(b, num_ids, shift));
}
}  // namespace

TEST_CASE("sample: short rows give the tokens of the twin", "[llama3][small]")
{
  for (int const vocab : {1, 5, 31, 1000}) { check_against_twin(vocab, vocab, num_kinds, 0); }
  check_against_twin(8, 3, num_kinds, 0);
  check_against_twin(8, 0, num_kinds, 0);
  check_against_twin(1000, 5000, num_kinds, 1);
}

TEST_CASE("sample: rows of every character and length give the tokens of the twin", "[llama3]")
{
  for (int const vocab : {4095, 4096, 4099, 16384, 16385, 32000, 49152}) {
    check_against_twin(vocab, vocab, 3 * num_kinds, 0);
  }
  for (int vocab = 1; vocab < 70; ++vocab) {
    check_against_twin(vocab, vocab, 10 * num_kinds, 0);
    check_against_twin(vocab, (vocab + 1) / 2, 10 * num_kinds, vocab % 5);
  }
  check_against_twin(128256, 128000, 4 * num_kinds, 0);
  check_against_twin(152064, 151665, 3 * num_kinds, 0);
  check_against_twin(151643, 151643, num_kinds, 0);  // not aligned
  check_against_twin(128256, 128256, num_kinds, 3);
  check_against_twin(100, 100, 512, 0);
}

TEST_CASE("sample: greedy is that of the CPU's sampler", "[llama3][small]")
{
  diffkv::test::random r{3};
  batch b{517, {}, {}, {}};
  for (int kind = 0; kind < num_kinds; ++kind) { b.add(make_row(kind, 517, r), {}, 7); }
  for (int const num_ids : {517, 400, 1}) {
    auto const ids = on_device(b, num_ids);
    for (std::size_t i = 0; i < b.rows.size(); ++i) {
      CAPTURE(i, num_ids);
      token_id expected = llama3::nothing_to_choose;
      try {
        expected = llama3::sampler::greedy(b.rows[i], static_cast<std::size_t>(num_ids));
      } catch (std::runtime_error const&) {}
      CHECK(ids[i] == expected);
    }
  }
}

TEST_CASE("sample: a sequence's token depends neither on the batch nor on its slot", "[llama3]")
{
  constexpr int vocab = 9001;
  diffkv::test::random r{5};
  batch all{vocab, {}, {}, {}};
  for (int i = 0; i < 40; ++i) {
    all.add(make_row(i % 4, vocab, r), {1.2f, i % 2 == 0 ? 1.0f : 0.9f, r.next()}, i);
  }
  auto const together = on_device(all, vocab);
  batch reversed{vocab, {}, {}, {}};
  for (std::size_t i = all.rows.size(); i-- > 0;) {
    reversed.add(all.rows[i], all.options[i], all.positions[i]);
  }
  auto backwards = on_device(reversed, vocab);
  std::reverse(backwards.begin(), backwards.end());
  CHECK(together == backwards);
  for (std::size_t i = 0; i < all.rows.size(); i += 7) {
    batch alone{vocab, {}, {}, {}};
    alone.add(all.rows[i], all.options[i], all.positions[i]);
    CHECK(on_device(alone, vocab)[0] == together[i]);
  }
}

TEST_CASE("sample: tokens come as often as their probabilities say", "[llama3]")
{
  std::vector<float> const logits{1.0f, nan_value, 3.0f, 2.5f, -infinity, 2.5f, -1.0f, 0.0f};
  constexpr int draws    = 40000;
  constexpr float warmth = 1.5f;
  for (float const top_p : {1.0f, 0.8f, 0.5f}) {
    double sum = 0.0;
    std::vector<double> probabilities;
    for (float const x : logits) {
      probabilities.push_back(std::isnan(x) ? 0.0 : std::exp(static_cast<double>(x) / warmth));
      sum += probabilities.back();
    }
    // By hand: 3 has 0.345, then 2.5 twice 0.247, 1 has 0.091, 0 has 0.047, -1 has 0.024.
    if (top_p == 0.8f) { probabilities[0] = probabilities[6] = probabilities[7] = 0.0; }
    if (top_p == 0.5f) {
      probabilities[0] = probabilities[5] = probabilities[6] = probabilities[7] = 0.0;
    }
    sum = 0.0;
    for (double const p : probabilities) { sum += p; }

    batch b{static_cast<int>(logits.size()), {}, {}, {}};
    for (int i = 0; i < draws; ++i) { b.add(logits, {warmth, top_p, 77}, i); }
    std::vector<int> counts(logits.size());
    for (token_id const id : on_device(b, b.vocab)) { ++counts[static_cast<std::size_t>(id)]; }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      double const p = probabilities[i] / sum;
      CAPTURE(top_p, i, p, counts[i]);
      CHECK(std::abs(counts[i] - draws * p) <= 5.0 * std::sqrt(draws * p * (1.0 - p)));
    }
  }
}

TEST_CASE("sampling: seeds and positions give words of their own", "[llama3]")
{
  std::vector<std::uint64_t> words;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (int position = 0; position < 200; ++position) {
      words.push_back(llama3::random_word(seed, position));
    }
  }
  std::sort(words.begin(), words.end());
  CHECK(std::adjacent_find(words.begin(), words.end()) == words.end());
  CHECK(llama3::scaled_word(~std::uint64_t{0}, 10) == 9);
  CHECK(llama3::scaled_word(std::uint64_t{1} << 63, 7) == 3);
  CHECK(llama3::scaled_word(0x0123'4567'89AB'CDEFu, 0xFEDC'BA98'7654'3210u) ==
        0x0121'FA00'AD77'D742u);
}

TEST_CASE("sampling: weights are those of the exponential function", "[llama3]")
{
  diffkv::test::random r{9};
  for (int i = 0; i < 20000; ++i) {
    float const largest = r.uniform(-30.0f, 30.0f), logit = largest - r.uniform(0.0f, 40.0f);
    float const temperature = r.uniform(0.3f, 3.0f);
    double const exponent   = (static_cast<double>(logit) - largest) / temperature;
    double const exact      = 0x1p44 * std::exp(exponent);
    auto const weight =
      static_cast<double>(llama3::token_weight(logit, largest, llama3::weight_scale(temperature)));
    CAPTURE(logit, largest, temperature);
    REQUIRE(std::abs(weight - exact) <= exact * (1e-6 - exponent * 0x1p-23) + 1.0);
  }
}

TEST_CASE("sampling: keys are in the order of logits and are read back", "[llama3]")
{
  std::vector<float> const ascending{-3.4e38f, -1.0f, -1e-45f, 0.0f,
                                     1e-45f,   1.0f,  3.4e38f, infinity};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    CHECK(llama3::logit_of_key(llama3::logit_key(ascending[i])) == ascending[i]);
    if (i > 0) { CHECK(llama3::logit_key(ascending[i - 1]) < llama3::logit_key(ascending[i])); }
  }
  CHECK(llama3::logit_key(-0.0f) == llama3::logit_key(0.0f));
  CHECK(llama3::logit_key(-3.4e38f) > 0);
  for (float const x : {nan_value, -nan_value, -infinity}) { CHECK(llama3::logit_key(x) == 0); }
}
