// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/report.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.hpp"

namespace {
using namespace llama3;
auto near(double value) { return Catch::Matchers::WithinRel(value, 1e-6); }
using diffkv::test::contains;

//! 100 tokens in 6 rows (2 layers, 3 heads) at head_dim 64.
run_report make_report()
{
  run_report r;
  r.device                = "cpu";
  r.prompt_tokens         = 90;
  r.new_tokens            = 11;
  r.prompt_seconds        = 2.0;
  r.generate_seconds      = 0.5;
  r.prompt_time           = {1.0, 0.75, 0.25};
  r.generate_time         = {0.25, 0.15, 0.1};
  r.finish                = "length";
  r.usage.num_tokens      = 100;
  r.usage.high_tokens     = 300;
  r.usage.low_tokens      = 180;
  r.usage.pruned          = 120;
  r.usage.pages           = 12;
  r.usage.bytes           = 12 * 7168;
  r.usage.bytes_16bit     = 100ull * 6 * 64 * 4;
  r.usage.nominal_bytes   = 300 * 96.0 + 180 * 48.0;  // k8v4: 12 bits an element, k4v2: 6
  r.cache.shape.num_slots = 1;
  r.cache.page_bytes      = 7168;
  return r;
}
}  // namespace

TEST_CASE("report: ratios and speed are those worked by hand", "[llama3]")
{
  run_report const r = make_report();
  CHECK_THAT(r.kv_bytes_ratio(), near(86016.0 / 153600.0));
  CHECK_THAT(r.nominal_bytes_ratio(), near(37440.0 / 153600.0));
  CHECK_THAT(r.tokens_per_second(), near(20.0));
  run_report const nothing;  // no token, no time: no division by 0
  CHECK(nothing.kv_bytes_ratio() == 0.0);
  CHECK(nothing.nominal_bytes_ratio() == 0.0);
  CHECK(nothing.tokens_per_second() == 0.0);
}

TEST_CASE("report: the JSON is one line with every key that scripts rely on", "[llama3]")
{
  std::string const text = as_json(make_report());
  CHECK(text.find('\n') == std::string::npos);
  auto const json = nlohmann::json::parse(text);
  CHECK_THAT(json.at("tokens_per_second").get<double>(), near(20.0));
  CHECK(json.at("device") == "cpu");
  CHECK(json.at("prompt_tokens") == 90);
  CHECK(json.at("new_tokens") == 11);
  CHECK_THAT(json.at("kv_bytes_ratio").get<double>(), near(0.56));
  CHECK_THAT(json.at("nominal_bytes_ratio").get<double>(), near(0.24375));
  CHECK(json.at("tiers") == nlohmann::json({{"high", 300}, {"low", 180}, {"pruned", 120}}));
  CHECK(json.at("pages") == 12);
  CHECK(json.at("page_bytes") == 7168);
  CHECK(json.at("kv_bytes") == 86016);
  CHECK(json.at("kv_bytes_16bit") == 153600);
  CHECK_THAT(json.at("kv_bytes_nominal").get<double>(), near(37440.0));
  CHECK(json.at("finish") == "length");
  CHECK(json.at("formats") == "k8v4 + k4v2");
  CHECK_THAT(json.at("prompt_time").at("attention").get<double>(), near(0.75));
  CHECK(json.at("prompt_time").at("device") == 0.0);
  CHECK_THAT(json.at("generate_time").at("matrices").get<double>(), near(0.25));
  for (char const* key : {"kl", "agreement", "perplexity_ratio", "positions"}) {
    CHECK_FALSE(json.contains(key));  // only where caches were compared
  }
}

TEST_CASE("report: a comparison adds its means, and every position", "[llama3]")
{
  run_report r          = make_report();
  r.compared            = comparison{};
  r.compared->positions = {{0.1, true, -1.0, -1.5}, {0.3, false, -2.0, -1.9}};
  auto const json       = nlohmann::json::parse(as_json(r));
  CHECK_THAT(json.at("kl").get<double>(), near(0.2));
  CHECK_THAT(json.at("agreement").get<double>(), near(0.5));
  CHECK_THAT(json.at("perplexity_ratio").get<double>(), near(std::exp(0.2)));
  auto const& positions = json.at("positions");
  REQUIRE(positions.size() == 2);
  CHECK_THAT(positions[1].at("kl").get<double>(), near(0.3));
  CHECK(positions[1].at("agrees") == false);
  CHECK(positions[0].at("agrees") == true);
  CHECK_THAT(positions[1].at("log_probability").get<double>(), near(-2.0));
  CHECK_THAT(positions[1].at("log_probability_compressed").get<double>(), near(-1.9));
}

TEST_CASE("report: the text tells the same, and where the time went", "[llama3]")
{
  run_report r           = make_report();
  std::string const text = as_text(r);
  CHECK_THAT(text, contains("90 prompt tokens in 2.00 s, 11 new tokens at 20.0 tokens/s (length)"));
  CHECK_THAT(text, contains("matrices 50 %, attention and cache 38 %, other 12 %"));
  CHECK_THAT(text, contains("matrices 50 %, attention and cache 30 %, other 20 %"));
  CHECK_THAT(text, contains("k8v4 + k4v2 in pages of 7168 bytes: 12 pages"));
  CHECK_THAT(text, contains("high 50.0 %, low 30.0 %, pruned 20.0 %"));
  CHECK_THAT(text, contains("real 860 (56.0 % of 16-bit), nominal 374 (24.4 %), 16-bit 1536"));
  CHECK_THAT(text, contains("device           cpu\n"));
  CHECK_THAT(text, !contains("on the device"));
  CHECK_THAT(text, !contains("KL"));
  r.cache.has_low       = false;
  r.compared            = comparison{};
  r.compared->positions = {{0.1, true, -1.0, -1.5}, {0.3, false, -2.0, -1.9}};
  CHECK_THAT(as_text(r), contains("k8v4 in pages"));
  CHECK_THAT(as_text(r), contains("KL 0.20000 nats, agreement 50.00 %"));
}

TEST_CASE("report: time that a device does not split up has a share of its own", "[llama3]")
{
  run_report r    = make_report();
  r.device        = "cuda";
  r.generate_time = {0.0, 0.0, 0.1, 0.4};
  CHECK_THAT(as_text(r), contains("device           cuda\n"));
  CHECK_THAT(as_text(r), contains("0.50 s: matrices 0 %, attention and cache 0 %, other 20 %, "
                                  "on the device 80 %\n"));
  auto const json = nlohmann::json::parse(as_json(r));
  CHECK(json.at("device") == "cuda");
  CHECK_THAT(json.at("generate_time").at("device").get<double>(), near(0.4));
}
