// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which codes a vector becomes (bits, groups, clip), and the pair of codecs that is a format.
//! Read before this: policy/prompt_tiers.hpp.  Read next: quant/affine.hpp.
#include <diffkv/core/error.hpp>  // DIFFKV_EXPECTS
#include <diffkv/detail/config.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace diffkv {

inline constexpr int min_group_elements = 32;

//! Codec of one vector. 16 bits means the f16 vector itself, without scale and zero.
struct code_spec {
  int bits   = 16;    //!< keys: 16, 8, 4, 2; values: also 1
  int groups = 1;     //!< 1, 2 or 4 scale groups of head_dim / groups elements, each at least 32
  float clip = 1.0f;  //!< 0 < clip <= 1: share of the range min .. max that the codes span

  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr bool is_quantised() const noexcept
  {
    return bits < 16;
  }
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr std::uint32_t max_code() const noexcept
  {
    return (1u << bits) - 1u;
  }
  //! Bytes of scale and zero of one token.
  [[nodiscard]] DIFFKV_HOST_DEVICE constexpr int metadata_bytes() const noexcept
  {
    return is_quantised() ? 4 * groups : 0;
  }
};

[[nodiscard]] constexpr bool is_legal(code_spec spec, int head_dim) noexcept
{
  bool const bits =
    spec.bits == 1 || spec.bits == 2 || spec.bits == 4 || spec.bits == 8 || spec.bits == 16;
  bool const groups = spec.groups == 1 ||
                      ((spec.groups == 2 || spec.groups == 4) && spec.is_quantised() &&
                       head_dim % spec.groups == 0 && head_dim / spec.groups >= min_group_elements);
  return bits && groups && spec.clip > 0.0f && spec.clip <= 1.0f;
}

//! Codecs of the keys and values of one tier, at run time.
struct format_spec {
  code_spec key{};
  code_spec value{};
};

//! Whether codes lie in the same places: the clip changes numbers, not the page.
[[nodiscard]] constexpr bool operator==(format_spec const& a, format_spec const& b) noexcept
{
  return a.key.bits == b.key.bits && a.key.groups == b.key.groups && a.value.bits == b.value.bits &&
         a.value.groups == b.value.groups;
}

//! 1-bit keys are no format: two levels cannot carry a logit.
[[nodiscard]] constexpr bool is_legal(format_spec format, int head_dim) noexcept
{
  return is_legal(format.key, head_dim) && is_legal(format.value, head_dim) && format.key.bits != 1;
}

//! A format as a type: `format<8, 4>` is k8v4.
template <int KeyBits, int ValueBits, int KeyGroups = 1, int ValueGroups = 1>
struct format {
  static_assert(KeyBits == 16 || KeyBits == 8 || KeyBits == 4 || KeyBits == 2,
                "KeyBits must be 16, 8, 4 or 2");
  static_assert(ValueBits == 16 || ValueBits == 8 || ValueBits == 4 || ValueBits == 2 ||
                  ValueBits == 1,
                "ValueBits must be 16, 8, 4, 2 or 1");
  static_assert(KeyGroups == 1 || ((KeyGroups == 2 || KeyGroups == 4) && KeyBits < 16),
                "KeyGroups must be 1, 2 or 4, and 1 for 16-bit keys");
  static_assert(ValueGroups == 1 || ((ValueGroups == 2 || ValueGroups == 4) && ValueBits < 16),
                "ValueGroups must be 1, 2 or 4, and 1 for 16-bit values");
  static constexpr format_spec spec{{KeyBits, KeyGroups}, {ValueBits, ValueGroups}};
};

using k16v16 = format<16, 16>;
using k16v8  = format<16, 8>;
using k16v4  = format<16, 4>;
using k8v16  = format<8, 16>;
using k8v8   = format<8, 8>;
using k8v4   = format<8, 4>;
using k8v2   = format<8, 2>;
using k4v8   = format<4, 8>;
using k4v4   = format<4, 4>;
using k4v2   = format<4, 2>;
using k4v1   = format<4, 1>;
using k2v4   = format<2, 4>;
using k2v2   = format<2, 2>;

//! "k8v4".
[[nodiscard]] inline std::string name(format_spec const& format)
{
  return "k" + std::to_string(format.key.bits) + "v" + std::to_string(format.value.bits);
}

//! Reads "k8v4"; both codecs get `groups` groups where they are quantised.
//! @throws invalid_argument naming the legal widths
[[nodiscard]] inline format_spec parse_format(std::string_view text, int groups = 1)
{
  auto const number = [&](std::string_view digits) {
    for (int bits : {16, 8, 4, 2, 1}) {
      if (digits == std::to_string(bits)) { return bits; }
    }
    return 0;
  };
  std::size_t const v = text.find('v');
  int const key       = v == std::string_view::npos || text.empty() || text[0] != 'k'
                          ? 0
                          : number(text.substr(1, v - 1));
  int const value     = key == 0 ? 0 : number(text.substr(v + 1));
  DIFFKV_EXPECTS(key > 1 && value > 0,
                 "format: '" + std::string{text} +
                   "' is no format, use kXvY with X of 16, 8, 4, 2 and Y of 16, 8, 4, 2, 1");
  return {{key, key < 16 ? groups : 1}, {value, value < 16 ? groups : 1}};
}

}  // namespace diffkv
