// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/paged_backend.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "llama3/calibration.hpp"
#include "llama3/exact_backend.hpp"
#include "llama3/model.hpp"
#include "support/catch.hpp"
#include "tiny_model.hpp"

namespace {
using namespace llama3;
using diffkv::conditioning;
using diffkv::policy_kind;
using diffkv::test::contains;

//! Heads of 32: the least that pages hold.
test::tiny_shape tiny_shape()
{
  test::tiny_shape shape;
  shape.hidden_size = 64;
  shape.head_dim    = 32;
  shape.num_q_heads = 6;
  shape.num_heads   = 2;
  return shape;
}

struct loaded_model {
  explicit loaded_model(test::tiny_shape const& shape, unsigned seed = 3)
    : tiny{test::make_tiny_model(shape, seed)}, of{load(tiny, threads)}
  {}
  static model load(test::tiny_model const& tiny, thread_pool& threads)
  {
    test::temporary_folder const folder;
    tiny.write(folder.path());
    return model{tiny.config, checkpoint{folder.path()}, threads};
  }
  [[nodiscard]] std::vector<float> offsets(cache_settings const& settings)
  {
    return has(settings.conditioning, conditioning::centred)
             ? calibrate(of, random_ids(50, 77), threads)
             : std::vector<float>{};
  }
  [[nodiscard]] std::vector<token_id> random_ids(int count, unsigned seed) const
  {
    std::mt19937 random{seed};
    std::vector<token_id> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(
        static_cast<token_id>(random() % static_cast<unsigned>(tiny.config.vocab_size)));
    }
    return ids;
  }

  thread_pool threads{2};
  test::tiny_model tiny;
  model of;
};

//! Logits after the prompt and after each further token.
std::vector<std::vector<float>> run(model& of, attention_backend& backend,
                                    std::vector<token_id> const& prompt,
                                    std::vector<token_id> const& more)
{
  std::vector<std::vector<float>> logits{of.prompt(prompt, backend)};
  auto position = static_cast<int>(prompt.size());
  for (token_id const id : more) { logits.push_back(of.decode(id, position++, backend)); }
  return logits;
}

double difference(std::vector<std::vector<float>> const& a,
                  std::vector<std::vector<float>> const& b)
{
  double largest = a.size() == b.size() ? 0.0 : 1e30;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      double const d = std::abs(double{a[i][j]} - b[i].at(j));
      largest        = d <= largest ? largest : d;  // a NaN stays
    }
  }
  return largest;
}

//! Positions of the high tokens of one row.
std::vector<std::int32_t> stored_positions(paged_backend const& backend, std::size_t row)
{
  auto const view = backend.cache().context().row(row);
  std::vector<std::int32_t> positions;
  for (std::uint32_t s = 0; s < view.state().tokens.high; ++s) {
    positions.push_back(view.position(diffkv::tier::high, s));
  }
  return positions;
}

void check_sane(diffkv::sequence_usage const& u, model_config const& c, int num_tokens)
{
  auto const rows = static_cast<std::uint64_t>(c.num_layers * c.num_heads);
  CHECK(u.num_tokens == num_tokens);
  CHECK(u.high_tokens + u.low_tokens + u.pruned == rows * static_cast<std::uint64_t>(num_tokens));
  CHECK(u.bytes_16bit == rows * static_cast<std::uint64_t>(num_tokens * c.head_dim) * 4);
  CHECK(u.pages >= rows);
  CHECK(u.nominal_bytes > 0.0);
  CHECK(u.nominal_bytes <= static_cast<double>(u.bytes));
}
}  // namespace

TEST_CASE("paged_backend: 16-bit pages give what exact attention gives, but for f16", "[llama3]")
{
  for (int const group : {1, 3}) {
    auto shape        = tiny_shape();
    shape.num_q_heads = shape.num_heads * group;
    loaded_model m{shape};
    auto const more = m.random_ids(90, 2);
    for (int const prompt_tokens : {1, 7, 64, 65, 130}) {
      CAPTURE(group, prompt_tokens);
      auto const prompt = m.random_ids(prompt_tokens, 1);
      exact_backend exact{m.tiny.config, m.threads};
      paged_backend paged{m.tiny.config, uncompressed_settings(), 300, {}, m.threads};
      auto const expected = run(m.of, exact, prompt, more);
      auto const got      = run(m.of, paged, prompt, more);
      // The prompt is attended to before it is stored: nothing is rounded there.
      CHECK(difference({got.front()}, {expected.front()}) < 1e-5);
      // K and V are below 4 and rounded to 11 bits: 2^-10 at most each. Logits of a few units pass
      // two layers; measured 1.3e-3.
      CHECK(difference(got, expected) < 5e-3);
      CHECK(difference(got, expected) > 0.0);
      auto const usage = paged.usage();
      check_sane(usage, m.tiny.config, prompt_tokens + 90);
      CHECK(usage.low_tokens == 0);
      CHECK(usage.pruned == 0);
      CHECK(usage.nominal_bytes == static_cast<double>(usage.bytes_16bit));
    }
  }
}

TEST_CASE("paged_backend: every policy and conditioning finishes, near the 16-bit answer",
          "[llama3]")
{
  loaded_model m{tiny_shape()};
  auto const prompt = m.random_ids(120, 4);
  auto const more   = m.random_ids(60, 5);
  exact_backend exact{m.tiny.config, m.threads};
  auto const expected = run(m.of, exact, prompt, more);
  for (auto const policy : {policy_kind::paper, policy_kind::artifact, policy_kind::relative,
                            policy_kind::static_budget}) {
    for (auto const set : {conditioning::none, conditioning::centred, conditioning::rotated,
                           conditioning::centred | conditioning::rotated}) {
      for (int const score_every : {0, 1, 4}) {
        CAPTURE(static_cast<int>(policy), static_cast<int>(set), score_every);
        cache_settings settings;
        settings.policy       = policy;
        settings.conditioning = set;
        settings.score_every  = score_every;
        settings.limits       = {1.0f, 0.4f};
        settings.window       = 16;
        settings.budget       = 40;
        paged_backend paged{m.tiny.config, settings, 300, m.offsets(settings), m.threads};
        auto const got   = run(m.of, paged, prompt, more);
        auto const usage = paged.usage();
        check_sane(usage, m.tiny.config, 180);
        CHECK(usage.bytes < usage.bytes_16bit);
        if (policy == policy_kind::static_budget) {
          // Two thirds are gone; random weights attend to all tokens alike. A NaN fails.
          CHECK(difference(got, expected) < 6.0);
          CHECK(usage.low_tokens == 0);
          CHECK(usage.pruned > 0);
          // Budget and window, in each of 4 rows. Without scores new tokens cannot be told apart:
          // they stay.
          if (score_every != 0) { CHECK(usage.high_tokens == 4 * 56); }
        } else {
          CHECK(difference(got, expected) < 3.0);
          CHECK(usage.low_tokens > 0);
        }
      }
    }
  }
}

TEST_CASE("paged_backend: a second prompt is answered as by a fresh cache", "[llama3]")
{
  loaded_model m{tiny_shape()};
  auto const first  = m.random_ids(50, 6);
  auto const second = m.random_ids(7, 7);
  auto const more   = m.random_ids(20, 8);
  cache_settings settings;
  settings.window    = 8;
  settings.limits    = {1.0f, 0.3f};
  auto const offsets = m.offsets(settings);
  paged_backend fresh{m.tiny.config, settings, 80, offsets, m.threads};
  auto const expected = run(m.of, fresh, second, more);

  paged_backend used{m.tiny.config, settings, 80, offsets, m.threads};
  static_cast<void>(run(m.of, used, first, more));
  CHECK(run(m.of, used, second, more) == expected);  // bit for bit
  // After a prompt that was refused, and after one that ran out of room while it was decoded.
  CHECK_THROWS(run(m.of, used, m.random_ids(81, 9), {}));
  CHECK(run(m.of, used, second, more) == expected);
  CHECK_THROWS(run(m.of, used, m.random_ids(75, 9), more));
  CHECK(run(m.of, used, second, more) == expected);
  CHECK(used.usage().pages == fresh.usage().pages);
}

TEST_CASE("paged_backend: the number of threads changes nothing", "[llama3]")
{
  loaded_model m{tiny_shape()};
  auto const prompt = m.random_ids(100, 6);
  auto const more   = m.random_ids(20, 8);
  cache_settings settings;
  settings.window       = 8;
  settings.conditioning = conditioning::rotated;
  thread_pool one{1}, five{5};
  paged_backend alone{m.tiny.config, settings, 200, {}, one};
  paged_backend shared{m.tiny.config, settings, 200, {}, five};
  CHECK(run(m.of, alone, prompt, more) == run(m.of, shared, prompt, more));
}

TEST_CASE("paged_backend: positions count every token seen, pruned ones too", "[llama3]")
{
  // A prompt of 100 tokens of which each row keeps 10; then two more. The model rotates by the
  // position that it is told, so a wrong count shows in the stored positions and in the logits.
  loaded_model m{tiny_shape()};
  cache_settings settings;
  settings.policy       = policy_kind::static_budget;
  settings.budget       = 0;
  settings.window       = 10;
  settings.conditioning = conditioning::none;
  settings.high         = diffkv::k16v16::spec;
  settings.low          = std::nullopt;
  auto const prompt     = m.random_ids(100, 10);
  paged_backend paged{m.tiny.config, settings, 110, {}, m.threads};
  auto logits = run(m.of, paged, prompt, {});
  CHECK(paged.usage().num_tokens == 100);
  CHECK(paged.usage().high_tokens == 4 * 10);
  CHECK(paged.usage().pruned == 4 * 90);
  for (int t = 100; t < 102; ++t) {
    logits.push_back(m.of.decode(5, t, paged));
    CHECK(paged.usage().num_tokens == t + 1);
    CHECK(paged.usage().high_tokens == 4 * 10);  // the window moves on
    for (std::size_t row = 0; row < 4; ++row) {
      auto const positions = stored_positions(paged, row);
      CHECK(positions.size() == 10);
      CHECK(*std::max_element(positions.begin(), positions.end()) == t);
      CHECK(*std::min_element(positions.begin(), positions.end()) == t - 9);
    }
  }

  // The same by hand: exact attention over the window alone, at true positions.
  struct window_backend final : attention_backend {
    explicit window_backend(exact_backend& to, model_config const& of_model) : c{of_model}, next{to}
    {}
    void prompt(int layer, int num_tokens, float const* q, float const* k, float const* v,
                float* out) override
    {
      next.prompt(layer, num_tokens, q, k, v, out);
      // What is kept of the prompt: its last 9 tokens, as the 10th of the window is the next one.
      auto const width = static_cast<std::size_t>(c.num_heads * c.head_dim);
      auto const from  = static_cast<std::size_t>(num_tokens - 9) * width;
      std::vector<float> const keys(k + from, k + static_cast<std::size_t>(num_tokens) * width);
      std::vector<float> const values(v + from, v + static_cast<std::size_t>(num_tokens) * width);
      std::vector<float> unused(static_cast<std::size_t>(9 * c.num_q_heads * c.head_dim));
      next.prompt(layer, 9, q, keys.data(), values.data(), unused.data());
    }
    void begin_token() override { next.begin_token(); }
    void decode(int layer, float const* q, float const* k, float const* v, float* out) override
    {
      next.decode(layer, q, k, v, out);
    }
    model_config c;
    exact_backend& next;
  };
  exact_backend exact{m.tiny.config, m.threads};
  window_backend window{exact, m.tiny.config};
  auto const expected = run(m.of, window, prompt, {5});
  CHECK(difference({logits[0], logits[1]}, expected) < 5e-3);
}

TEST_CASE("paged_backend: settings that cannot be are refused by name, before any work", "[llama3]")
{
  auto const message_of = [](cache_settings const& settings, int head_dim = 64) {
    auto shape     = tiny_shape();
    shape.head_dim = head_dim;
    try {
      check_settings(test::make_tiny_model(shape, 1).config, settings, 100);
    } catch (std::exception const& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  CHECK(message_of({}).empty());
  CHECK(message_of(uncompressed_settings()).empty());
  cache_settings bad;
  bad.window = 0;
  CHECK_THAT(message_of(bad), contains("window"));
  bad             = {};
  bad.score_every = 3;
  CHECK_THAT(message_of(bad), contains("score_every"));
  bad        = {};
  bad.limits = {1.0f, 2.0f};
  CHECK_THAT(message_of(bad), contains("threshold"));
  CHECK_THAT(message_of({}, 72), contains("head_dim"));
}
