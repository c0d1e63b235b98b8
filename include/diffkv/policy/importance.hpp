// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Importance = score / number of queries in the score. Tokens are numbered from 1.
//! Read before this: policy/thresholds.hpp.  Read next: policy/contract.hpp.
#include <diffkv/detail/arithmetic.hpp>  // div_by_count, mul_rn

#include <cstdint>

namespace diffkv {

//! Which queries the scores of one (sequence, layer) hold so far.
struct query_span {
  std::int32_t prompt_tokens  = 0;  //!< N_p
  std::int32_t prompt_queries = 0;  //!< Q: the last Q queries of the prompt were summed
  std::int32_t last_query     = 0;  //!< number of the last token whose query was summed

  //! Queries in the score of token `number`; 0 if none has seen it yet.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::int32_t count(std::int32_t number) const noexcept
  {
    std::int32_t const seen =
      number <= prompt_tokens
        ? detail::min_of(prompt_queries, prompt_tokens - number) + (last_query - prompt_tokens)
        : last_query - number;
    return seen > 0 ? seen : 0;
  }
};
static_assert(query_span{10, 10, 10}.count(1) == 9 && query_span{10, 10, 10}.count(10) == 0);
static_assert(query_span{100, 64, 103}.count(1) == 67 && query_span{100, 64, 103}.count(101) == 2);

//! @pre count > 0
[[nodiscard]] DIFFKV_HOST_DEVICE inline float importance_of(float score,
                                                            std::int32_t count) noexcept
{
  return detail::div_by_count(score, static_cast<float>(count));
}

[[nodiscard]] DIFFKV_HOST_DEVICE inline float score_of(float importance,
                                                       std::int32_t count) noexcept
{
  return detail::mul_rn(importance, static_cast<float>(count));
}

}  // namespace diffkv
