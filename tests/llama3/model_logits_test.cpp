// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/exact_backend.hpp"
#include "llama3/model.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>  // getenv
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {
using namespace llama3;

//! What scripts/make_fixture.py had another implementation compute in f64 on the same checkpoint.
constexpr char fixture_file[] = DIFFKV_TEST_DATA_DIR "/smollm2_logits.json";

//! Measured: logits, of up to 30, differ by at most 6.9e-5 after a prompt and 1.2e-5 after decoding
//! (AVX-512; 6.7e-5 and 8.3e-6 with SSE2 alone). The other implementation's own f32 differs from
//! its f64 by 1.3e-4. The bound leaves room for other instruction sets.
constexpr double tolerance = 3e-4;

std::filesystem::path model_folder()
{
  char const* const parent = std::getenv("DIFFKV_MODELS");
  return std::filesystem::path{parent != nullptr ? parent : DIFFKV_SOURCE_DIR "/build/models"} /
         "SmolLM2-135M-Instruct";
}

struct comparison {
  double logit{0.0}, log_sum_exp{0.0};  //!< largest differences
};

//! `logits`, [vocab_size], against one entry of the fixture.
void compare(nlohmann::json const& expected, float const* logits, std::size_t size, comparison& to)
{
  auto const ids    = expected.at("ids").get<std::vector<std::size_t>>();
  auto const values = expected.at("logits").get<std::vector<double>>();
  REQUIRE(ids.size() == values.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < size; ++i) { sum += std::exp(double{logits[i]}); }
  to.log_sum_exp =
    std::max(to.log_sum_exp, std::abs(std::log(sum) - expected.at("log_sum_exp").get<double>()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    to.logit = std::max(to.logit, std::abs(logits[ids[i]] - values[i]));
  }
  auto const best = static_cast<std::size_t>(std::max_element(logits, logits + size) - logits);
  CHECK(best == ids.front());
}
}  // namespace

TEST_CASE("model: logits of SmolLM2-135M agree with another implementation", "[llama3][model]")
{
  auto const folder = model_folder();
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    DIFFKV_SKIP(folder.string() + " is not there; scripts/get_model.py makes it");
  }
  std::ifstream in{fixture_file};
  REQUIRE(in);
  auto const fixture = nlohmann::json::parse(in);
  auto const ids     = fixture.at("prompt_ids").get<std::vector<token_id>>();
  std::vector<int> positions;
  for (auto const& entry : fixture.at("positions")) {
    positions.push_back(entry.at("position").get<int>());
  }
  REQUIRE(positions.back() == static_cast<int>(ids.size()) - 1);

  thread_pool threads;
  auto const config = load_model_config(folder);
  model loaded{config, checkpoint{folder}, threads};
  exact_backend cache{config, threads};
  auto const vocab_size = static_cast<std::size_t>(config.vocab_size);

  comparison of_prompt;
  auto const logits = loaded.prompt_logits(ids, positions, cache);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    CAPTURE(positions[i]);
    compare(fixture.at("positions")[i], logits.data() + i * vocab_size, vocab_size, of_prompt);
  }

  comparison of_decode;  // the last tokens one by one
  int const first  = static_cast<int>(ids.size()) - 16;
  auto step_logits = loaded.prompt({ids.begin(), ids.begin() + first}, cache);
  for (int t = first; t < static_cast<int>(ids.size()); ++t) {
    step_logits = loaded.decode(ids[static_cast<std::size_t>(t)], t, cache);
  }
  compare(fixture.at("positions").back(), step_logits.data(), vocab_size, of_decode);

  INFO("prompt: logits differ by " << of_prompt.logit << ", log-sum-exp by "
                                   << of_prompt.log_sum_exp << "; decode: " << of_decode.logit
                                   << ", " << of_decode.log_sum_exp);
  CHECK(of_prompt.logit < tolerance);
  CHECK(of_prompt.log_sum_exp < tolerance);
  CHECK(of_decode.logit < tolerance);
  CHECK(of_decode.log_sum_exp < tolerance);
}
