// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
// expect: Policy must fulfil policy/contract.hpp
#include <diffkv/policy/paper.hpp>
#include <diffkv/policy/prompt_tiers.hpp>

#if defined(DIFFKV_TEST_ACCEPTED)
using policy = diffkv::paper_policy;
#else
struct policy {  // has neither prepare, classify, priority nor step
  struct row_parameters {};
};
#endif

diffkv::tier first_of(policy const& p, diffkv::prompt_view const& row)
{
  return diffkv::prompt_tier(p, row, policy::row_parameters{}, 1, 1);
}
