// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How far decode attention on the device may be from f64: docs/numerics.md, "Decode attention on the
//! device". The one place where tests find these numbers.
#include <diffkv/page/tier_pages.hpp>

namespace diffkv::test {

struct decode_bounds {
  //! Of one q_head: 2-norm of what `out` errs by beyond its own rounding, over the larger of |out| and
  //! sqrt(sum p^2 |v|^2).
  double out;
  //! |lse - exact|, over 1 + |lse| / 25.
  double lse;
  //! A score against the host twin's: of what the launch added, relative.
  double exact_score;
  double int8_score;
};

//! 16-bit fixed point stands for queries and for weights where keys and values are codes; where both
//! are f16, products lose nothing that shows.
inline constexpr decode_bounds bounds_of_codes{4e-4, 1e-3, 6e-4, 2e-4};
inline constexpr decode_bounds bounds_of_f16{2e-5, 2e-5, 1e-4, 1e-4};

[[nodiscard]] constexpr decode_bounds bounds_of(tier_pages const& tiers) noexcept
{
  bool codes = false;
  for (tier t : {tier::high, tier::low}) {
    if (t == tier::low && !tiers.has_low) { continue; }
    format_spec const& f = tiers.of(t).format;
    codes                = codes || f.key.is_quantised() || f.value.is_quantised();
  }
  return codes ? bounds_of_codes : bounds_of_f16;
}

}  // namespace diffkv::test
