// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Errors. A wrong configuration is a static_assert; a wrong argument throws `invalid_argument`
//! before anything is changed; running out of pages is data, not an error.
//! Read before this: core/types.hpp.  Read next: core/half.hpp.
#include <diffkv/detail/config.hpp>

#include <stdexcept>  // invalid_argument
#include <string>

namespace diffkv {

//! A call was given an argument outside its legal values; the message names both.
class invalid_argument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {
[[noreturn]] inline void throw_invalid(std::string const& message)
{
  throw invalid_argument("diffkv: " + message);
}
}  // namespace detail

}  // namespace diffkv

//! Throws `invalid_argument` with `message` (evaluated only then) unless `condition` holds.
#define DIFFKV_EXPECTS(condition, message) \
  ((condition) ? static_cast<void>(0) : ::diffkv::detail::throw_invalid(message))
