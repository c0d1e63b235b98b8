// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Chooses the next token from the model's logits.
//! Read before this: llama3/token_id.hpp.  Read next: llama3/generate.hpp.
#include "llama3/token_id.hpp"

#include <cstddef>  // size_t
#include <cstdint>  // uint64_t
#include <random>   // mt19937_64
#include <utility>  // pair
#include <vector>

namespace llama3 {
//! One f32 logit per row of the model's output matrix, not owned.
struct logits_view {
  float const* data{nullptr};
  std::size_t size{0};

  logits_view() = default;
  logits_view(float const* values, std::size_t count) : data(values), size(count) {}
  logits_view(std::vector<float> const& values) : data(values.data()), size(values.size()) {}
};

struct sampler_options {
  double temperature{0.0};  //!< 0: greedy; else probabilities are softmax(logits / temperature)
  double top_p{1.0};        //!< keep the most likely tokens whose probabilities reach this; (0, 1]
  std::uint64_t seed{0};
  //! Ids from here on are never chosen: an output matrix may have more rows than the tokenizer has
  //! tokens. Pass tokenizer::size().
  std::size_t num_ids{static_cast<std::size_t>(-1)};
};

//! Greedy, or temperature with top-p. The same seed and the same logits give the same tokens with
//! every standard library: the engine is std::mt19937_64, which the standard defines to the bit,
//! and the step from its words to [0, 1) is our own.
class sampler {
 public:
  //! @throws std::invalid_argument if temperature is negative or not finite, top_p is outside
  //!         (0, 1], or num_ids is 0
  explicit sampler(sampler_options const& options = {});

  //! The next token. NaN and -inf are passed over; +inf counts as certain; of equal logits the
  //! lowest id wins (greedy) or is kept first (top-p).
  //! @throws std::runtime_error if no logit is left to choose from
  //! @cost   O(size), with top-p O(size + kept * log(size))
  [[nodiscard]] token_id sample(logits_view logits);

  //! The id of the largest logit, as `sample` at temperature 0.
  [[nodiscard]] static token_id greedy(logits_view logits,
                                       std::size_t num_ids = static_cast<std::size_t>(-1));

  //! The upper 53 bits of `word`, as a multiple of 2^-53.
  [[nodiscard]] static constexpr double unit_interval(std::uint64_t word) noexcept
  {
    return static_cast<double>(word >> 11) * 0x1p-53;
  }

 private:
  sampler_options options_;
  std::mt19937_64 engine_;
  std::vector<std::pair<double, token_id>> weights_;  // of the candidates; kept between calls
};
static_assert(sampler::unit_interval(~std::uint64_t{0}) < 1.0);
}  // namespace llama3
