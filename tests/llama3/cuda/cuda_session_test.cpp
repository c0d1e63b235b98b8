// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>  // fill, max
#include <cmath>
#include <cstdlib>  // getenv
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llama3/calibration.hpp"
#include "llama3/comparison.hpp"
#include "llama3/cpu_session.hpp"
#include "llama3/cuda/cuda_device.hpp"
#include "llama3/cuda/cuda_session.hpp"
#include "llama3/cuda/device_cache_kind.hpp"
#include "llama3/cuda/logit_distance.hpp"
#include "llama3/cuda/tiny_on_device.hpp"
#include "llama3/sampler.hpp"
#include "support/catch.hpp"

// The device rounds the inputs of matrices to f16. Seen on an H200 with SmolLM2, whose logits reach
// 30: with 16-bit pages they differ by 0.035 at most, with K8V4 + K4V2 by 2.7, where a key or value
// got another code. Codes of the tiny model cost a KL of 0.36, and its two processors are 0.008
// apart.
namespace {
using namespace llama3;
using namespace llama3::test;
using diffkv::test::contains;

std::filesystem::path real_model()
{
  char const* const parent = std::getenv("DIFFKV_MODELS");
  return std::filesystem::path{parent != nullptr ? parent : DIFFKV_SOURCE_DIR "/build/models"} /
         "SmolLM2-135M-Instruct";
}
}  // namespace

TEST_CASE("cuda_session: with 16-bit pages logits are those of the CPU",
          "[llama3][small][many-steps]")
{
  tiny_on_device const model_files;
  auto const files = model_files.files();
  thread_pool threads{2};
  model of{model_files.made.config, files, threads};
  cpu_session cpu{of, uncompressed_settings(), 200, {}, threads};
  auto const device = open_cuda_device(model_files.made.config, files, 200);
  auto const cuda   = device->make_session(uncompressed_settings(), 200, {});
  for (int const length : {1, 70}) {
    double largest = largest_difference(cpu.prompt(model_files.ids(length, 3)),
                                        cuda->prompt(model_files.ids(length, 3)));
    for (token_id const id : model_files.ids(40, 5)) {
      largest = std::max(largest, largest_difference(cpu.decode(id), cuda->decode(id)));
    }
    INFO(length);
    CHECK(largest < 0.03);
    CHECK(cuda->usage().high_tokens == cpu.usage().high_tokens);
    CHECK(cuda->usage().num_tokens == length + 40);
  }
}

TEST_CASE("cuda_session: compressed pages give the CPU's distributions and tiers", "[llama3]")
{
  tiny_on_device const model_files;
  auto const files = model_files.files();
  thread_pool threads{2};
  model of{model_files.made.config, files, threads};
  auto const device = open_cuda_device(model_files.made.config, files, 400);
  for (int const score_every : {1, 4}) {
    cpu_session cpu{of, mixed(score_every), 400, model_files.offsets(), threads};
    auto const cuda = device->make_session(mixed(score_every), 400, model_files.offsets());
    cpu_session exact{of, uncompressed_settings(), 400, {}, threads};
    auto const ids = model_files.ids(150, 7);
    static_cast<void>(exact.prompt(ids));
    static_cast<void>(cpu.prompt(ids));
    static_cast<void>(cuda->prompt(ids));
    double apart = 0.0, of_cpu = 0.0, of_cuda = 0.0;
    for (token_id const id : model_files.ids(200, 9)) {
      auto const reference = exact.decode(id), a = cpu.decode(id), b = cuda->decode(id);
      apart += compare_logits(a, b, 0).kl / 200.0;
      of_cpu += compare_logits(reference, a, 0).kl / 200.0;
      of_cuda += compare_logits(reference, b, 0).kl / 200.0;
    }
    // Keys and values rounded to f16 first now and then get another code. How far that takes the
    // two apart is little beside what the codes themselves cost, and that costs both the same.
    WARN("score-every " << score_every << ": KL of the CPU " << of_cpu << ", of the GPU " << of_cuda
                        << ", between them " << apart);
    INFO(score_every);
    CHECK(apart < 0.25 * of_cpu);
    CHECK(std::abs(of_cuda - of_cpu) < 0.1 * of_cpu);
    auto const a = cpu.usage(), b = cuda->usage();
    CHECK(a.num_tokens == b.num_tokens);
    // A token whose importance lies within an error of f16 of a threshold may go the other way.
    CHECK(std::abs(static_cast<double>(a.high_tokens) - static_cast<double>(b.high_tokens)) <
          0.02 * 350 * 6);
    CHECK(a.low_tokens > 0);
  }
}

TEST_CASE("cuda_session: a replayed graph gives the bits of plain launches",
          "[llama3][small][many-steps]")
{
  tiny_on_device const model_files;
  gpu_stream stream;
  device_model of{model_files.made.config,
                  upload(load_weights(model_files.made.config, model_files.files()), stream.get()),
                  200, 200, stream.get()};
  cuda_session graphs{of, mixed(4), 200, model_files.offsets()};
  cuda_session launches{of, mixed(4), 200, model_files.offsets()};
  launches.use_graphs(false);
  auto const ids = model_files.ids(50, 1);
  CHECK(graphs.prompt(ids) == launches.prompt(ids));
  bool same = true;
  for (token_id const id : model_files.ids(60, 2)) {
    same = same && graphs.decode(id) == launches.decode(id);
  }
  CHECK(same);
  CHECK(graphs.usage().pages == launches.usage().pages);
}

TEST_CASE("cuda_session: refuses what cannot be, and goes on", "[llama3][small]")
{
  tiny_on_device const model_files;
  auto const device = open_cuda_device(model_files.made.config, model_files.files(), 64);
  auto const cuda   = device->make_session(uncompressed_settings(), 64, {});
  CHECK_THROWS_AS(cuda->decode(1), std::invalid_argument);
  CHECK_THROWS_AS(cuda->prompt({}), std::invalid_argument);
  CHECK_THROWS_AS(cuda->prompt({200}), std::invalid_argument);
  CHECK_THROWS_AS(cuda->prompt(model_files.ids(65, 1)), std::invalid_argument);
  auto const first = cuda->prompt(model_files.ids(20, 1));
  CHECK_THROWS_AS(cuda->decode(-1), std::invalid_argument);
  auto const next = cuda->decode(5);
  CHECK(cuda->prompt(model_files.ids(20, 1)) == first);  // a new sequence
  CHECK(cuda->decode(5) == next);
  CHECK_THROWS_AS(device->make_session(mixed(2), 64, model_files.offsets()),
                  std::invalid_argument);  // there is no code for k = 2
}

TEST_CASE("cuda_session: a sequence ends at the session's length", "[llama3][small]")
{
  tiny_on_device const model_files;
  auto const device = open_cuda_device(model_files.made.config, model_files.files(), 64);
  for (auto const& settings : {uncompressed_settings(), mixed(4)}) {
    bool const is_16_bit = settings.score_every == 0;
    auto const cuda =
      device->make_session(settings, 46, is_16_bit ? std::vector<float>{} : model_files.offsets());
    static_cast<void>(cuda->prompt(model_files.ids(40, 1)));
    for (token_id const id : model_files.ids(6, 2)) { static_cast<void>(cuda->decode(id)); }
    CHECK_THROWS_AS(cuda->decode(7), std::invalid_argument);
    auto const usage = cuda->usage();
    CHECK(usage.num_tokens == 46);
    CHECK(usage.high_tokens + usage.low_tokens == 46 * 6);
    CHECK((usage.low_tokens > 0) == !is_16_bit);
  }
}

TEST_CASE("cuda_session: a prompt that failed midway gives its pages back", "[llama3][small]")
{
  tiny_on_device const model_files;
  auto const device = open_cuda_device(model_files.made.config, model_files.files(), 64);
  auto const cuda   = device->make_session(uncompressed_settings(), 64, {});
  auto const ids    = model_files.ids(40, 1);
  auto const first  = cuda->prompt(ids);
  auto const fails  = [](int, int) { throw std::runtime_error("midway"); };
  CHECK_THROWS_AS(cuda->prompt(ids, fails), std::runtime_error);
  CHECK_THROWS_AS(cuda->decode(5), std::invalid_argument);  // there is no sequence
  CHECK(cuda->prompt(ids) == first);
}

TEST_CASE("cuda_session: a model whose output is broken is reported", "[llama3][small]")
{
  tiny_on_device model_files;
  auto& norm = model_files.made.tensors.at("model.norm.weight").values;
  std::fill(norm.begin(), norm.end(), std::numeric_limits<float>::quiet_NaN());
  model_files.made.write(model_files.folder.path());
  auto const device = open_cuda_device(model_files.made.config, model_files.files(), 64);
  auto const cuda   = device->make_session(uncompressed_settings(), 64, {});
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH(cuda->prompt(model_files.ids(20, 1)), contains("output is broken"));
  }
}

TEST_CASE("device caches: what there is no code for is named as it would be listed", "[llama3]")
{
  auto const config = tiny_on_device::make().config;
  CHECK_NOTHROW(check_device_settings(config, mixed(4)));
  std::string said;
  try {
    check_device_settings(config, mixed(2));
  } catch (std::invalid_argument const& error) {
    said = error.what();
  }
  CHECK_THAT(said, contains("a cache of 64x3/k8v4+k4v2/2/centred+rotated, ") &&
                     contains("64x3/k8v4+k4v2/4/centred+rotated, "));
  CHECK(said.find('\n') == std::string::npos);
}

TEST_CASE("device caches: a pool of the wrong size is refused, naming the option", "[llama3]")
{
  auto const config = tiny_on_device::make().config;
  auto const check  = [&](int slots, int max_tokens, std::uint64_t kv_bytes, int prompt) {
    check_runner_size(config, mixed(4), {slots, max_tokens, 200, kv_bytes}, prompt);
  };
  CHECK_NOTHROW(check(4, 200, 0, 199));
  CHECK_NOTHROW(check(4, 200, std::uint64_t{1} << 20, 100));
  CHECK_THROWS_WITH(check(4, 200, 1, 1), contains("--kv-bytes 1: must be at least a page"));
  CHECK_THROWS_WITH(check(4, 200, std::uint64_t{1} << 62, 1), contains("--kv-bytes 46116860"));
  CHECK_THROWS_WITH(check(4, 200, 7168, 100),
                    contains("--kv-bytes 7168") && contains("prompt of 100 tokens"));
  CHECK_THROWS_WITH(check(1 << 20, 1 << 20, 0, 1), contains("--batch, --context or --kv-bytes"));
}

TEST_CASE("cuda_device: calibration gives the CPU's mean keys", "[llama3]")
{
  tiny_on_device const model_files;
  auto const files = model_files.files();
  thread_pool threads{2};
  model of{model_files.made.config, files, threads};
  auto const ids    = model_files.ids(300, 4);
  auto const device = open_cuda_device(model_files.made.config, files, 300);
  CHECK(largest_difference(calibrate(of, ids, threads), device->calibrate(ids)) < 2e-3);
}

TEST_CASE("cuda_session: SmolLM2-135M says what the CPU says, or the two are close to a tie",
          "[llama3][model]")
{
  auto const folder = real_model();
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    DIFFKV_SKIP(folder.string() + " is not there; scripts/get_model.py makes it");
  }
  std::ifstream in{DIFFKV_TEST_DATA_DIR "/smollm2_logits.json"};
  REQUIRE(in);
  auto const ids    = nlohmann::json::parse(in).at("prompt_ids").get<std::vector<token_id>>();
  auto const config = load_model_config(folder);
  checkpoint const files{folder};
  thread_pool threads;
  model of{config, files, threads};
  constexpr int longest = 400, tokens = 128;
  std::vector<token_id> const prompt(ids.begin(), ids.begin() + 200);
  auto const device  = open_cuda_device(config, files, longest);
  auto const offsets = device->calibrate(ids);
  for (auto const& settings : {uncompressed_settings(), mixed(1)}) {
    auto const own =
      has(settings.conditioning, diffkv::conditioning::centred) ? offsets : std::vector<float>{};
    cpu_session cpu{of, settings, longest, own, threads};
    auto const cuda = device->make_session(settings, longest, own);
    auto expected   = cpu.prompt(prompt);
    auto logits     = cuda->prompt(prompt);
    double worst = 0.0, largest = 0.0;
    int different = 0;
    for (int t = 0; t < tokens; ++t) {
      token_id const id = sampler::greedy(expected);
      largest           = std::max(largest, largest_difference(expected, logits));
      worst             = std::max(worst, behind(logits, id));
      different += sampler::greedy(logits) == id ? 0 : 1;
      expected = cpu.decode(id);
      logits   = cuda->decode(id);
    }
    bool const is_16_bit = settings.score_every == 0;
    WARN((is_16_bit ? "16-bit" : "k8v4 + k4v2")
         << ": logits differ by " << largest << ", " << different << " tokens of " << tokens
         << " differ, where the best two are within " << worst);
    CHECK(largest < (is_16_bit ? 0.1 : 3.0));
    CHECK(worst < (is_16_bit ? 0.05 : 0.3));  // seen: 0 and 0.044
  }
}
