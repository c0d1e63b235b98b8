// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The one door through which Catch2 enters: 2.13 and 3 spell their headers differently.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace diffkv::test {
//! A matcher: the text holds `part`, e.g. `CHECK_THAT(message, contains("head_dim"))`.
[[nodiscard]] inline auto contains(std::string const& part)
{
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}
}  // namespace diffkv::test

//! Leaves the test case because something it needs is not there (a model, a GPU), and says what.
#if defined(SKIP)
#define DIFFKV_SKIP(message) SKIP(message)
#else
#define DIFFKV_SKIP(message)                   \
  do {                                         \
    WARN("skipped: " << message); /* NOLINT */ \
    SUCCEED();                                 \
    return;                                    \
  } while (false)
#endif
