// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/throughput/results.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llama3 {

std::string as_json(std::vector<measured_result> const& results, std::string const& device,
                    std::string const& command)
{
  nlohmann::ordered_json document;
  document["context"] = {
    {"executable", "diffkv_llama3_throughput"}, {"device", device}, {"command", command}};
  document["benchmarks"] = nlohmann::ordered_json::array();
  for (measured_result const& result : results) {
    nlohmann::ordered_json entry{
      {"name", result.name}, {"run_name", result.name},           {"run_type", "iteration"},
      {"iterations", 1},     {"real_time", 1e3 * result.seconds}, {"time_unit", "ms"}};
    for (auto const& [name, value] : result.counters) { entry[name] = value; }
    document["benchmarks"].push_back(std::move(entry));
  }
  return document.dump(1) + "\n";
}

std::string as_text(measured_result const& result)
{
  std::string text = fmt::format("{}: {:.6g} ms\n", result.name, 1e3 * result.seconds);
  for (auto const& [name, value] : result.counters) {
    text += fmt::format("  {:<44} {:.6g}\n", name, value);
  }
  return text;
}

}  // namespace llama3
