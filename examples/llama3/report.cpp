// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0

#include "llama3/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llama3 {

namespace {

double ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

std::string time_line(char const* what, time_account const& t)
{
  double const total = t.total();
  std::string line   = fmt::format(
      "  {:<16} {:7.2f} s: matrices {:.0f} %, attention and cache {:.0f} %, other {:.0f} %", what,
      total, 100.0 * ratio(t.matrices, total), 100.0 * ratio(t.attention, total),
      100.0 * ratio(t.other, total));
  if (t.device > 0.0) {
    line += fmt::format(", on the device {:.0f} %", 100.0 * ratio(t.device, total));
  }
  return line + "\n";
}

nlohmann::json time_json(time_account const& t)
{
  return {
    {"matrices", t.matrices}, {"attention", t.attention}, {"other", t.other}, {"device", t.device}};
}

std::string formats_of(diffkv::cache_options const& cache)
{
  return formats_text(cache.high, cache.has_low ? std::optional{cache.low} : std::nullopt);
}

}  // namespace

std::string formats_text(diffkv::format_spec const& high,
                         std::optional<diffkv::format_spec> const& low)
{
  return low ? diffkv::name(high) + " + " + diffkv::name(*low) : diffkv::name(high);
}

double run_report::kv_bytes_ratio() const
{
  return ratio(static_cast<double>(usage.bytes), static_cast<double>(usage.bytes_16bit));
}

double run_report::nominal_bytes_ratio() const
{
  return ratio(usage.nominal_bytes, static_cast<double>(usage.bytes_16bit));
}

double run_report::tokens_per_second() const
{
  return ratio(usage.num_tokens - prompt_tokens, generate_seconds);
}

std::string as_text(run_report const& r)
{
  auto const tokens = static_cast<double>(r.usage.num_tokens);
  double const stored =
    static_cast<double>(r.usage.high_tokens + r.usage.low_tokens + r.usage.pruned);
  auto const share = [&](std::uint64_t n) { return 100.0 * ratio(static_cast<double>(n), stored); };
  std::string text =
    fmt::format("\ndiffkv: {} prompt tokens in {:.2f} s, {} new tokens at {:.1f} tokens/s ({})\n",
                r.prompt_tokens, r.prompt_seconds, r.new_tokens, r.tokens_per_second(), r.finish);
  text += fmt::format("  {:<16} {}\n", "device", r.device);
  text += time_line("prompt", r.prompt_time);
  text += time_line("new tokens", r.generate_time);
  text += fmt::format("  {:<16} {} in pages of {} bytes: {} pages\n", "formats",
                      formats_of(r.cache), r.cache.page_bytes, r.usage.pages);
  text += fmt::format(
    "  {:<16} high {:.1f} %, low {:.1f} %, pruned {:.1f} % (all layers and heads)\n",
    "tokens by tier", share(r.usage.high_tokens), share(r.usage.low_tokens), share(r.usage.pruned));
  text += fmt::format(
    "  {:<16} real {:.0f} ({:.1f} % of 16-bit), nominal {:.0f} ({:.1f} %), 16-bit {:.0f}\n",
    "KV bytes/token", ratio(static_cast<double>(r.usage.bytes), tokens), 100.0 * r.kv_bytes_ratio(),
    ratio(r.usage.nominal_bytes, tokens), 100.0 * r.nominal_bytes_ratio(),
    ratio(static_cast<double>(r.usage.bytes_16bit), tokens));
  if (r.compared) {
    text += fmt::format(
      "  {:<16} KL {:.5f} nats, agreement {:.2f} %, perplexity ratio {:.4f} over {} tokens\n",
      "against 16-bit", r.compared->mean_kl(), 100.0 * r.compared->agreement(),
      r.compared->perplexity_ratio(), r.compared->positions.size());
  }
  return text;
}

std::string as_json(run_report const& r)
{
  nlohmann::json json{
    {"device", r.device},
    {"tokens_per_second", r.tokens_per_second()},
    {"prompt_tokens", r.prompt_tokens},
    {"new_tokens", r.new_tokens},
    {"prompt_seconds", r.prompt_seconds},
    {"generate_seconds", r.generate_seconds},
    {"prompt_time", time_json(r.prompt_time)},
    {"generate_time", time_json(r.generate_time)},
    {"finish", r.finish},
    {"formats", formats_of(r.cache)},
    {"page_bytes", r.cache.page_bytes},
    {"pages", r.usage.pages},
    {"kv_bytes", r.usage.bytes},
    {"kv_bytes_nominal", r.usage.nominal_bytes},
    {"kv_bytes_16bit", r.usage.bytes_16bit},
    {"kv_bytes_ratio", r.kv_bytes_ratio()},
    {"nominal_bytes_ratio", r.nominal_bytes_ratio()},
    {"tiers",
     {{"high", r.usage.high_tokens}, {"low", r.usage.low_tokens}, {"pruned", r.usage.pruned}}}};
  if (r.compared) {
    json["kl"]               = r.compared->mean_kl();
    json["agreement"]        = r.compared->agreement();
    json["perplexity_ratio"] = r.compared->perplexity_ratio();
    auto& positions = json["positions"] = nlohmann::json::array();
    for (auto const& p : r.compared->positions) {
      positions.push_back({{"kl", p.kl},
                           {"agrees", p.agrees},
                           {"log_probability", p.log_probability},
                           {"log_probability_compressed", p.log_probability_compressed}});
    }
  }
  return json.dump();
}

}  // namespace llama3
