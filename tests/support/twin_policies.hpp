// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A policy of each kind for the host, and the same one for the device.
#include <diffkv/policy/any_policy.hpp>
#include <diffkv/policy/device_harmonic.hpp>

#include "support/device.hpp"

namespace diffkv::test {

class twin_policies {
 public:
  twin_policies(std::int32_t max_tokens, std::int32_t budget) : table_{max_tokens}, budget_{budget}
  {}
  [[nodiscard]] any_policy host(policy_kind kind) const
  {
    any_policy p;
    p.kind                 = kind;
    p.relative.harmonic    = table_.ref();
    p.static_budget.budget = budget_;
    return p;
  }
  [[nodiscard]] any_policy device(policy_kind kind) const
  {
    any_policy p        = host(kind);
    p.relative.harmonic = device_table_.ref();
    return p;
  }

 private:
  harmonic_table table_;
  device_stream stream_{};
  device_harmonic_table<cuda_async_resource> device_table_{
    table_.ref().max_tokens, cuda_async_resource{stream_.get()}, stream_.get()};
  std::int32_t budget_;
};

}  // namespace diffkv::test
